"""Tools from the operator's own files and modules."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from turnkeep.errors import InvalidRequest
from turnkeep.tools.functions import load_tools
from turnkeep.tools.registry import ToolRegistry

HEAD = "from turnkeep.tools.functions import tool\n"
WEATHER = f'{HEAD}@tool\ndef weather(city: str) -> str:\n    """The forecast."""\n    return city\n'


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder in which a server is started; what is imported from it is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


class TestPlaces:
    def test_a_file(self, here: Path) -> None:
        (here / "tools.py").write_text(WEATHER)
        [tool] = load_tools(["tools.py"])
        assert (tool.spec.name, tool.spec.description) == ("weather", "The forecast.")

    def test_a_module_of_the_folder(self, here: Path) -> None:
        (here / "shop").mkdir()
        (here / "shop" / "__init__.py").touch()
        (here / "shop" / "desk.py").write_text(WEATHER)
        assert [tool.spec.name for tool in load_tools(["shop.desk"])] == ["weather"]

    def test_hints_that_are_written_as_text_are_understood(self, here: Path) -> None:
        (here / "tools.py").write_text(
            f"from __future__ import annotations\n{HEAD}from datetime import date\n"
            "@tool\nasync def at(day: date) -> str:\n    return str(day)\n"
        )
        [tool] = load_tools(["tools.py"])
        assert tool.spec.input_schema["properties"] == {"day": {"type": "string", "format": "date"}}

    def test_several_in_order_and_a_shared_one_once(self, here: Path) -> None:
        (here / "first.py").write_text(WEATHER)
        (here / "second.py").write_text(f"from first import weather\n{HEAD}@tool\ndef wind() -> str:\n    return ''\n")
        assert [tool.spec.name for tool in load_tools(["first", "second"])] == ["weather", "wind"]

    def test_none(self) -> None:
        assert load_tools([]) == []


class TestRefused:
    @pytest.mark.parametrize(
        "place, text, said",
        [
            ("gone.py", None, "gone.py, and there is no such file"),
            ("gone.away", None, "gone.away, which fails: ModuleNotFoundError"),
            ("tools.py", "def (", "tools.py, which fails: SyntaxError"),
            ("tools.py", "1 / 0", "tools.py, which fails: ZeroDivisionError: division by zero"),
            ("tools.py", f"{HEAD}@tool\ndef any(*all): ...\n", "cannot be called by name"),
            ("tools.py", "def weather(): ...\n", "tools.py, which has no tool: decorate a function with @tool"),
        ],
    )
    def test_code_without_a_tool_is_named_with_the_reason(
        self, here: Path, place: str, text: str | None, said: str
    ) -> None:
        if text is not None:
            (here / place).write_text(text)
        with pytest.raises(InvalidRequest, match=re.escape(said)):
            load_tools([place])

    def test_two_with_one_name(self, here: Path) -> None:
        (here / "first.py").write_text(WEATHER)
        (here / "second.py").write_text(WEATHER)
        with pytest.raises(InvalidRequest, match=r"two tools are called weather, one of them in second\.py"):
            load_tools(["first.py", "second.py"])

    def test_the_name_of_a_tool_that_is_there_already(self, here: Path) -> None:
        (here / "tools.py").write_text(WEATHER)
        [tool] = load_tools(["tools.py"])
        with pytest.raises(InvalidRequest, match="Two tools are called weather"):
            ToolRegistry([tool, tool])
