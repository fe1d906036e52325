"""The tools of an agent in a sandbox: shell, Python, files, and the recipes of its skills. All of them run in the box.

A limit ends the step, never the turn: the model is told which one it was, with the output so far, and goes on.
"""

import asyncio
import codecs
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from turnkeep.sandbox.boxes.ports import WORKSPACE, Box, Command, Ended
from turnkeep.sandbox.envelope import Skill
from turnkeep.sandbox.workspace import SKILLS, Inside, Refusal
from turnkeep.tools.functions import FunctionTool, tool
from turnkeep.tools.ports import CallContext, Outcome
from turnkeep_client.wire.blocks import JsonObject, JsonValue

COMMAND_CHARS = 100_000
"""The kernel takes 128 KiB as one argument."""
FILE_SECONDS = 30.0
AT_ONCE = 4
"""So many calls of one turn run side by side; a model may ask for a hundred in one breath."""
ENGINE_SECONDS = 86_400.0
"""The engine's own clock for a tool. It is the box that keeps the time of a step, and the turn has a limit too."""

EVERY_SECONDS = 1.0
SHOWN_CHARS = 2_000
MOST_LINES = 120
"""Of one step. After two minutes the rate falls: each line then waits twice as long as the one before."""

Path = Annotated[str, Meta(description="Relative to /workspace, or absolute.")]
Seconds = Annotated[float, Meta(gt=0, description="Stop after so long. Left out: as long as one step may take.")]

_LIMITS = {
    "time": "the time limit",
    "memory": "the memory limit",
    "processes": "the limit of processes",
    "output": "the output limit; write long output to a file",
}


Show = Callable[[str, str], None]
"""Takes the id of a call and the end of its output."""


class Progress:
    """Shows the output of the steps of one turn."""

    def __init__(self, show: Show, *, every_seconds: float = EVERY_SECONDS) -> None:
        self._show = show
        self._every = every_seconds

    def listen(self, call_id: str) -> "Heard":
        return Heard(lambda text: self._show(call_id, text), self._every)


class Heard:
    """What one step has said so far."""

    def __init__(self, show: Callable[[str], None], every_seconds: float) -> None:
        self._show = show
        self._wait = every_seconds
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._pieces: list[str] = []
        self._lines = 0
        self._timer: asyncio.TimerHandle | None = None

    def add(self, piece: bytes) -> None:
        self._pieces.append(self._decoder.decode(piece))
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._wait, self._tell)

    def text(self) -> str:
        """All of it. The step has ended."""
        return "".join(self._pieces) + self._decoder.decode(b"", final=True)

    def stop(self) -> None:
        """Show nothing more."""
        if self._timer is not None:
            self._timer.cancel()

    def _tell(self) -> None:
        self._timer = None
        self._lines += 1
        if self._lines >= MOST_LINES:
            self._wait *= 2
        self._pieces = ["".join(self._pieces)]
        self._show(self._pieces[0][-SHOWN_CHARS:])


class Bench(Struct, frozen=True, kw_only=True):
    """What the tools of one turn work with."""

    box: Box
    inside: Inside
    python: Sequence[str]
    progress: Progress
    environment: Mapping[str, str]
    step_seconds: float
    result_chars: int
    skills: tuple[Skill, ...] = ()


