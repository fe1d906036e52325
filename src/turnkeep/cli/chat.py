"""`turnkeep chat`: a conversation in the terminal, or one question and its answer for a script."""

import sys
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import typer
from msgspec import Struct

from turnkeep.cli.agents import find_agent
from turnkeep.cli.connection import AsJson, Server, asks_a_server
from turnkeep.cli.markdown import step_in_words
from turnkeep.cli.output import print_json, print_lines, print_text, remark, size_of
from turnkeep.errors import InvalidRequest, NotFound
from turnkeep_client.errors import failed
from turnkeep_client.retry import Trouble
from turnkeep_client.stream import Delta, Files, Result, Step, ToolCalls
from turnkeep_client.sync import Stream, Turnkeep
from turnkeep_client.wire.blocks import JsonObject, StepPart

CHAT_PATIENCE_SECONDS = 300.0
"""Longer than for other commands: the user sees that the connection is lost, and may leave at any time."""


@asks_a_server
def chat(
    server: Server,
    message: Annotated[
        str | None, typer.Argument(help="Ask this one thing and leave. Without it, and with a terminal, a chat begins.")
    ] = None,
    conversation: Annotated[
        str | None, typer.Option("--conversation", "-c", help="Go on with conv_…, or with the `last` one.")
    ] = None,
    model: Annotated[str | None, typer.Option("--model", "-m", help="As `turnkeep models` lists it.")] = None,
    agent: Annotated[str | None, typer.Option("--agent", "-a", help="agent_…, or the name of an agent.")] = None,
    attach: Annotated[
        list[Path] | None, typer.Option("--attach", "-f", help="A file to send along; repeat for more.")
    ] = None,
    sandbox: Annotated[
        bool, typer.Option("--sandbox", help="Open a conversation whose turns run in a sandbox.")
    ] = False,
    events: Annotated[
        bool, typer.Option("--events", help="Print every event as it comes, as JSON lines, in place of the answer.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Talk to a model or an agent. The answer is streamed; steps are shown while they run.

    Ctrl-C stops the answer and keeps what was said; a second one leaves. A lost connection is taken up again. In the
    chat `/help` lists what else there is: `/attach`, `/download`, `/model`, `/agent`, `/history`, `/open`, `/retry`,
    `/new` and `/quit`.

    **Examples**

    - `turnkeep chat`

    - `turnkeep chat "Summarise this" --attach report.pdf --model anthropic/claude-sonnet-4-5`

    - `turnkeep chat -c last "And in French?"`

    - `git diff | turnkeep chat --agent Reviewer > review.md`

    - `turnkeep chat "Hello" --json | jq -r .text`
    """
    is_interactive = message is None and sys.stdin.isatty() and sys.stdout.isatty()
    if is_interactive and (as_json or events):
        raise InvalidRequest("--json and --events are for one question: give the message, or pipe it in.")
    if message is None and not is_interactive:
        message = sys.stdin.read()
    with server.connected(patience_seconds=CHAT_PATIENCE_SECONDS) as turnkeep:
        conversation_id = _conversation(turnkeep, conversation)
        wanted = _Options(
            conversation_id=conversation_id,
            model=model,
            agent_id=find_agent(turnkeep, agent).id if agent else None,
            kind="sandbox" if sandbox and conversation_id is None else None,
            files=tuple(attach or ()),
        )
        if message is None:
            _talk(turnkeep, wanted)
        else:
            _ask_once(turnkeep, message, wanted, as_json=as_json, events=events)


class _Options(Struct, frozen=True, kw_only=True):
    """The conversation, model, agent and files that the options name."""

    conversation_id: str | None
    model: str | None
    agent_id: str | None
    kind: Literal["sandbox"] | None
    files: tuple[Path, ...]


def _talk(turnkeep: Turnkeep, wanted: _Options) -> None:
    from turnkeep.cli.chat_session import ChatSession

    ChatSession(
        turnkeep,
        conversation_id=wanted.conversation_id,
        model=wanted.model,
        agent_id=wanted.agent_id,
        kind=wanted.kind,
        files=wanted.files,
    ).run()


def _ask_once(turnkeep: Turnkeep, message: str, wanted: _Options, *, as_json: bool, events: bool) -> None:
    if not message.strip() and not wanted.files:
        raise InvalidRequest("There is no message: standard input is empty.")
    uploaded = [turnkeep.files.upload(path, conversation_id=wanted.conversation_id) for path in wanted.files]
    stream = turnkeep.stream(
        message,
        conversation_id=wanted.conversation_id,
        model=wanted.model,
        agent_id=wanted.agent_id,
        attachment_ids=[file.id for file in uploaded],
        kind=wanted.kind,
        if_busy="enqueue",
        on_trouble=_report_trouble,
    )
    with stream:
        try:
            if sys.stdout.isatty() and not (as_json or events):
                _draw(stream)
            else:
                _print_plain(stream, as_json=as_json, events=events)
        except KeyboardInterrupt:
            stream.cancel()
            remark("Stopped. What was said is kept.")
            sys.exit(130)
        answer = stream.settled()
    if as_json:
        print_json(answer)
    if answer.status != "succeeded":
        raise failed(answer)


def _draw(stream: Stream) -> None:
    from turnkeep.cli.live_view import LiveView
    from turnkeep.cli.screen import Screen

    with LiveView(Screen()) as live_view:
        for _ in stream:
            live_view.show(stream.view)


def _print_plain(stream: Stream, *, as_json: bool, events: bool) -> None:
    """Print to a pipe only text that is final, so that a file holds the answer and nothing else."""
    for event in stream:
        if events:
            print_lines([_line(event, stream.cursor)])
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


def _line(event: object, cursor: str) -> JsonObject:
    fields = msgspec.to_builtins(event)
    name = {"event": "delta"} if isinstance(event, Delta) else {"event": fields.pop("type", fields.get("event"))}
    return name | {"id": cursor, "data": fields}


def _report_trouble(trouble: Trouble) -> None:
    remark(f"{trouble.reason} Trying again in {trouble.pause_seconds:.1f} s.")


def _conversation(turnkeep: Turnkeep, wanted: str | None) -> str | None:
    if wanted != "last":
        return wanted
    latest = next(iter(turnkeep.conversations.list(limit=1)), None)
    if latest is None:
        raise NotFound("There is no conversation yet to go on with.")
    return latest.id
