"""The tools of an agent in a sandbox: shell, Python, files, and the recipes of its skills. All of them run in the box.

A limit ends the step, never the turn: the model gets the name of the limit and the output so far, and goes on.

While a step runs, its output is shown at a limited rate: the step is sent again as `running`, with the end of its
output as its result. Every such line becomes a durable event of the turn, so there are few of them, and they are short.
"""

import asyncio
import codecs
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from turnkeep.sandbox.boxes.ports import WORKSPACE, Box, BoxCommand, Ended
from turnkeep.sandbox.workspace import SKILLS, BoxScript, ScriptRefused
from turnkeep.tools.functions import FunctionTool, tool
from turnkeep.tools.ports import CallContext, Outcome, Tool
from turnkeep.tools.waits import AskingTool, identity_of
from turnkeep_client.wire.blocks import JsonObject, JsonValue
from turnkeep_client.wire.sandbox import SandboxSkill

COMMAND_CHARS = 100_000
"""The kernel takes 128 KiB as one argument."""
FILE_SECONDS = 30.0
AT_ONCE = 4
"""Maximum number of calls of one turn that run at once. A model may ask for a hundred in one reply."""
ENGINE_SECONDS = 86_400.0
"""The engine's limit of a tool's time, longer than any step: the box limits a step, and the turn has a limit too."""
EVERY_SECONDS = 1.0
SHOWN_CHARS = 2_000
FULL_RATE_LINES = 120
"""Lines of one step at the full rate. After that, each line waits twice as long as the one before."""

Path = Annotated[str, Meta(description="Relative to /workspace, or absolute.")]
Seconds = Annotated[float, Meta(gt=0, description="Stop after this many seconds. Default: the limit of one step.")]

_LIMITS = {
    "time": "the time limit",
    "memory": "the memory limit",
    "processes": "the limit of processes",
    "output": "the output limit; write long output to a file",
}


Show = Callable[[str, str], None]
"""Takes the id of a call and the end of its output."""


class StepProgress:
    """Shows the output of the steps of one turn."""

    def __init__(self, show: Show, *, every_seconds: float = EVERY_SECONDS) -> None:
        self._show = show
        self._every = every_seconds

    def start(self, call_id: str) -> "StepOutput":
        return StepOutput(lambda text: self._show(call_id, text), self._every)


class StepOutput:
    """The output of one step so far."""

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
            self._timer = asyncio.get_running_loop().call_later(self._wait, self._show_tail)

    def text(self) -> str:
        """The whole output, after the step has ended."""
        return "".join(self._pieces) + self._decoder.decode(b"", final=True)

    def stop(self) -> None:
        """Show nothing more."""
        if self._timer is not None:
            self._timer.cancel()

    def _show_tail(self) -> None:
        self._timer = None
        self._lines += 1
        if self._lines >= FULL_RATE_LINES:
            self._wait *= 2
        self._pieces = ["".join(self._pieces)]
        self._show(self._pieces[0][-SHOWN_CHARS:])


class BoxAccess(Struct, frozen=True, kw_only=True):
    """The box of one turn, and the settings of the tools that use it."""

    box: Box
    script: BoxScript
    python: Sequence[str]
    progress: StepProgress
    environment: Mapping[str, str]
    step_seconds: float
    result_chars: int
    skills: tuple[SandboxSkill, ...] = ()


class BoxTools:
    """The tools, as methods; `all` returns them as the engine needs them."""

    def __init__(self, access: BoxAccess) -> None:
        self._access = access
        self._slots = asyncio.Semaphore(AT_ONCE)

    def all(self) -> list[FunctionTool]:
        running: list[Callable[..., Any]] = [
            self.shell,
            self.python,
            *([self.run_recipe] if self._access.skills else []),
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
        return await self._run(context, [self._access.python[0], "-c", code], seconds=seconds)

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
        found = next((each for each in self._access.skills if each.name == skill), None)
        if found is None or recipe not in found.files or recipe == "SKILL.md":
            return Outcome(error=f"There is no such recipe. Available: {', '.join(recipes_of(self._access.skills))}.")
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
            async with self._slots:
                answer = await self._access.script.ask(verb, request, data=data, seconds=FILE_SECONDS)
        except ScriptRefused as exc:
            return Outcome(error=str(exc))
        return Outcome(result=shorten(str(answer), self._access.result_chars))

    async def _run(
        self, context: CallContext, argv: Sequence[str], *, seconds: float | None, feed: bytes = b""
    ) -> Outcome:
        if any(len(part.encode("utf-8", "replace")) > COMMAND_CHARS or "\0" in part for part in argv):
            return Outcome(error="That is too long for a command line. Write it to a file, then run the file.")
        access = self._access
        output = access.progress.start(context.call_id)
        command = BoxCommand(
            argv=argv,
            environment=access.environment,
            feed=feed,
            seconds=min(seconds or access.step_seconds, access.step_seconds),
            directory=WORKSPACE,
            on_output=output.add,
        )
        try:
            async with self._slots:
                ended = await access.box.run(command)
        finally:
            output.stop()
        return outcome_of(ended, output.text(), limit=access.result_chars)


def outcome_of(ended: Ended, text: str, *, limit: int) -> Outcome:
    """The outcome of a command: its output, or what went wrong and the output so far."""
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
    """The beginning and the end of a long text: errors are mostly at the end."""
    text = text.rstrip()
    if len(text) <= limit:
        return text
    note = f"\n[… {len(text):,} characters in all …]\n"
    half = max(0, limit - len(note)) // 2
    return f"{text[:half]}{note}{text[len(text) - half :]}"


def recipes_of(skills: Sequence[SandboxSkill]) -> list[str]:
    return [f"{skill.name}/{path}" for skill in skills for path in skill.files if path != "SKILL.md"]


def asking_tools(tools: Sequence[Tool], asks: Set[str], skills: Sequence[SandboxSkill]) -> list[Tool]:
    """The tools, with those marked whose calls a person must allow. `asks` has names of tools, and recipes as
    `skill/path`."""
    files = {f"{skill.name}/{path}": text for skill in skills for path, text in skill.files.items()}

    def recipe_asked(args: JsonObject) -> str | None:
        name = step_name("run_recipe", args)
        return identity_of(f"sandbox:{name}", {"text": files.get(name)}) if name in asks else None

    marked: list[Tool] = []
    for each in tools:
        name = each.spec.name
        if name in asks:
            marked.append(AskingTool(each, f"sandbox:{name}"))
        elif name == "run_recipe" and not asks.isdisjoint(files):
            marked.append(AskingTool(each, recipe_asked))
        else:
            marked.append(each)
    return marked


def step_name(name: str, args: JsonObject) -> str:
    """The name of a step: the recipe if it runs one, else the tool."""
    if name == "run_recipe" and isinstance(args.get("skill"), str) and isinstance(args.get("recipe"), str):
        return f"{args['skill']}/{args['recipe']}"
    return name


def _as_json(text: JsonValue) -> JsonValue:
    """The JSON object or list that a recipe printed; any other output stays text."""
    if not isinstance(text, str) or not text.startswith(("{", "[")):
        return text
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text
