"""The tools of a sandbox, in real boxes."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.sandbox_runner.box_processes import says
from tests.sandbox_runner.harness import SMALL
from turnkeep.ids import CallId, ConversationId, OrgId, TurnId, WorkspaceId
from turnkeep.model.principals import Principal
from turnkeep.sandbox.boxes.ports import Box, Driver
from turnkeep.sandbox.tools import BoxAccess, BoxTools, StepProgress, shorten, step_name
from turnkeep.sandbox.workspace import SKILLS, BoxScript, BoxWorkspace, skill_files
from turnkeep.tools.ports import CallContext, Outcome
from turnkeep_client.wire.sandbox import SandboxSkill

CONTEXT = CallContext(
    call_id=CallId("call_1"),
    turn_id=TurnId("turn_1"),
    conversation_id=ConversationId("conv_1"),
    principal=Principal(org_id=OrgId(""), workspace_id=WorkspaceId(""), user_id=None, role="service"),
)

SKILL = SandboxSkill(
    name="sums",
    files={
        "SKILL.md": "# Sums\nAdds numbers.",
        "add.py": "#!/usr/bin/env python3\nimport json, sys\nprint(json.dumps({'sum': sum(json.load(sys.stdin))}))\n",
        "say": 'echo said "$@"\n',
    },
)

Use = Callable[..., Awaitable[Outcome]]


@pytest.fixture
def shown() -> list[tuple[str, str]]:
    """What was shown of steps while they ran."""
    return []


@pytest.fixture
def use(driver: Driver, box: Box, shown: list[tuple[str, str]]) -> Use:
    access = BoxAccess(
        box=box,
        script=BoxScript(box, driver.python),
        python=driver.python,
        progress=StepProgress(lambda call, text: shown.append((call, text)), every_seconds=0.05),
        environment={"GREETING": "hello"},
        step_seconds=15.0,
        result_chars=1_000,
        skills=(SKILL,),
    )
    tools = {tool.spec.name: tool for tool in BoxTools(access).all()}

    async def call(name: str, **args: Any) -> Outcome:
        return await tools[name].call(args, CONTEXT)

    return call


class TestCommands:
    async def test_a_shell_command_gives_output_and_errors_together(self, use: Use) -> None:
        outcome = await use("shell", command='echo "$GREETING"; echo oops >&2; pwd')
        assert outcome.result == "hello\noops\n/workspace"

    async def test_a_command_without_output_has_a_result_that_says_so(self, use: Use) -> None:
        assert (await use("shell", command="true")).result == "(no output)"

    async def test_a_failed_command_returns_its_exit_code_and_its_output(self, use: Use) -> None:
        assert (await use("shell", command="echo tried; exit 7")).error == "Exit code 7.\ntried"

    async def test_a_command_may_be_given_less_time_but_not_more(self, use: Use) -> None:
        outcome = await use("shell", command="echo begun; sleep 60", seconds=0.3)
        assert outcome.error is not None
        assert outcome.error.startswith("Stopped after")
        assert outcome.error.endswith("begun")

    async def test_files_stay_between_calls_and_nothing_else_does(self, use: Use) -> None:
        await use("shell", command="cd /tmp; echo kept > /workspace/kept; export LOST=1; sleep 100 &")
        assert (await use("shell", command="cat kept; echo [$LOST]; pwd")).result == "kept\n[]\n/workspace"

    async def test_python_runs_with_the_variables(self, use: Use) -> None:
        outcome = await use("python", code="import os\nprint(os.environ['GREETING'] * 2)")
        assert outcome.result == "hellohello"

    async def test_a_program_too_long_for_a_command_line_is_refused(self, use: Use) -> None:
        outcome = await use("python", code="#" * 200_000)
        assert outcome.error is not None
        assert "Write it to a file" in outcome.error

    async def test_long_output_keeps_its_beginning_and_its_end(self, use: Use) -> None:
        outcome = await use("shell", command="seq 1 5000")
        assert isinstance(outcome.result, str)
        assert len(outcome.result) <= 1_000
        assert outcome.result.startswith("1\n2\n")
        assert outcome.result.endswith("4999\n5000")

    async def test_bytes_that_are_not_text_are_replaced(self, use: Use) -> None:
        assert (await use("shell", command=r"printf 'a\xffb\0c\xc3'")).result == "a\ufffdb\0c\ufffd"

    async def test_output_is_shown_while_a_step_runs_and_not_afterwards(
        self, use: Use, shown: list[tuple[str, str]]
    ) -> None:
        await use("shell", command="for i in 1 2 3 4; do echo $i; sleep 0.1; done")
        count = len(shown)
        assert 1 <= count <= 8
        assert shown[0][0] == "call_1"
        assert shown[-1][1].startswith("1\n")
        await asyncio.sleep(0.1)
        assert len(shown) == count

    async def test_invalid_arguments_are_an_error_outcome(self, use: Use) -> None:
        for args in ({}, {"command": ""}, {"command": 5}, {"command": "x", "seconds": -1}, {"command": "x", "y": 1}):
            assert (await use("shell", **args)).error is not None


class TestRecipes:
    @pytest.fixture(autouse=True)
    async def _skills(self, driver: Driver, box: Box) -> None:
        workspace = BoxWorkspace(box, driver.python, SMALL.limits)
        await workspace.put(SKILLS, skill_files({SKILL.name: SKILL.files}))

    async def test_a_recipe_takes_arguments_and_json(self, use: Use) -> None:
        outcome = await use("run_recipe", skill="sums", recipe="say", arguments=["a b", "$c"])
        assert outcome.result == "said a b $c"
        assert (await use("run_recipe", skill="sums", recipe="add.py", input=[1, 2, 3])).result == {"sum": 6}

    async def test_only_the_files_of_a_skill_can_be_run(self, use: Use) -> None:
        for skill, recipe in (("sums", "SKILL.md"), ("sums", "../../../usr/bin/id"), ("other", "say"), ("sums", "")):
            outcome = await use("run_recipe", skill=skill, recipe=recipe)
            assert outcome.error == "There is no such recipe. Available: sums/add.py, sums/say."

    def test_its_step_has_its_name(self) -> None:
        assert step_name("run_recipe", {"skill": "sums", "recipe": "say"}) == "sums/say"
        assert step_name("run_recipe", {}) == "run_recipe"
        assert step_name("shell", {"skill": "x", "recipe": "y"}) == "shell"


class TestFiles:
    async def test_a_file_is_written_read_and_edited(self, box: Box, use: Use) -> None:
        written = await use("write_file", path="deep/er/note.txt", content="one\ntwo\nthree\n")
        assert written.result == "Wrote 14 bytes to deep/er/note.txt."
        assert (await use("read_file", path="deep/er/note.txt")).result == "one\ntwo\nthree"
        assert (await use("read_file", path="/workspace/deep/er/note.txt", first_line=2, lines=1)).result == (
            "two\n\n[1 more lines]"
        )
        assert (await use("edit_file", path="deep/er/note.txt", old="two", new="2\n")).error is None
        assert await says(box, "cat deep/er/note.txt") == "one\n2\n\nthree"

    async def test_an_executable_can_be_written(self, use: Use) -> None:
        await use("write_file", path="run.sh", content="#!/bin/sh\necho ran\n", executable=True)
        assert (await use("shell", command="./run.sh")).result == "ran"

    async def test_edits_must_be_unambiguous(self, use: Use) -> None:
        await use("write_file", path="x", content="aa bb aa")
        for old, words in (("aa", "occurs 2 times"), ("zz", "does not occur")):
            outcome = await use("edit_file", path="x", old=old, new="c")
            assert outcome.error is not None
            assert words in outcome.error
        await use("edit_file", path="x", old="aa", new="c", everywhere=True)
        assert (await use("read_file", path="x")).result == "c bb c"

    async def test_a_missing_or_binary_file_is_an_error_message(self, box: Box, use: Use) -> None:
        await says(box, r"printf '\0\1\2' > blob; ln -s /etc/shadow out")
        for path, words in (
            ("missing", "No such file"),
            ("blob", "not a text file"),
            ("out", "No such file"),
            ("assets", "Is a directory"),
        ):
            outcome = await use("read_file", path=path)
            assert outcome.error is not None
            assert words in outcome.error
        outcome = await use("write_file", path="/usr/x", content="y")
        assert outcome.error is not None

    async def test_a_link_out_of_the_workspace_does_not_reach_the_host(self, box: Box, use: Use) -> None:
        await says(box, "ln -s / everything; ln -s /proc/1/root hostroot")
        assert (await use("read_file", path="everything/etc/hostname")).error is not None
        assert (await use("read_file", path="hostroot/etc/hostname")).error is not None
        assert (await use("write_file", path="everything/usr/evil", content="x")).error is not None

    async def test_folders_are_listed_with_sizes(self, box: Box, use: Use) -> None:
        await says(box, "mkdir -p a/b/c; echo 12345 > a/five; touch a/b/c/deep; ln -s a/five link")
        outcome = await use("list_files", depth=2)
        assert outcome.result == "a/\nassets/\nlink -> a/five\na/b/\na/five  6 bytes"
        assert (await use("list_files", path="a/five")).error == "a/five is not a folder."

    async def test_files_are_searched_line_by_line(self, box: Box, use: Use) -> None:
        await says(box, "mkdir d; printf 'alpha\\nBeta\\n' > d/one.txt; echo beta > two.py; printf '\\0beta' > blob")
        assert (await use("grep_files", pattern="[Bb]eta")).result == "two.py:1:beta\nd/one.txt:2:Beta"
        assert (await use("grep_files", pattern="BETA", ignore_case=True, names="*.py")).result == "two.py:1:beta"
        assert (await use("grep_files", pattern="gamma")).result == "Nothing matches."
        assert (await use("grep_files", pattern="(")).error is not None

    async def test_a_full_disk_is_an_error_message(self, box: Box, use: Use) -> None:
        await says(box, "head -c 30000000 /dev/zero > big")
        outcome = await use("write_file", path="more", content="x" * 8_000_000)
        assert outcome.error is not None
        assert "No space left" in outcome.error


def test_what_is_cut_says_so() -> None:
    assert shorten("short ", 100) == "short"
    assert len(shorten("x" * 500, 100)) <= 100
    assert "500 characters in all" in shorten("x" * 500, 100)
