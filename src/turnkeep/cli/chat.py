"""`turnkeep chat`: a conversation in the terminal, or one question and its answer for a script.

`ChatSession` is the loop of a chat: its prompt, its commands, and turns that are drawn while they run. `Prompt` reads a
line, with line editing, history and Tab completion through readline. Rich is imported only where a turn is drawn.
"""

import contextlib
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict

import msgspec
import typer
from msgspec import Struct

from turnkeep.cli.file_io import download_file, upload_file
from turnkeep.cli.keyboard import TypeAhead, Withdrawn
from turnkeep.cli.lookup import find_agent
from turnkeep.cli.markdown import message_as_markdown, step_in_words
from turnkeep.cli.output import (
    clean_line,
    is_clean_line,
    moment,
    print_json,
    print_lines,
    print_text,
    remark,
    say,
    size_of,
)
from turnkeep.cli.server_options import AsJson, ServerOptions, asks_a_server
from turnkeep.cli.waits import ApprovalPrompt, LocalTool, WaitingCalls, local_tools
from turnkeep.errors import InvalidRequest, NotFound, TurnkeepError
from turnkeep_client.discovery import LOCAL_USER
from turnkeep_client.errors import failed
from turnkeep_client.retry import Trouble
from turnkeep_client.stream import Approval, ClientCalls, Delta, Files, Result, Steered, Step, ToolCalls
from turnkeep_client.sync import Stream, Turnkeep
from turnkeep_client.wire import Conversation, File, Turn
from turnkeep_client.wire.blocks import JsonObject, StepPart

if TYPE_CHECKING:
    from turnkeep.cli.screen import LiveView

CHAT_PATIENCE_SECONDS = 300.0
"""Longer than for other commands: the user sees that the connection is lost, and may leave at any time."""
HISTORY = 15
SHOWN_MESSAGES = 6
HISTORY_LINES = 1_000
INCOMPLETE = {
    "length": "The model reached its token limit: the answer is not complete.",
    "empty": "The model gave an empty answer.",
}
STEERED = "steered"
"""The code of a queued turn whose words have reached the turn before it."""
BOLD, PLAIN = "\001\033[1;36m\002", "\001\033[0m\002"
"""\001 and \002 tell readline that the bytes between them take no room on the line."""


