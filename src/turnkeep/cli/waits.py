"""Calls for which a turn waits, on a terminal: the user is asked about approvals, and client tools are run here.

A client tool of the terminal is a local command that the user has named. It gets the arguments as JSON on standard
input. Its standard output is the result.
"""

import json
import os
import re
import shlex
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from turnkeep.cli.keyboard import Withdrawal, Withdrawn
from turnkeep.cli.output import moment
from turnkeep.errors import AlreadyDecided, InvalidRequest, NotFound, TurnkeepError
from turnkeep_client.sync import Stream, Turnkeep
from turnkeep_client.wire import Turn
from turnkeep_client.wire.blocks import JsonObject, JsonValue
from turnkeep_client.wire.events import Decided, DecidedCall, Failure, Result, ToolCall, TurnBegan

if TYPE_CHECKING:
    from turnkeep.cli.screen import Screen

TOOL_SECONDS = 600.0
"""How long a local command may run."""
ERROR_CHARS = 4_000
CLOSE_SECONDS = 0.1
"""After which a stream is closed again. One that is closed before it is read is opened by its reader."""
PROGRAMS = {"command", "cmd", "script", "code", "sql"}
"""Arguments that are programs. They are shown line by line."""
TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
CHOICES = "[y]es, [n]o, [e]dit the arguments, [a]lways in this conversation, [l]ater"


