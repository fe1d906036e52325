"""What the demo model does with plain English when it has the tools of a box."""

from typing import Any

from turnkeep.providers.demo import BOX_TOOLS, answer_to, plan
from turnkeep.providers.ports import ModelRequest, ToolOffer
from turnkeep_client.wire.blocks import ToolUse

BOX = tuple(ToolOffer(name=name, description="", input_schema={}) for name in sorted(BOX_TOOLS))


def planned(asked: str) -> list[tuple[str, Any]]:
    return [(action.tool, next(iter(action.input.values()))) for action in plan(asked, BOX)]


def request(*messages: dict[str, Any], may_call: bool = True) -> ModelRequest:
    return ModelRequest(model="demo", messages=list(messages), tools=BOX, may_call=may_call)


class TestAPlan:
    def test_writes_runs_and_reads_in_the_order_asked_for(self) -> None:
        asked = 'Write notes.txt with "Hello"; run `wc assets/notes.txt`, then read data.csv'
        assert planned(asked) == [
            ("write_file", "assets/notes.txt"),
            ("shell", "wc assets/notes.txt"),
            ("read_file", "assets/data.csv"),
        ]

    def test_takes_what_is_quoted_as_it_is(self) -> None:
        [action] = plan('write a file todo.md saying "run ls"', BOX)
        assert action.input == {"path": "assets/todo.md", "content": "run ls\n"}

    def test_knows_a_few_ways_to_say_it(self) -> None:
        assert planned("run ls -la") == [("shell", "ls -la")]
        assert planned("What is in report.md?") == [("read_file", "assets/report.md")]
        assert planned("read the attachment") == [("shell", "head -c 2000 assets/*")]
        assert planned("list the files") == [("list_files", ".")]
        assert planned("read src/main.py") == [("read_file", "src/main.py")]

    def test_is_empty_for_everything_else_and_without_a_box(self) -> None:
        assert planned("hello there") == planned("write 300 words") == planned("show me a table") == []
        assert plan("run ls", BOX[:1]) == []


class TestATurnInABox:
    def test_takes_one_step_after_the_other_and_then_tells(self) -> None:
        asked = {"role": "user", "content": "run `echo one`; run `echo two`"}
        words, [first] = answer_to(request(asked))
        assert words == "I run `echo one`."
        assert isinstance(first, ToolUse)
        done = {"role": "tool", "tool_call_id": first.id, "content": "one"}
        _, [second] = answer_to(request(asked, {"role": "assistant", "content": words}, done))
        assert second.input == {"command": "echo two"}
        told, calls = answer_to(request(asked, done, {"role": "tool", "tool_call_id": second.id, "content": "two"}))
        assert calls == ()
        assert "> one" in told
        assert "> two" in told

    def test_tells_what_there_is_when_it_may_not_call_any_more(self) -> None:
        asked = {"role": "user", "content": "run `echo one`; run `echo two`"}
        told, calls = answer_to(request(asked, {"role": "tool", "content": "one"}, may_call=False))
        assert calls == ()
        assert "> one" in told