@asks_a_server
def chat(
    server: ServerOptions,
    message: Annotated[
        str | None, typer.Argument(help="Ask one question and exit. Without it, and with a terminal, a chat begins.")
    ] = None,
    conversation: Annotated[str | None, typer.Option("--conversation", "-c", help="Continue conv_… or `last`.")] = None,
    model: Annotated[str | None, typer.Option("--model", "-m", help="As `turnkeep models` lists it.")] = None,
    agent: Annotated[str | None, typer.Option("--agent", "-a", help="agent_…, or the name of an agent.")] = None,
    attach: Annotated[
        list[Path] | None, typer.Option("--attach", "-f", help="A file to send along; repeat for more.")
    ] = None,
    sandbox: Annotated[
        bool, typer.Option("--sandbox", help="Open a conversation whose turns run in a sandbox.")
    ] = False,
    client_tools: Annotated[
        list[str] | None,
        typer.Option(
            "--client-tool",
            help="NAME=COMMAND, or a JSON file: a command that the model may run on this machine. It gets the "
            "arguments as JSON on standard input. Repeat for more.",
        ),
    ] = None,
    events: Annotated[
        bool, typer.Option("--events", help="Print every event as it comes, as JSON lines, in place of the answer.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Talk to a model or an agent. The answer is streamed; steps are shown while they run.

    Ctrl-C stops the answer and keeps what was said; a second one exits. The chat reconnects after a lost
    connection. A call that needs an approval is asked about. What you type while an answer is written steers it. In
    the chat `/help` lists the commands: `/attach`, `/download`, `/model`, `/agent`, `/history`, `/open`, `/retry`,
    `/decide`, `/new` and `/quit`.

    **Examples**

    - `turnkeep chat`

    - `turnkeep chat "Summarise this" --attach report.pdf --model anthropic/claude-sonnet-4-5`

    - `turnkeep chat -c last "And in French?"`

    - `git diff | turnkeep chat --agent Reviewer > review.md`

    - `turnkeep chat "Hello" --json | jq -r .text`

    - `turnkeep chat --client-tool battery=./battery.sh "Is my laptop charged?"`
    """
    is_interactive = message is None and sys.stdin.isatty() and sys.stdout.isatty()
    if is_interactive and (as_json or events):
        raise InvalidRequest("--json and --events are for one question: give the message, or pipe it in.")
    if message is None and not is_interactive:
        message = sys.stdin.read()
    tools = local_tools(client_tools or ())
    as_operator = _is_operators(server, conversation)
    with server.connected(patience_seconds=CHAT_PATIENCE_SECONDS, as_operator=as_operator) as turnkeep:
        conversation_id = _conversation(turnkeep, conversation)
        wanted = ChatOptions(
            conversation_id=conversation_id,
            model=model,
            agent_id=find_agent(turnkeep, agent).id if agent else None,
            kind="sandbox" if sandbox and conversation_id is None else None,
            files=tuple(attach or ()),
            tools=tools,
        )
        if message is None:
            ChatSession(turnkeep, wanted).run()
        else:
            _ask_once(turnkeep, message, wanted, as_json=as_json, events=events)


class ChatOptions(Struct, frozen=True, kw_only=True):
    """The conversation, model, agent, files and local tools that the options name."""

    conversation_id: str | None
    model: str | None
    agent_id: str | None
    kind: Literal["sandbox"] | None
    files: tuple[Path, ...]
    tools: dict[str, LocalTool]


class _ToolsOption(TypedDict, total=False):
    tools: Sequence[JsonObject]


def _tools_option(tools: Mapping[str, LocalTool]) -> _ToolsOption:
    """Left out without tools: a server of an earlier release does not know it."""
    return {"tools": [tool.declared for tool in tools.values()]} if tools else {}


def _ask_once(turnkeep: Turnkeep, message: str, wanted: ChatOptions, *, as_json: bool, events: bool) -> None:
    if not message.strip() and not wanted.files:
        raise InvalidRequest("There is no message: standard input is empty.")
    uploaded = [upload_file(turnkeep, path, conversation_id=wanted.conversation_id) for path in wanted.files]
    stream = turnkeep.stream(
        message,
        conversation_id=wanted.conversation_id,
        model=wanted.model,
        agent_id=wanted.agent_id,
        attachment_ids=[file.id for file in uploaded],
        kind=wanted.kind,
        if_busy="enqueue",
        on_trouble=_report_trouble,
        **_tools_option(wanted.tools),
    )
    with stream:
        try:
            if sys.stdout.isatty() and not (as_json or events):
                waiting = _draw(stream, turnkeep, wanted.tools)
            else:
                waiting = _print_plain(stream, turnkeep, wanted.tools, as_json=as_json, events=events)
            if waiting is not None:
                _report_wait(waiting, as_json=as_json)
        except KeyboardInterrupt:
            stream.cancel()
            remark("Stopped. What was said is kept.")
            sys.exit(130)
        answer = stream.settled()
    if as_json:
        print_json(answer)
    if answer.status != "succeeded":
        raise failed(answer)
    if answer.finish in INCOMPLETE:
        remark(INCOMPLETE[answer.finish])


def _report_wait(turn: Turn, *, as_json: bool) -> None:
    """The turn waits for an answer that does not come from here: say how to give it, and exit."""
    if as_json:
        print_json(turn)
    is_approval = turn.waiting_for is not None and turn.waiting_for.type == "approval"
    how = "approve` or `turnkeep turns deny" if is_approval else "results"
    remark(
        f"turnkeep: {turn.id} waits. `turnkeep turns show {turn.id}` says for what. Answer with `turnkeep turns {how}`."
    )
    sys.exit(1)


def _draw(stream: Stream, turnkeep: Turnkeep, tools: Mapping[str, LocalTool]) -> Turn | None:
    """Draw the turn to its end. The turn, if it waits for something that is not answered here."""
    from turnkeep.cli.screen import LiveView, Screen

    screen = Screen()
    ask = ApprovalPrompt(screen, read_line) if sys.stdin.isatty() else None
    calls = WaitingCalls(turnkeep, tools, ask, partial(screen.print_line, style="dim"))
    with LiveView(screen) as live_view:
        for event in stream:
            live_view.show(stream.view)
            if isinstance(event, Approval | ClientCalls) and stream.turn_id is not None:
                with live_view.paused():
                    if (waiting := calls.answer(stream.turn_id)) is not None:
                        return waiting
    return None


def _print_plain(
    stream: Stream, turnkeep: Turnkeep, tools: Mapping[str, LocalTool], *, as_json: bool, events: bool
) -> Turn | None:
    """Print to a pipe only text that is final, so that a file holds the answer and nothing else. The turn, if it waits
    for something that is not answered here."""
    calls = WaitingCalls(turnkeep, tools, None, remark)
    for event in stream:
        if events:
            print_lines([_line(event, stream.cursor)])
        if isinstance(event, Approval | ClientCalls) and stream.turn_id is not None:
            if (waiting := calls.answer(stream.turn_id)) is not None:
                return waiting
        elif events:
            continue
        elif isinstance(event, Step) and event.status != "running":
            step = next(part for part in stream.content if isinstance(part, StepPart) and part.id == event.id)
            remark(step_in_words(step))
        elif isinstance(event, Files):
            for file in event.files:
                remark(f"▪ {file.name} ({size_of(file.size)}) {file.id}")
        elif isinstance(event, ToolCalls) and event.text and not as_json:
            print_text(event.text, end="\n\n")
        elif isinstance(event, Result) and event.message and not as_json:
            print_text(event.message)
    return None


def _line(event: object, cursor: str) -> JsonObject:
    fields = msgspec.to_builtins(event)
    if isinstance(event, Step):
        fields = {name: value for name, value in fields.items() if value is not None}
    name = {"event": "delta"} if isinstance(event, Delta) else {"event": fields.pop("type", fields.get("event"))}
    return name | {"id": cursor, "data": fields}


def _report_trouble(trouble: Trouble) -> None:
    remark(f"{trouble.reason} Trying again in {trouble.pause_seconds:.1f} s.")


def _is_operators(server: ServerOptions, conversation: str | None) -> bool:
    """Whether the local key acts for the operator. A conversation of another owner is continued as the key itself."""
    if conversation is None or conversation == "last":
        return True
    with server.connected() as turnkeep:
        owner = turnkeep.conversations.get(conversation).user
    return owner is not None and owner.external_id == LOCAL_USER


def _conversation(turnkeep: Turnkeep, wanted: str | None) -> str | None:
    if wanted != "last":
        return wanted
    latest = next(iter(turnkeep.conversations.list(limit=1)), None)
    if latest is None:
        raise NotFound("There is no conversation yet to continue.")
    return latest.id


class ChatSession:
    """One chat, from the first prompt to the end."""

    def __init__(self, turnkeep: Turnkeep, options: ChatOptions) -> None:
        from turnkeep.cli.screen import Screen

        self._turnkeep = turnkeep
        self._screen = Screen(highlight=False)
        self._live_view: LiveView | None = None
        self._conversation_id = options.conversation_id
        self._model = options.model
        self._agent_id = options.agent_id
        self._kind = options.kind
        self._waiting_files = list(options.files)
        self._attached: list[File] = []
        self._last_turn: str | None = None
        self._listed: list[Conversation] = []
        self._is_leaving = False
        self._tools = options.tools
        self._steerings: dict[str, str] = {}
        """Words that have not reached their turn yet: the turn that they become if it ends before, by message."""
        self._later: list[str] = []
        """Commands that were typed while an answer was written."""
        self._draft = ""
        """What was typed while an answer was written, and not sent."""
        self._commands: dict[str, tuple[Callable[[str], None], str]] = {
            "attach": (self._attach, "/attach FILE…: send files with the next message"),
            "download": (self._download, "/download FILE_ID [PATH]: fetch a file that an answer shows"),
            "model": (self._choose_model, "/model [NAME]: use this model; without a name, list them"),
            "agent": (
                self._choose_agent,
                "/agent [NAME]: use this agent in a new conversation; without one, list them",
            ),
            "history": (self._show_history, "/history [WORDS]: your conversations, or those with these words"),
            "open": (self._open, "/open NUMBER: continue a conversation of the list (or conv_…)"),
            "retry": (self._retry, "/retry: ask the last question again"),
            "decide": (self._follow_running, "/decide: answer what a turn of this conversation waits for"),
            "new": (self._begin, "/new: start another conversation"),
            "help": (self._help, "/help: this list"),
            "quit": (self._quit, "/quit: leave (also Ctrl-D)"),
        }
        self._prompt = Prompt([f"/{name}" for name in self._commands], TabCompletion(turnkeep))

    def run(self) -> None:
        """Read and answer messages until the user leaves."""
        self._print_note(f"Turnkeep at {self._turnkeep.place.url}. /help lists the commands, Ctrl-D leaves.")
        for path in self._waiting_files:
            self._guarded(partial(self._attach, shlex.quote(str(path))))
        if self._conversation_id is not None:
            self._guarded(partial(self._show, self._conversation_id))
        while not self._is_leaving:
            line = self._later.pop(0) if self._later else self._prompt.read(self._label(), self._take_draft())
            if line is None:
                break
            if line.strip() or self._attached:
                self._guarded(partial(self._handle_line, line))
        self._prompt.save()
        if self._conversation_id is not None:
            self._print_note(f"Continue it: turnkeep chat -c {self._conversation_id}")

    def _guarded(self, work: Callable[[], None]) -> None:
        """Run this. An error is printed as one line, and the chat goes on."""
        try:
            work()
        except TurnkeepError as exc:
            self._print_error(exc.detail)
        except KeyboardInterrupt:
            self._print_note("Never mind.")

    def _handle_line(self, line: str) -> None:
        name, _, rest = line.strip().partition(" ")
        if not name.startswith("/") or name.count("/") > 1:
            self._ask(line)
            return
        known = self._commands.get(name[1:])
        if known is None:
            self._print_note(f"There is no command {name}. /help lists them; begin with a space to send such a line.")
            return
        known[0](rest.strip())

    # --- turns

    def _ask(self, message: str) -> None:
        files = self._attached
        stream = self._turnkeep.stream(
            message.strip() if message.startswith(" ") else message,
            conversation_id=self._conversation_id,
            attachment_ids=[file.id for file in files],
            model=self._model,
            agent_id=self._agent_id if self._conversation_id is None else None,
            kind=self._kind if self._conversation_id is None else None,
            if_busy="enqueue",
            background=True,
            on_trouble=self._on_trouble,
            **_tools_option(self._tools),
        )
        self._attached = []
        try:
            self._watch(stream)
        except TurnkeepError:
            if stream.turn_id is None:
                self._attached = files  # nothing was sent, so they go with the next message
            raise

    def _watch(self, stream: Stream) -> None:
        """Draw a turn to its end. The first Ctrl-C stops it, the second leaves it."""
        from turnkeep.cli.screen import LiveView

        has_stopped = False
        typed = TypeAhead(partial(self._take_line, stream))
        with stream, LiveView(self._screen) as live_view, typed:
            self._live_view = live_view
            live_view.show_typed(lambda: typed.text)
            while not stream.is_over:
                try:
                    self._draw_events(stream, live_view, typed)
                    break
                except KeyboardInterrupt:
                    if has_stopped:
                        self._is_leaving = True
                        break
                    has_stopped = True
                    live_view.note("stopping")
                    self._stop(stream)
                    live_view.note(None)
        self._live_view = None
        self._draft = "\n".join(filter(None, (self._draft, typed.take())))
        self._conversation_id = stream.conversation_id or self._conversation_id
        self._last_turn = stream.turn_id
        if stream.is_over:
            answer = stream.settled()
            if answer.status == "cancelled":
                self._print_note("Stopped. What was said is kept.")
            elif answer.error is not None and answer.error.code != STEERED:
                self._print_error(f"{answer.error.message} ({answer.error.code})")
            elif answer.finish in INCOMPLETE:
                self._print_note(INCOMPLETE[answer.finish])
            self._watch_steerings()

    def _draw_events(self, stream: Stream, live_view: "LiveView", typed: TypeAhead) -> None:
        """Draw events until the turn ends, or the user leaves it waiting."""
        for event in stream:
            live_view.show(stream.view)
            if isinstance(event, Steered):
                self._steerings.pop(event.message_id, None)
                live_view.print_line(f"› {event.message}", style="cyan")
            elif isinstance(event, Approval | ClientCalls):
                with typed.paused(), live_view.paused():
                    is_left = self._answer_calls(str(stream.turn_id))
                if is_left:
                    return

    def _answer_calls(self, turn_id: str) -> bool:
        """Answer the calls for which a turn waits. Whether the user leaves it waiting."""
        ask = ApprovalPrompt(self._screen, read_line)
        turn = WaitingCalls(self._turnkeep, self._tools, ask, self._print_note).answer(turn_id)
        if turn is None or turn.waiting_for is None:
            return False
        if turn.waiting_for.type == "approval":
            self._print_note("The turn waits. /decide asks again; so does `turnkeep turns approve`.")
            return True
        names = ", ".join(call.name for call in turn.waiting_for.calls)
        self._print_note(f"The turn waits for another app, which runs {names}. Ctrl-C stops the turn.")
        return False

    def _take_line(self, stream: Stream, line: str) -> None:
        """A line that was typed while an answer is written: it steers the answer. A command comes after the answer."""
        if not line.strip():
            return
        if line.startswith("/") or stream.turn_id is None:
            self._later.append(line)
            self._print_note(f"{line}: after this answer")
            return
        try:
            steering = self._turnkeep.turns.steer(stream.turn_id, line)
        except TurnkeepError as exc:
            self._draft = "\n".join(filter(None, (self._draft, line)))
            self._print_error(f"{exc.detail} What you typed is in the next line.")
            return
        self._steerings[steering.message_id] = steering.queued_turn_id
        self._print_note(f"↳ {line} (before the next step of the model)")

    def _watch_steerings(self) -> None:
        """Words that came too late for a turn are the next one."""
        while self._steerings and not self._is_leaving:
            message_id = next(iter(self._steerings))
            turn_id = self._steerings.pop(message_id)
            self._watch(self._turnkeep.turns.follow(turn_id, on_trouble=self._on_trouble))

    def _follow_running(self, _: str = "") -> None:
        conversation_id = self._conversation_id
        running = None if conversation_id is None else self._turnkeep.conversations.get(conversation_id).running_turn
        if running is None:
            self._print_note("No turn waits here.")
        else:
            self._watch(self._turnkeep.turns.follow(running.id, on_trouble=self._on_trouble))

    def _stop(self, stream: Stream) -> None:
        try:
            stream.cancel()
        except KeyboardInterrupt:
            self._is_leaving = True

    def _on_trouble(self, trouble: Trouble) -> None:
        if self._live_view is not None:
            self._live_view.note(f"{short_reason(trouble.reason)} Trying again")

    # --- commands

    def _attach(self, rest: str) -> None:
        for name in _split(rest):
            file = upload_file(self._turnkeep, Path(name).expanduser(), conversation_id=self._conversation_id)
            self._attached.append(file)
            self._print_note(f"attached {file.name} ({size_of(file.size)})")
        if not rest:
            named = ", ".join(file.name for file in self._attached)
            self._print_note(f"attached: {named}" if named else "Which file? /attach report.pdf")

    def _download(self, rest: str) -> None:
        file_id, _, path = rest.partition(" ")
        if not file_id.startswith("file_"):
            self._print_note("Which file? /download file_…, as an answer shows it.")
            return
        target = Path(path.strip()).expanduser() if path.strip() else None
        self._print_note(f"written to {download_file(self._turnkeep, file_id, target)}")

    def _choose_model(self, name: str) -> None:
        names = [model.id for model in self._turnkeep.models.list()]
        if not name:
            self._list(
                [f"{'→' if one == self._model else ' '} {one}" for one in names], "This server reaches no model."
            )
            return
        if name not in names and "/" not in name:
            near = [one for one in names if name.casefold() in one.casefold()]
            if len(near) != 1:
                self._print_note(
                    f"{'Several models have' if near else 'No model has'} {name!r} in their name. /model lists them."
                )
                return
            name = near[0]
        self._model = name
        self._print_note(f"From here on {name} answers.")

    def _choose_agent(self, name: str) -> None:
        if not name:
            found = [f"{'→' if one.id == self._agent_id else ' '} {one.name}" for one in self._turnkeep.agents.list()]
            self._list(found, "There are no agents yet: `turnkeep agents create --help`.")
            return
        agent = find_agent(self._turnkeep, name)
        self._agent_id, self._conversation_id = agent.id, None
        self._print_note(f"A new conversation with {agent.name}.")

    def _show_history(self, words: str) -> None:
        self._listed = list(self._turnkeep.conversations.list(words or None, limit=HISTORY))
        lines = [
            f"{place:>3}  {moment(one.updated_at)}  {one.snippet or one.title or one.preview or 'empty'}"
            for place, one in enumerate(self._listed, start=1)
        ]
        self._list(lines, "No conversation has these words." if words else "There are no conversations yet.")
        if lines:
            self._print_note("/open NUMBER continues one.")

    def _open(self, which: str) -> None:
        if which.isdigit() and 0 < int(which) <= len(self._listed):
            which = self._listed[int(which) - 1].id
        elif not which.startswith("conv_"):
            self._print_note("Which one? /history lists them; then /open 1.")
            return
        self._show(which)

    def _show(self, conversation_id: str) -> None:
        conversation = self._turnkeep.conversations.get(conversation_id)
        self._conversation_id, self._agent_id = conversation.id, conversation.agent_id
        self._last_turn = conversation.head_turn_id
        latest = list(self._turnkeep.conversations.messages(conversation.id, order="desc", limit=SHOWN_MESSAGES))
        for message in reversed(latest):
            self._screen.print_markdown(message_as_markdown(message))
            self._screen.print()
        if conversation.running_turn is not None:
            self._watch(self._turnkeep.turns.follow(conversation.running_turn.id, on_trouble=self._on_trouble))

    def _retry(self, _: str) -> None:
        if self._conversation_id is None or self._last_turn is None:
            self._print_note("There is no question yet to ask again.")
            return
        self._watch(
            self._turnkeep.turns.regenerate(
                self._conversation_id,
                self._last_turn,
                model=self._model,
                background=True,
                on_trouble=self._on_trouble,
                **_tools_option(self._tools),
            )
        )

    def _begin(self, _: str) -> None:
        self._conversation_id, self._last_turn = None, None
        self._print_note("A new conversation.")

    def _help(self, _: str) -> None:
        self._list([text for _, text in self._commands.values()], "")
        self._print_note("Ctrl-C stops an answer. A line that ends with \\ goes on in the next one.")
        self._print_note("A line that you type while an answer is written steers it.")

    def _quit(self, _: str) -> None:
        self._is_leaving = True

    # --- the prompt

    def _take_draft(self) -> str:
        draft, self._draft = self._draft, ""
        return draft

    def _label(self) -> str:
        files = f" +{len(self._attached)}" if self._attached else ""
        return f"{self._model or ''}{files}".strip()

    def _print_note(self, text: str) -> None:
        self._screen.print_line(text, style="dim")

    def _print_error(self, text: str) -> None:
        self._screen.print_line(text, style="red")

    def _list(self, lines: Sequence[str], nothing: str) -> None:
        for line in lines:
            self._screen.print_item(line)
        if not lines and nothing:
            self._print_note(nothing)


def short_reason(reason: str) -> str:
    """The first sentence, which fits beside a spinner."""
    if "connection" in reason.lower():
        return "The connection is lost."
    return reason.partition(". ")[0].rstrip(".") + "."


def _split(rest: str) -> list[str]:
    """File names, split as a shell does; a text that is the name of one existing file, with spaces, is not split."""
    if not rest or os.path.exists(os.path.expanduser(rest)):
        return [rest] if rest else []
    try:
        return shlex.split(rest)
    except ValueError:
        return [rest]


class Prompt:
    """Reads messages. Earlier lines are kept in the user's state directory."""

    def __init__(self, commands: Sequence[str], candidates: Callable[[str, str], list[str]]) -> None:
        self._commands = list(commands)
        self._candidates = candidates
        self._matches: list[str] = []
        self._file = _history_file()
        try:
            import readline
        except ImportError:  # Python was built without it; lines can still be read
            return
        readline.set_completer_delims(" \t\n")
        readline.set_completer(self._complete)
        readline.parse_and_bind("tab: complete")
        with contextlib.suppress(OSError):
            readline.read_history_file(self._file)

    def read(self, label: str, draft: str = "") -> str | None:
        """The next message, or None when the user leaves: Ctrl-D, or Ctrl-C twice on an empty line. `draft` is already
        typed."""
        was_interrupted = False
        label = clean_line(label)
        print_text("")
        while True:
            try:
                with _typed_before(draft):
                    line = input(f"{BOLD}{label}{' ' if label else ''}›{PLAIN} ")
                while line.endswith("\\"):
                    line = line[:-1] + "\n" + input(f"{BOLD}…{PLAIN} ")
                return line
            except EOFError:
                print_text("")
                return None
            except KeyboardInterrupt:
                print_text("")
                if was_interrupted:
                    return None
                was_interrupted = True
                say("Ctrl-C again leaves, and so does Ctrl-D.")

    def save(self) -> None:
        with contextlib.suppress(ImportError, OSError):
            import readline

            self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            readline.set_history_length(HISTORY_LINES)
            readline.write_history_file(self._file)
            self._file.chmod(0o600)

    def _complete(self, word: str, nth: int) -> str | None:
        if nth == 0:
            import readline

            line = readline.get_line_buffer()
            if line.startswith("/") and " " not in line:
                self._matches = [command for command in self._commands if command.startswith(word)]
            else:
                found = self._candidates(line, word) if line.startswith("/") else []
                self._matches = [each for each in found if is_clean_line(each)]  # readline shows them as they are
        return self._matches[nth] if nth < len(self._matches) else None


def read_line(label: str, text: str = "") -> str | None:
    """The answer to a question, with a text that is already in the line; None at the end of the input. The history of
    messages does not keep it."""
    readline: Any = None
    with contextlib.suppress(ImportError):
        import readline
    try:
        if readline is not None:
            readline.set_auto_history(False)
        with _typed_before(text):
            return input(f"{BOLD}{clean_line(label)} ›{PLAIN} ")
    except EOFError:
        print_text("")
        return None
    except Withdrawn:
        print_text("")
        raise
    finally:
        if readline is not None:
            readline.set_auto_history(True)


@contextlib.contextmanager
def _typed_before(text: str) -> Iterator[None]:
    """The next line that is read has this text already, which the user may change."""
    readline: Any = None
    with contextlib.suppress(ImportError):
        import readline
    if readline is None or not text:
        yield
        return
    readline.set_startup_hook(lambda: readline.insert_text(clean_line(text)))
    try:
        yield
    finally:
        readline.set_startup_hook(None)


def _history_file() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(state).expanduser() / "turnkeep" / "chat_history"


class TabCompletion:
    """What Tab offers after a chat command: files, models, agents. Nothing, if the server does not answer."""

    def __init__(self, turnkeep: Turnkeep) -> None:
        self._turnkeep = turnkeep

    def __call__(self, line: str, word: str) -> list[str]:
        command = line.split(" ", 1)[0]
        if command == "/attach":
            folder, _, start = word.rpartition("/")
            found = Path(folder or ("/" if word.startswith("/") else ".")).expanduser()
            with contextlib.suppress(OSError):
                prefix = f"{folder}/" if "/" in word else ""
                return [
                    f"{prefix}{each.name}{'/' if each.is_dir() else ''}"
                    for each in sorted(found.iterdir())
                    if each.name.startswith(start)
                ]
        with contextlib.suppress(TurnkeepError):
            if command == "/model":
                return [one.id for one in self._turnkeep.models.list() if one.id.startswith(word)]
            if command == "/agent":
                return [one.name for one in self._turnkeep.agents.list() if one.name.startswith(word)]
        return []