class LocalTool(Struct, frozen=True, kw_only=True):
    """A client tool that is a command of this machine."""

    name: str
    command: tuple[str, ...]
    description: str
    input_schema: JsonObject

    @property
    def declared(self) -> JsonObject:
        """The tool as a turn is told of it."""
        return {
            "type": "client",
            "name": self.name,
            "description": self.description,
            "input_schema": self.input_schema,
        }

    def run(self, args: JsonObject) -> JsonObject:
        """Run the command; its result, or its error."""
        try:
            done = subprocess.run(
                self.command,
                input=msgspec.json.encode(args),
                capture_output=True,
                timeout=TOOL_SECONDS,
                start_new_session=True,  # Ctrl-C is for the chat, which then stops waiting
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as exc:
            return {"error": f"{self.command[0]} could not be run: {exc}"[:ERROR_CHARS]}
        if done.returncode != 0:
            told = done.stderr.decode(errors="replace").strip()[-ERROR_CHARS:]
            return {"error": told or f"{self.command[0]} ended with exit code {done.returncode}."}
        return {"result": _value_of(done.stdout)}


class _ToolFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A JSON file that describes a local tool."""

    name: str
    command: list[str]
    description: str = ""
    input_schema: JsonObject = {}


def local_tools(given: Sequence[str]) -> dict[str, LocalTool]:
    """The tools of `--client-tool`: `NAME=COMMAND`, or a JSON file. Raises InvalidRequest, and NotFound for a file."""
    tools: dict[str, LocalTool] = {}
    for text in given:
        name, is_pair, command = text.partition("=")
        tool = _tool_of(name, command) if is_pair and TOOL_NAME.fullmatch(name) else _read_tool(Path(text))
        if tool.name in tools:
            raise InvalidRequest(f"There are two client tools called {tool.name}.")
        tools[tool.name] = tool
    return tools


def _tool_of(name: str, command: str) -> LocalTool:
    try:
        words = tuple(shlex.split(command))
    except ValueError as exc:
        raise InvalidRequest(f"The command of {name} cannot be read: {exc}.") from exc
    if not words:
        raise InvalidRequest(f"Say which command {name} runs: --client-tool {name}=COMMAND")
    return LocalTool(
        name=name,
        command=words,
        description=f"Runs `{command}` on the user's computer, with the arguments as JSON on standard input.",
        input_schema={"type": "object"},
    )


def _read_tool(file: Path) -> LocalTool:
    if file.suffix != ".json":
        raise InvalidRequest(f"--client-tool {file} is neither NAME=COMMAND nor a JSON file.")
    try:
        found = msgspec.json.decode(file.expanduser().read_bytes(), type=_ToolFile)
    except OSError as exc:
        raise NotFound(f"There is no file {file}.") from exc
    except msgspec.MsgspecError as exc:
        raise InvalidRequest(f"{file} does not describe a tool: {exc}") from exc
    if not TOOL_NAME.fullmatch(found.name) or not found.command:
        raise InvalidRequest(f"{file} needs a `name` (letters, digits, _ and -) and a `command` (a list of words).")
    return LocalTool(
        name=found.name,
        command=tuple(os.path.expanduser(word) for word in found.command),
        description=found.description,
        input_schema=found.input_schema,
    )


def _value_of(output: bytes) -> JsonValue:
    """JSON as it is, and anything else as a text."""
    text = output.decode(errors="replace").strip()
    try:
        value: JsonValue = json.loads(text)
    except ValueError:
        return text
    return value


class WaitingCalls:
    """Answers the calls for which a turn waits, as far as this terminal can."""

    def __init__(
        self,
        turnkeep: Turnkeep,
        tools: Mapping[str, LocalTool],
        ask: "Callable[[ToolCall, Turn], JsonObject | None] | None",
        tell: Callable[[str], None],
    ) -> None:
        """`ask` returns a decision about a call, or None to leave it open. None in its place: there is no user here.
        `tell` shows a line to the user."""
        self._turnkeep = turnkeep
        self._tools = tools
        self._ask = ask
        self._tell = tell

    def answer(self, turn_id: str) -> Turn | None:
        """Answer what can be answered here. The turn, if it still waits for something; None if it goes on.

        A replay tells of waits that are over. So the turn is asked what it waits for now.
        """
        turn = self._turnkeep.turns.get(turn_id)
        waiting = turn.waiting_for
        if waiting is None:
            return None
        is_approval = waiting.type == "approval"
        for call in waiting.client_calls if is_approval else waiting.calls:
            turn = self._run(turn, call)
        for call in waiting.calls if is_approval else ():
            turn = self._decide(turn, call)
        return turn if turn.waiting_for is not None else None

    def _run(self, turn: Turn, call: ToolCall) -> Turn:
        tool = self._tools.get(call.name)
        if tool is None:
            return turn
        self._tell(f"running {call.name}: {shlex.join(tool.command)}")
        result = tool.run(call.args)
        if "error" in result:
            self._tell(f"{call.name} failed: {result['error']}")
        return self._send(turn, lambda: self._turnkeep.turns.results(turn.id, [{"call_id": call.id, **result}]))

    def _decide(self, turn: Turn, call: ToolCall) -> Turn:
        while self._ask is not None:
            try:
                decision = self._asked(self._ask, call, turn)
                if decision is None:
                    break
                sent = {"call_id": call.id, **decision}
                return self._send(turn, lambda sent=sent: self._turnkeep.turns.decide(turn.id, [sent]))  # type: ignore[misc]
            except Withdrawn as exc:
                self._tell(str(exc))
                return self._turnkeep.turns.get(turn.id)
            except InvalidRequest as exc:
                self._tell(exc.detail)  # the arguments do not fit the tool; the user is asked again
        return turn

    def _asked(
        self, ask: "Callable[[ToolCall, Turn], JsonObject | None]", call: ToolCall, turn: Turn
    ) -> JsonObject | None:
        """What the user decides; None to leave it open. Raises Withdrawn once another decision holds."""
        withdrawal, stream = Withdrawal(), self._turnkeep.turns.follow(turn.id)
        watching = threading.Thread(
            target=self._watch, args=(stream, turn.id, call, withdrawal), name="decisions elsewhere", daemon=True
        )
        try:
            with withdrawal:
                watching.start()
                return ask(call, turn)
        finally:
            while watching.is_alive():
                with suppress(RuntimeError):  # the thread is just opening it; the next try closes it
                    stream.close()
                watching.join(CLOSE_SECONDS)

    def _watch(self, stream: Stream, turn_id: str, call: ToolCall, withdrawal: Withdrawal) -> None:
        """Withdraw the question about a call that does not wait any more. The stream only says when to look: its replay
        tells of earlier waits too. It ends when it is closed."""
        made: DecidedCall | None = None
        with suppress(TurnkeepError, CancelledError):
            for event in stream:
                if isinstance(event, Decided):
                    made = next((each for each in event.decisions if each.call_id == call.id), made)
                if isinstance(event, Decided | TurnBegan | Result | Failure) and not self._is_open(turn_id, call):
                    withdrawal.withdraw(_why_withdrawn(made))
                    return

    def _is_open(self, turn_id: str, call: ToolCall) -> bool:
        waiting = self._turnkeep.turns.get(turn_id).waiting_for
        return waiting is not None and any(each.id == call.id for each in waiting.calls)

    def _send(self, turn: Turn, send: Callable[[], Turn]) -> Turn:
        """What the server says, also if another answer came first."""
        try:
            return send()
        except InvalidRequest:
            raise
        except AlreadyDecided as exc:
            held = {"allow": "It was already allowed.", "deny": "It was already denied."}.get(exc.decision or "")
            self._tell(held or "It was already answered.")
        except TurnkeepError as exc:
            self._tell(exc.detail)
        return self._turnkeep.turns.get(turn.id)


def _why_withdrawn(made: DecidedCall | None) -> str:
    if made is None:
        return "This needs no decision any more: the turn was stopped, or the time is over."
    edited = "" if made.args is None else f", with other arguments: {visible_json(made.args)}"
    reason = f": {visible(made.reason)}" if made.reason else ""
    return f"{'Allowed' if made.decision == 'allow' else 'Denied'} by {visible(made.by)}{edited}{reason}"


class ApprovalPrompt:
    """Asks the user about a call."""

    def __init__(self, screen: "Screen", read: Callable[[str, str], str | None]) -> None:
        """`read` reads a line after a label, with a text that is already in it; None at the end of the input."""
        self._screen = screen
        self._read = read

    def __call__(self, call: ToolCall, turn: Turn) -> JsonObject | None:
        """The decision; None to leave it open."""
        self._show(call, turn)
        while True:
            word = self._read(f"Allow it? {CHOICES}", "")
            match None if word is None else word.strip().lower():
                case "y" | "yes":
                    return {"decision": "allow"}
                case "n" | "no":
                    reason = self._read("Why not? The assistant is told; Enter gives no reason", "")
                    return None if reason is None else {"decision": "deny", **({"reason": reason} if reason else {})}
                case "a" | "always":
                    return {"decision": "allow", "remember": "conversation"}
                case "e" | "edit":
                    if (args := self._edited(call)) is not None:
                        return {"decision": "allow", "args": args}
                case "l" | "later" | None:
                    return None
                case _:
                    self._screen.print_line("Type y, n, e, a or l.", style="dim")

    def _show(self, call: ToolCall, turn: Turn) -> None:
        self._screen.print_line(f"? The assistant wants to call {visible(call.name)}", style="bold yellow")
        for line in lines_of(call.args):
            self._screen.print_line(f"    {line}")
        if turn.waiting_for is not None:
            until = moment(turn.waiting_for.expires_at)
            self._screen.print_line(f"  Without a decision until {until} it counts as denied.", style="dim")

    def _edited(self, call: ToolCall) -> JsonObject | None:
        text: str | None = visible_json(call.args)
        while (text := self._read("Arguments, as JSON; an empty line goes back", text or "")) and text.strip():
            try:
                return msgspec.json.decode(text, type=dict[str, Any])
            except msgspec.MsgspecError as exc:
                self._screen.print_line(f"These are not the arguments as a JSON object: {exc}", style="red")
        return None


def lines_of(args: JsonObject) -> list[str]:
    """Arguments for a reader who decides about them: programs as they are, other values as JSON."""
    lines: list[str] = []
    for name, value in args.items():
        if isinstance(value, str) and name in PROGRAMS:
            lines += [f"{visible(name)}:", *(f"  $ {visible(line)}" for line in value.split("\n"))]
            continue
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2)
        first, *rest = [visible(line) for line in text.split("\n")]
        lines += [f"{visible(name)}: {first}", *(f"  {line}" for line in rest)]
    return lines or ["(no arguments)"]


def visible_json(value: JsonValue) -> str:
    """The value as JSON in which every character can be seen. It is the same value when it is read again."""
    text = msgspec.json.encode(value).decode()
    return "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in text)


def visible(text: str) -> str:
    """The text with each character that cannot be seen, or changes the order of others, written out: what is allowed
    must be what is read."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
