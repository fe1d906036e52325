"""`turnkeep turns`: turns that run or wait; decide about their calls, send results, steer and stop them; ratings."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Annotated, Any, Literal

import msgspec
import typer

from turnkeep.cli.output import moment, print_json, print_lines, print_table, print_text, say
from turnkeep.cli.server_options import AsJson, ServerOptions, asks_a_server
from turnkeep.cli.waits import lines_of, visible
from turnkeep.errors import InvalidRequest
from turnkeep_client.discovery import LOCAL_USER
from turnkeep_client.sync import Turnkeep
from turnkeep_client.wire import Turn
from turnkeep_client.wire.blocks import JsonObject
from turnkeep_client.wire.events import ToolCall

turns = typer.Typer(no_args_is_help=True, help="List, show, approve, deny, answer, steer, stop and rate turns.")

TurnArgument = Annotated[str, typer.Argument(metavar="TURN", help="turn_…, as `turnkeep turns list` shows it.")]
CallArgument = Annotated[
    str | None, typer.Argument(metavar="CALL", help="The id of a call. Not needed if the turn waits for only one.")
]
All = Annotated[bool, typer.Option("--all", help="All calls for which the turn waits.")]


@turns.command("list")
@asks_a_server
def list_turns(
    server: ServerOptions,
    waiting: Annotated[bool, typer.Option("--waiting", help="Only those that wait for an answer.")] = False,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="How many at most.")] = 20,
    as_json: AsJson = False,
) -> None:
    """List turns that run or wait, those of the last changed conversations first.

    **Examples**

    - `turnkeep turns list --waiting`

    - `turnkeep turns list --waiting --json | jq -r '.id as $turn | .waiting_for.calls[] | "\\($turn) \\(.id)"'`
    """
    with server.connected() as turnkeep:
        running = (one.running_turn for one in turnkeep.conversations.list())
        wanted = (each for each in running if each is not None and (each.waiting_for is not None or not waiting))
        found = (turnkeep.turns.get(each.id) for each in islice(wanted, limit))
        if as_json:
            print_lines(found)
            return
        rows = [(one.id, one.status, moment(one.started_at), _what(one)) for one in found]
    nothing = "No turn waits." if waiting else "No turn runs."
    print_table(("id", "state", "since", "waits for"), rows, nothing=nothing)


@turns.command()
@asks_a_server
def show(server: ServerOptions, turn: TurnArgument, as_json: AsJson = False) -> None:
    """Show a turn, and the calls for which it waits, with their arguments.

    **Example**

    - `turnkeep turns show turn_0192f0c1…`
    """
    with server.connected() as turnkeep:
        found = turnkeep.turns.get(turn)
    if as_json:
        print_json(found)
        return
    say(f"{found.id}  {found.status}")
    waiting = found.waiting_for
    if waiting is not None:
        say(f"waits for {waiting.type.replace('_', ' ')} until {moment(waiting.expires_at)}")
        for call in (*waiting.calls, *waiting.client_calls):
            say(f"{visible(call.id)}  {visible(call.name)}")
            print_text("\n".join(f"    {line}" for line in lines_of(call.args)))
    if found.response:
        print_text(found.response)


@turns.command()
@asks_a_server
def timeline(server: ServerOptions, turn: TurnArgument, as_json: AsJson = False) -> None:
    """Show what happened in a turn: model calls, tools, waits, retries and takeovers, with their times.

    **Example**

    - `turnkeep turns timeline turn_0192f0c1…`
    """
    with server.connected() as turnkeep:
        found = turnkeep.turns.timeline(turn)
    if as_json:
        print_json(found)
        return
    total = _seconds(found.created_at, found.settled_at or found.now)
    cost = "" if found.cost is None else f", cost {found.cost:,.4f}"
    tokens = f"{found.usage.input_tokens:,} tokens in, {found.usage.output_tokens:,} out"
    say(f"{found.turn_id}  {found.status}  {total}  {tokens}{cost}")
    if found.error is not None:
        say(f"{found.error.code}: {visible(found.error.message)}")
    rows = [
        (
            _seconds(found.created_at, span.started_at),
            "…" if span.ended_at is None else _seconds(span.started_at, span.ended_at),
            f"{'  ' if span.parent_id else ''}{span.kind}",
            visible(span.name),
            span.status,
            "" if span.usage is None else f"{span.usage.input_tokens:,} in, {span.usage.output_tokens:,} out",
            visible(span.note or ""),
        )
        for span in found.spans
    ]
    print_table(("at", "took", "what", "name", "state", "tokens", "note"), rows, nothing="Nothing happened yet.")


def _seconds(start: int, end: int) -> str:
    return f"{(end - start) / 1000:,.3f} s"


@turns.command()
@asks_a_server
def approve(
    server: ServerOptions,
    turn: TurnArgument,
    call: CallArgument = None,
    args: Annotated[
        str | None, typer.Option("--args", help="Other arguments, as a JSON object. The model is told.")
    ] = None,
    always: Annotated[
        bool, typer.Option("--always", help="Also allow later calls of this tool in this conversation.")
    ] = False,
    all_calls: All = False,
    as_json: AsJson = False,
) -> None:
    """Allow a call for which a turn waits. The first decision holds.

    **Examples**

    - `turnkeep turns approve turn_0192f0c1…`

    - `turnkeep turns approve turn_0192f0c1… call_0192f0c2… --args '{"amount": 5}'`
    """
    if args is not None and all_calls:
        raise InvalidRequest("--args are those of one call. Name the call.")
    decision: JsonObject = {"decision": "allow"}
    if args is not None:
        decision["args"] = _arguments(args)
    if always:
        decision["remember"] = "conversation"
    _decide(server, turn, call, decision, all_calls=all_calls, as_json=as_json)


@turns.command()
@asks_a_server
def deny(
    server: ServerOptions,
    turn: TurnArgument,
    call: CallArgument = None,
    reason: Annotated[str | None, typer.Option("--reason", help="Why. The model is told.")] = None,
    all_calls: All = False,
    as_json: AsJson = False,
) -> None:
    """Deny a call for which a turn waits. It is not run, and the turn goes on.

    **Example**

    - `turnkeep turns deny turn_0192f0c1… --reason "Not today."`
    """
    decision: JsonObject = {"decision": "deny", **({"reason": reason} if reason else {})}
    _decide(server, turn, call, decision, all_calls=all_calls, as_json=as_json)


@turns.command()
@asks_a_server
def results(
    server: ServerOptions,
    turn: TurnArgument,
    call: CallArgument = None,
    result: Annotated[
        str | None, typer.Option("--result", help="The result as JSON; - reads it from standard input.")
    ] = None,
    error: Annotated[str | None, typer.Option("--error", help="Why there is no result.")] = None,
    as_json: AsJson = False,
) -> None:
    """Send the result of a client tool for which a turn waits. The first result holds.

    **Examples**

    - `turnkeep turns results turn_0192f0c1… --result 80`

    - `./battery.sh | turnkeep turns results turn_0192f0c1… call_0192f0c2… --result -`
    """
    if (result is None) == (error is None):
        raise InvalidRequest("Give either --result or --error.")
    sent: JsonObject = {"error": error} if error is not None else {"result": _json(result or "", "--result")}
    with _as_owner(server, turn) as turnkeep:
        [call_id] = [call] if call is not None else _open_calls(turnkeep.turns.get(turn), "client_tools", is_all=False)
        _print(turnkeep.turns.results(turn, [{"call_id": call_id, **sent}]), as_json=as_json)


@turns.command()
@asks_a_server
def steer(
    server: ServerOptions,
    turn: TurnArgument,
    message: Annotated[str, typer.Argument(help="The words; - reads them from standard input.")],
    as_json: AsJson = False,
) -> None:
    """Add words to a turn that runs or waits. They reach the model before its next call, or become the next turn.

    **Example**

    - `turnkeep turns steer turn_0192f0c1… "In French, please."`
    """
    words = sys.stdin.read() if message == "-" else message
    if not words.strip():
        raise InvalidRequest("There are no words to send.")
    with _as_owner(server, turn) as turnkeep:
        steering = turnkeep.turns.steer(turn, words)
    if as_json:
        print_json(steering)
    else:
        say("Stored. They reach the model before its next call; if the turn ends before, they are the next turn.")


@turns.command()
@asks_a_server
def cancel(server: ServerOptions, turn: TurnArgument, as_json: AsJson = False) -> None:
    """Stop a turn that runs or waits. What was said is kept.

    **Example**

    - `turnkeep turns cancel turn_0192f0c1…`
    """
    with _as_owner(server, turn) as turnkeep:
        _print(turnkeep.turns.cancel(turn), as_json=as_json)


@turns.command()
@asks_a_server
def rate(
    server: ServerOptions,
    turn: TurnArgument,
    rating: Annotated[Literal["up", "down", "none"], typer.Argument(help="`none` takes the rating back.")],
    comment: Annotated[str | None, typer.Option("--comment", "-c", help="What was good or bad about it.")] = None,
    as_json: AsJson = False,
) -> None:
    """Rate the answer of a turn, as the user who asked. It replaces the rating before.

    **Examples**

    - `turnkeep turns rate turn_0192f0c1… down --comment "It is closed on Mondays."`

    - `turnkeep turns rate turn_0192f0c1… none`
    """
    with server.connected(as_operator=True) as turnkeep:
        if rating == "none":
            turnkeep.turns.unrate(turn)
            print_json({"turn_id": turn, "rating": None}) if as_json else say(f"{turn} is not rated any more.")
            return
        rated = turnkeep.turns.rate(turn, rating, comment=comment)
    print_json(rated) if as_json else say(f"{turn} is rated {rated.rating}.")


@turns.command()
@asks_a_server
def feedback(
    server: ServerOptions,
    rating: Annotated[Literal["up", "down"] | None, typer.Option("--rating", help="Only these ratings.")] = None,
    agent: Annotated[str | None, typer.Option(metavar="AGENT", help="Only those of this agent: agent_…")] = None,
    form: Annotated[
        Literal["jsonl", "csv"], typer.Option("--format", "-f", help="JSON lines, or CSV for a spreadsheet.")
    ] = "jsonl",
) -> None:
    """Print the ratings of all users of the workspace, newest first, for evaluations (admins only).

    Each has the turn, its model, agent and tokens, the user, the rating and the comment.

    **Examples**

    - `turnkeep turns feedback | jq -r 'select(.rating == "down").comment'`

    - `turnkeep turns feedback --format csv > feedback.csv`
    """
    with server.connected() as turnkeep:
        written = turnkeep.feedback.export(format=form, rating=rating, agent_id=agent).decode()
    print_text(written.replace("\r\n", "\n"), end="")


def _decide(
    server: ServerOptions, turn: str, call: str | None, decision: JsonObject, *, all_calls: bool, as_json: bool
) -> None:
    if call is not None and all_calls:
        raise InvalidRequest("Name a call, or give --all.")
    with _as_owner(server, turn) as turnkeep:
        ids = [call] if call is not None else _open_calls(turnkeep.turns.get(turn), "approval", is_all=all_calls)
        if "args" in decision and len(ids) != 1:
            raise InvalidRequest("--args are those of one call. Name the call.")
        _print(turnkeep.turns.decide(turn, [{"call_id": each, **decision} for each in ids]), as_json=as_json)


@contextmanager
def _as_owner(server: ServerOptions, turn_id: str) -> Iterator[Turnkeep]:
    """A client that acts for the operator if the turn is the operator's own, as in a chat. Calls that admins decide
    about are for the key itself, which counts as one."""
    with server.connected() as turnkeep:
        turn = turnkeep.turns.get(turn_id)
        approvers: Sequence[str] = () if turn.waiting_for is None else turn.waiting_for.approvers or ()
        owner = turnkeep.conversations.get(turn.conversation_id).user if "admin" not in approvers else None
        if owner is None or owner.external_id != LOCAL_USER:
            yield turnkeep
            return
    with server.connected(as_operator=True) as turnkeep:
        yield turnkeep


def _open_calls(turn: Turn, reason: str, *, is_all: bool) -> list[str]:
    """The ids of the calls that wait for this. Raises InvalidRequest if the user must name one of them."""
    waiting = turn.waiting_for
    calls: list[ToolCall] = []
    if waiting is not None:
        calls = list(waiting.calls if waiting.type == reason else ())
        calls += waiting.client_calls if reason == "client_tools" else ()
    kind = "an approval" if reason == "approval" else "a client tool"
    if not calls:
        raise InvalidRequest(f"{turn.id} does not wait for {kind}. Its status is {turn.status}.")
    if len(calls) > 1 and not is_all:
        named = ", ".join(f"{visible(call.id)} ({visible(call.name)})" for call in calls)
        raise InvalidRequest(f"{turn.id} waits for {len(calls)} calls. Name one of them: {named}.")
    return [call.id for call in calls]


def _print(turn: Turn, *, as_json: bool) -> None:
    if as_json:
        print_json(turn)
    elif turn.waiting_for is not None:
        say(f"{turn.id} waits for {_what(turn)}.")
    else:
        say(f"{turn.id} is {turn.status}.")


def _what(turn: Turn) -> str:
    waiting = turn.waiting_for
    if waiting is None:
        return ""
    kind = "approval of" if waiting.type == "approval" else "an app that runs"
    return f"{kind} {', '.join(visible(call.name) for call in waiting.calls)}"


def _json(text: str, option: str) -> Any:
    given = sys.stdin.read() if text == "-" else text
    try:
        return msgspec.json.decode(given)
    except msgspec.MsgspecError as exc:
        raise InvalidRequest(f"{option} is not JSON: {exc}. A text needs quotes: '\"text\"'.") from exc


def _arguments(text: str) -> JsonObject:
    value = _json(text, "--args")
    if not isinstance(value, dict):
        raise InvalidRequest("--args must be a JSON object, such as '{\"amount\": 5}'.")
    return value
