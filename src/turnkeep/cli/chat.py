"""`turnkeep chat`: a conversation in the terminal, or one question and its answer for a script."""

import sys
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import typer

from turnkeep.cli.agents import find_agent
from turnkeep.cli.connecting import AsJson, Key, ServerDir, Url, User, Workspace, connected
from turnkeep.cli.markdown import step_in_words
from turnkeep.cli.printing import print_json, remark
from turnkeep.client.errors import failed
from turnkeep.client.events import Delta, Step, ToolCalls
from turnkeep.client.patience import Trouble
from turnkeep.client.sync import Stream, Turnkeep
from turnkeep.errors import InvalidRequest, NotFound
from turnkeep.model.parts import StepPart

CHAT_PATIENCE_SECONDS = 300.0
"""Somebody sits there and sees that the connection is lost, and may leave at any time."""


def chat(
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
    url: Url = None,
    key: Key = None,
    user: User = None,
    workspace: Workspace = None,
    data_dir: ServerDir = None,
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
    with connected(
        url, key, user=user, workspace=workspace, data_dir=data_dir, patience_seconds=CHAT_PATIENCE_SECONDS
    ) as turnkeep:
        conversation_id = _conversation(turnkeep, conversation)
        agent_id = find_agent(turnkeep, agent).id if agent else None
        kind: Literal["sandbox"] | None = "sandbox" if sandbox and conversation_id is None else None
        if message is None:
            from turnkeep.cli.chatting import Chat

            Chat(
                turnkeep,
                conversation_id=conversation_id,
                model=model,
                agent_id=agent_id,
                kind=kind,
                files=attach or [],
            ).run()
            return
        if not message.strip() and not attach:
            raise InvalidRequest("There is no message: standard input is empty.")
        file_ids = [turnkeep.files.upload(path, conversation_id=conversation_id).id for path in attach or []]
        stream = turnkeep.stream(
            message,
            conversation_id=conversation_id,
            model=model,
            agent_id=agent_id,
            attachment_ids=file_ids,
            kind=kind,
            if_busy="enqueue",
            on_trouble=_tell,
        )
        _ask_once(stream, as_json=as_json, events=events)


def _ask_once(stream: Stream, *, as_json: bool, events: bool) -> None:
    with stream:
        try:
            if sys.stdout.isatty() and not (as_json or events):
                _paint(stream)
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


def _paint(stream: Stream) -> None:
    from rich.console import Console

    from turnkeep.cli.painting import Painter

    with Painter(Console()) as painter:
        for _ in stream:
            painter.show(stream.view)


def _print_plain(stream: Stream, *, as_json: bool, events: bool) -> None:
    """Text for a pipe: only words that are true, so that what a file holds is the answer and nothing else."""
    said = False
    for event in stream:
        if events:
            sys.stdout.write(_line(event, stream.cursor) + "\n")
            sys.stdout.flush()
        elif isinstance(event, Step) and event.status != "running":
            step = next(part for part in stream.content if isinstance(part, StepPart) and part.id == event.id)
            remark(step_in_words(step))
        elif isinstance(event, ToolCalls) and event.text and not as_json:
            print(event.text, end="\n\n", flush=True)
            said = not event.calls
    if not events and not as_json and stream.text and not said:
        print(stream.text)


def _line(event: object, cursor: str) -> str:
    fields = msgspec.to_builtins(event)
    name = {"event": "delta"} if isinstance(event, Delta) else {"event": fields.pop("type", fields.get("event"))}
    return msgspec.json.encode(name | {"id": cursor, "data": fields}).decode()


def _tell(trouble: Trouble) -> None:
    remark(f"{trouble.reason} Trying again in {trouble.pause_seconds:.1f} s.")


def _conversation(turnkeep: Turnkeep, wanted: str | None) -> str | None:
    if wanted != "last":
        return wanted
    latest = next(iter(turnkeep.conversations.list(limit=1)), None)
    if latest is None:
        raise NotFound("There is no conversation yet to go on with.")
    return latest.id
