"""The structure of the code: names that a stranger understands, few rooms, locks for any registry, decisions that
the code cites.

`scripts/measure-structure` prints the same figures as a table.
"""

import ast
import re
from copy import copy
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]

FIELD = frozenset(Path(__file__).with_name("technical_words.txt").read_text(encoding="utf-8").split())
"""Words in common use among engineers, which need no entry in the glossary."""


FILE_WORDS = frozenset(Path(__file__).with_name("file_words.txt").read_text(encoding="utf-8").split())
"""More words of the same kind, for names of tests and of the page's files."""

NOT_GERUNDS = frozenset({"ranking", "reasoning", "rolling"})
"""More nouns of the field in -ing, and one adjective: a rolling restart."""

NODE_LOCKS = ("web/package-lock.json", "tests/wires/node/package-lock.json")


@pytest.fixture(scope="module")
def measure() -> Any:
    """The script as a module."""
    loader = SourceFileLoader("measure_structure", str(ROOT / "scripts/measure-structure"))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def tree(measure: Any) -> Any:
    return measure.Tree()


class TestModuleNames:
    def test_none_is_a_gerund(self, measure: Any, tree: Any) -> None:
        assert measure.gerunds(tree.modules) == []

    def test_each_word_is_in_the_glossary_or_in_common_use(self, tree: Any) -> None:
        known = FIELD | glossary()
        unknown = {
            word: name
            for name in tree.paths
            for word in name.rpartition(".")[2].split("_")
            if not is_known(word, known)
        }
        assert unknown == {}, "Choose a common word, or explain it in docs/glossary.md."


class TestClassNames:
    def test_none_is_a_metaphor(self, measure: Any, tree: Any) -> None:
        assert measure.metaphors(tree) == []

    def test_none_stands_for_two_different_things(self, measure: Any, tree: Any) -> None:
        """A name may be shared only by the wire shape and the stored value or command of one concept, or by the same
        module of the two databases."""
        assert measure.homonyms(tree) == [], "Give one of them another name."

    @pytest.mark.parametrize(
        "modules",
        [
            ["turnkeep_client.wire.files", "turnkeep.model.files"],
            ["turnkeep_client.wire.conversations", "turnkeep.store.commands"],
            ["turnkeep.store.sqlite.turns", "turnkeep.store.postgres.turns"],
        ],
    )
    def test_one_concept_may_have_two_definitions(self, measure: Any, tree: Any, modules: list[str]) -> None:
        assert measure.homonyms(with_classes(tree, modules)) == []

    @pytest.mark.parametrize(
        "modules",
        [
            ["turnkeep.files.bag", "turnkeep.store.rules.files"],
            ["turnkeep_client.wire.agents", "turnkeep.store.rules.claims"],
            ["turnkeep_client.wire.agents", "turnkeep_client.wire.files"],
            ["turnkeep.model.agents", "turnkeep.model.files"],
            ["turnkeep.model.files", "turnkeep.store.commands"],
            ["turnkeep.store.sqlite.turns", "turnkeep.store.postgres.files"],
            ["turnkeep.store.sqlite.turns", "turnkeep.store.sqlite.files"],
            ["turnkeep_client.wire.files", "turnkeep.model.files", "turnkeep.store.commands"],
        ],
    )
    def test_any_other_pair_is_found(self, measure: Any, tree: Any, modules: list[str]) -> None:
        assert measure.homonyms(with_classes(tree, modules)) == [f"Same: {', '.join(modules)}"]


class TestFileNames:
    """Tests, the page and the manual use the same words as the modules."""

    @pytest.mark.parametrize(
        "folder", ["tests", "clients/js/src", "clients/js/test", "clients/react/src", "web/src", "web/test", "docs"]
    )
    def test_none_has_a_gerund(self, measure: Any, folder: str) -> None:
        nouns = measure.NOUNS_OF_THE_FIELD | NOT_GERUNDS
        assert [name for name, words in file_words(folder) if any(is_gerund(word, nouns) for word in words)] == []

    @pytest.mark.parametrize(
        "folder",
        [
            *("tests", "clients/js/src", "clients/js/test", "clients/react/src", "web/src", "web/test"),
            *("docs/reference", "docs/explanation"),
        ],
    )
    def test_each_word_is_in_the_glossary_or_in_common_use(self, folder: str) -> None:
        known = FIELD | FILE_WORDS | glossary()
        unknown = {word: name for name, words in file_words(folder) for word in words if not is_known(word, known)}
        assert unknown == {}, "Choose a common word, or explain it in docs/glossary.md."