class BoxTools:
    """The tools, as methods; `all` gives them as the engine wants them."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._hands = asyncio.Semaphore(AT_ONCE)

    def all(self) -> list[FunctionTool]:
        running: list[Callable[..., Any]] = [
            self.shell,
            self.python,
            *([self.run_recipe] if self._bench.skills else []),
        ]
        reading: list[Callable[..., Any]] = [
            self.read_file,
            self.write_file,
            self.edit_file,
            self.list_files,
            self.grep_files,
        ]
        return [tool(timeout_seconds=ENGINE_SECONDS)(each) for each in (*running, *reading)]

    async def shell(
        self,
        context: CallContext,
        command: Annotated[str, Meta(min_length=1, description="Run by bash, in /workspace.")],
        seconds: Seconds | None = None,
    ) -> Outcome:
        """Run a shell command and get its output and errors. Each call starts afresh in /workspace; only files stay.

        There is no network. Processes that are left running end with the call.
        """
        return await self._run(context, ["/bin/bash", "-c", command], seconds=seconds)

    async def python(
        self,
        context: CallContext,
        code: Annotated[str, Meta(min_length=1, description="A whole program. Print what you want to see.")],
        seconds: Seconds | None = None,
    ) -> Outcome:
        """Run a Python program in /workspace and get what it prints."""
        return await self._run(context, [self._bench.python[0], "-c", code], seconds=seconds)

    async def run_recipe(
        self,
        context: CallContext,
        skill: Annotated[str, Meta(description="The name of the skill.")],
        recipe: Annotated[str, Meta(description="The program's path inside the skill, such as recipes/chart.sh.")],
        arguments: Annotated[list[str], Meta(description="Its command line.")] = [],  # noqa: B006 - copied by `tool`
        input: Annotated[JsonValue, Meta(description="Given to it on standard input, as JSON.")] = None,
        seconds: Seconds | None = None,
    ) -> Outcome:
        """Run a program of a skill, in /workspace. Read the skill's SKILL.md first."""
        found = next((each for each in self._bench.skills if each.name == skill), None)
        if found is None or recipe not in found.files or recipe == "SKILL.md":
            return Outcome(error=f"There is no such recipe. Available: {', '.join(recipes_of(self._bench.skills))}.")
        feed = b"" if input is None else msgspec.json.encode(input)
        shell = () if found.files[recipe].startswith("#!") else ("/bin/bash",)
        program = (*shell, f"{SKILLS}/{skill}/{recipe}", *arguments)
        outcome = await self._run(context, program, seconds=seconds, feed=feed)
        return outcome if outcome.error is not None else Outcome(result=_as_json(outcome.result))

    async def read_file(
        self,
        path: Path,
        first_line: Annotated[int, Meta(ge=1)] = 1,
        lines: Annotated[int, Meta(ge=1, le=10_000)] = 1_000,
    ) -> Outcome:
        """Read a text file, or some of its lines."""
        return await self._ask("read", {"path": path, "first_line": first_line, "lines": lines})

    async def write_file(self, path: Path, content: str, executable: bool = False) -> Outcome:
        """Write a file, with the folders it needs. Files below assets/ are given to the user when you are done."""
        data = content.encode("utf-8", "replace")
        return await self._ask("write", {"path": path, "size": len(data), "executable": executable}, data=data)

    async def edit_file(
        self,
        path: Path,
        old: Annotated[str, Meta(min_length=1, description="Must occur exactly once, unless `everywhere`.")],
        new: str,
        everywhere: bool = False,
    ) -> Outcome:
        """Replace a piece of a text file."""
        return await self._ask("edit", {"path": path, "old": old, "new": new, "everywhere": everywhere})

    async def list_files(self, path: Path = ".", depth: Annotated[int, Meta(ge=1, le=20)] = 3) -> Outcome:
        """List a folder, with sizes."""
        return await self._ask("list", {"path": path, "depth": depth, "most": 500})

    async def grep_files(
        self,
        pattern: Annotated[str, Meta(min_length=1, description="A regular expression, as Python writes them.")],
        path: Path = ".",
        names: Annotated[str, Meta(description="Only files of such names, as in *.py.")] = "",
        ignore_case: bool = False,
    ) -> Outcome:
        """Search text files line by line."""
        request = {"pattern": pattern, "path": path, "names": names, "ignore_case": ignore_case, "most": 200}
        return await self._ask("grep", request)

    async def _ask(self, verb: str, request: JsonObject, *, data: bytes = b"") -> Outcome:
        try:
            async with self._hands:
                answer = await self._bench.inside.ask(verb, request, data=data, seconds=FILE_SECONDS)
        except Refusal as exc:
            return Outcome(error=str(exc))
        return Outcome(result=shorten(str(answer), self._bench.result_chars))

    async def _run(
        self, context: CallContext, argv: Sequence[str], *, seconds: float | None, feed: bytes = b""
    ) -> Outcome:
        if any(len(part.encode("utf-8", "replace")) > COMMAND_CHARS or "\0" in part for part in argv):
            return Outcome(error="That is too long for a command line. Write it to a file, then run the file.")
        bench = self._bench
        heard = bench.progress.listen(context.call_id)
        command = Command(
            argv=argv,
            environment=bench.environment,
            feed=feed,
            seconds=min(seconds or bench.step_seconds, bench.step_seconds),
            directory=WORKSPACE,
            on_output=heard.add,
        )
        try:
            async with self._hands:
                ended = await bench.box.run(command)
        finally:
            heard.stop()
        return outcome_of(ended, heard.text(), limit=bench.result_chars)


def outcome_of(ended: Ended, text: str, *, limit: int) -> Outcome:
    """What a command came to: its output, or what went wrong and the output so far."""
    if ended.stopped_by is not None:
        head = f"Stopped after {ended.seconds:.1f} s: {_LIMITS[ended.stopped_by]}."
    elif ended.exit_code == 0:
        return Outcome(result=shorten(text, limit) or "(no output)")
    elif ended.exit_code == 137:
        head = "Killed, probably for the memory it used (exit code 137)."
    else:
        head = f"Exit code {ended.exit_code}."
    return Outcome(error=f"{head}\n{shorten(text, limit - len(head) - 1)}".rstrip())


def shorten(text: str, limit: int) -> str:
    """The beginning and the end of a long text: what went wrong mostly stands at the end."""
    text = text.rstrip()
    if len(text) <= limit:
        return text
    note = f"\n[… {len(text):,} characters in all …]\n"
    half = max(0, limit - len(note)) // 2
    return f"{text[:half]}{note}{text[len(text) - half :]}"


def recipes_of(skills: Sequence[Skill]) -> list[str]:
    return [f"{skill.name}/{path}" for skill in skills for path in skill.files if path != "SKILL.md"]


def step_name(name: str, args: JsonObject) -> str:
    """A step is called after what it ran: the recipe where there is one, else the tool."""
    if name == "run_recipe" and isinstance(args.get("skill"), str) and isinstance(args.get("recipe"), str):
        return f"{args['skill']}/{args['recipe']}"
    return name


def _as_json(text: JsonValue) -> JsonValue:
    """A recipe that prints a JSON object or list returned that; any other text is text."""
    if not isinstance(text, str) or not text.startswith(("{", "[")):
        return text
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text