class TestRooms:
    def test_modules_are_few(self, tree: Any) -> None:
        assert len(tree.modules) <= 305

    def test_hardly_any_has_a_single_importer(self, measure: Any, tree: Any) -> None:
        fragments = measure.with_one_importer(tree)
        # More when the whole house grows: a route has one importer, the app, and a wire has its routes and its stream.
        most = max(40, len(tree.modules) * 10 // 57)
        assert len(fragments) <= most, "\n".join(["A fragment belongs into its only importer:", *fragments])

    def test_a_new_field_of_a_conversation_touches_few_files(self, measure: Any) -> None:
        assert len(measure.files_of_a_field()) <= 9

    def test_constructors_are_short(self, measure: Any, tree: Any) -> None:
        found = list(measure.constructors(tree))
        assert {figure.name for figure in found if not figure.is_reached} == set()
        assert len(found) == len(measure.CONSTRUCTORS)

    def test_the_api_has_rooms(self, measure: Any) -> None:
        assert len(measure.files_of_api()) <= 10

    def test_each_package_says_what_it_is_for(self, tree: Any) -> None:
        short = [
            name
            for name, path in tree.paths.items()
            if path.name == "__init__.py" and len((tree.docstring(name) or "").split()) < 40
        ]
        assert short == [], "Say what the package answers for, what it must not know, and which file to read first."

    def test_wire_shapes_are_defined_once(self, measure: Any, tree: Any) -> None:
        assert measure.shared_wire_shapes(tree) == []


class TestLocks:
    def test_none_names_a_registry(self) -> None:
        """Packages come from the registry for which a machine is set up."""
        python = [path for path in (ROOT / "requirements").glob("*.txt") if "://" in path.read_text("utf-8")]
        node = [path for path in NODE_LOCKS if '"resolved"' in (ROOT / path).read_text("utf-8")]
        assert (python, node) == ([], [])


class TestDecisions:
    def test_every_record_is_cited_by_the_code_that_it_explains(self, measure: Any) -> None:
        assert measure.uncited_decisions() == []

    def test_every_citation_leads_to_a_record(self, measure: Any) -> None:
        records = {record.name[:4] for record in measure.decision_records()}
        assert measure.cited_decisions() <= records

    def test_the_index_lists_every_record(self, measure: Any) -> None:
        index = (ROOT / "docs/decisions/README.md").read_text(encoding="utf-8")
        listed = set(re.findall(r"\]\((\d{4}-[\w-]+\.md)\)", index)) - {"0000-template.md"}
        assert listed == {record.name for record in measure.decision_records()}


def with_classes(tree: Any, modules: list[str]) -> Any:
    """A tree in which each of these modules defines a class `Same`, and nothing else."""
    small = copy(tree)
    small.trees = {module: ast.parse("class Same: ...") for module in modules}
    return small


def glossary() -> frozenset[str]:
    """The words in the first column of the glossary's table."""
    text = (ROOT / "docs/glossary.md").read_text(encoding="utf-8")
    cells = re.findall(r"^\| ([^|]+) \|", text, re.MULTILINE)
    return frozenset(word for cell in cells for word in re.findall(r"[a-z]+", cell.lower()))


SUFFIXES = frozenset({".py", ".ts", ".tsx", ".mjs", ".css", ".md"})


def file_words(folder: str) -> list[tuple[str, list[str]]]:
    """The files of a folder that people write (not data, not what is generated), each with the words of its name."""
    paths = sorted(
        path for path in (ROOT / folder).rglob("*") if path.suffix in SUFFIXES and "node_modules" not in path.parts
    )
    names = [str(path.relative_to(ROOT)) for path in paths if path.name not in {"__init__.py", "README.md"}]
    return [(name, words_of(Path(name).name.partition(".")[0])) for name in names]


def words_of(name: str) -> list[str]:
    """`useAutoScroll`, `test_auto_scroll` and `auto-scroll` have the words auto and scroll."""
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z]+", name.removeprefix("test_").removeprefix("use"))]


def is_gerund(word: str, nouns: frozenset[str]) -> bool:
    return word.endswith("ing") and word not in nouns


def is_known(word: str, known: frozenset[str]) -> bool:
    """Also in the plural."""
    word = word.lower()
    return bool({word, word.removesuffix("s"), word.removesuffix("es"), word.removesuffix("ies") + "y"} & known)
