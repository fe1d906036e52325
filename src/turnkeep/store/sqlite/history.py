"""The history of turns and conversations: windows, events, transcripts, lists and traces.

Every function ends with its rows in hand and no cursor open.
"""

from turnkeep.ids import ConversationId, TurnId
from turnkeep.model.conversations import Conversation, Hit
from turnkeep.model.display import parts_of, words_of
from turnkeep.model.events import LogLine, Recorded
from turnkeep.model.messages import Message, Order, PublicMessage
from turnkeep.model.narrate import narrate
from turnkeep.model.parts import Part
from turnkeep.model.principals import Principal
from turnkeep.model.searching import SearchQuery, snippet
from turnkeep.model.turns import Turn
from turnkeep.store.commands import ConversationWithQueue, Page, TurnTrace, Window, page_of
from turnkeep.store.cursors import decode_cursor, encode_cursor, list_cursor, list_of, messages_of, rows_of
from turnkeep.store.rows import (
    json_text,
    to_conversation,
    to_message,
    to_public_message,
    to_recorded,
    to_replayed,
    to_turn,
)
from turnkeep.store.sqlite.io.session import Row, Session
from turnkeep.store.sqlite.ownership import no_conversation, no_turn, owner_of

ALL = 2**62
"""More than there ever is of anything."""


def window(session: Session, conversation_id: ConversationId, turns: int, row_limit: int) -> Window:
    found = session.rows("window", (conversation_id, turns, row_limit + 1))
    is_cut = len(found) > row_limit
    if is_cut:
        found.pop()
    found.reverse()
    return Window(rows=tuple([to_replayed(conversation_id, row) for row in found]), is_cut=is_cut)


def events(session: Session, turn_id: TurnId, after: int, limit: int) -> list[Recorded]:
    found = session.rows("events_after", (turn_id, after, limit))
    if found:
        return [to_recorded(seq, payload, display) for seq, payload, display in found]
    row = session.row("turn_by_id", {"turn": turn_id})
    if row is None:
        return []
    turn = to_turn(row)
    if turn.last_seq or not turn.is_settled:
        return []
    told = enumerate(narrate(turn, turn_rows(session, turn_id)), start=1)
    return [Recorded(seq=seq, event=event) for seq, event in told if seq > after][:limit]


def turn_rows(session: Session, turn_id: TurnId) -> list[Message]:
    return [to_message(row) for row in session.rows("turn_rows", (turn_id,))]


def running_turn(session: Session, turn_id: TurnId, attempt: int) -> Turn | None:
    row = session.row("running_turn", {"turn": turn_id, "attempt": attempt})
    return None if row is None else to_turn(row)


def my_turn(session: Session, turn_id: TurnId) -> Turn:
    row = session.row("my_turn", {"turn": turn_id})
    if row is None:
        raise no_turn()
    return to_turn(row)


def claimed_turn(session: Session, turn_id: TurnId) -> Turn:
    row = session.row("turn_by_id", {"turn": turn_id})
    if row is None:
        raise no_turn()
    return to_turn(row)


def own_turn(session: Session, principal: Principal, turn_id: TurnId) -> Turn:
    """The principal's turn, on the engine's path."""
    row = session.row("own_turn", owner_of(principal) | {"turn": turn_id})
    if row is None:
        raise no_turn()
    return to_turn(row)


def trace(session: Session, principal: Principal, turn_id: TurnId) -> TurnTrace:
    return trace_of(session, own_turn(session, principal, turn_id), events(session, turn_id, 0, ALL))


def trace_of(session: Session, turn: Turn, recorded: list[Recorded]) -> TurnTrace:
    lines = session.rows("logs_from", {"turn": turn.id, "n": 0})
    return TurnTrace(
        turn=turn,
        rows=tuple(turn_rows(session, turn.id)),
        events=tuple(recorded),
        logs=tuple(
            LogLine(after_seq=after, level=level, message=message, ts=ts) for after, level, message, ts in lines
        ),
    )


def my_conversation(session: Session, conversation_id: ConversationId) -> Conversation:
    row = session.row("my_conversation", {"conversation": conversation_id})
    if row is None:
        raise no_conversation()
    return to_conversation(row)


def my_conversation_with_queue(session: Session, conversation_id: ConversationId) -> ConversationWithQueue:
    with session.snapshot():
        conversation = my_conversation(session, conversation_id)
        waiting = session.rows("my_queue", (conversation_id,))
    queue = tuple(to_public_message(conversation_id, (*row, None)) for row in waiting)
    return ConversationWithQueue(conversation=conversation, queue=queue)


def own_conversation(session: Session, principal: Principal, conversation_id: ConversationId) -> Conversation:
    """The same on the engine's path, for what reads internal rows next."""
    row = session.row("own_conversation", owner_of(principal) | {"conversation": conversation_id})
    if row is None:
        raise no_conversation()
    return to_conversation(row)


def list_key(cursor: str | None, of: str) -> tuple[int, str]:
    """Where a page of conversations begins: before this `(updated_at, id)`."""
    return (ALL, "") if cursor is None else decode_cursor(cursor, of, tuple[int, str])


def my_list(session: Session, principal: Principal, limit: int, cursor: str | None) -> Page[Hit]:
    of = list_of(None)
    updated_at, id_ = list_key(cursor, of)
    values = owner_of(principal) | {"updated_at": updated_at, "id": id_, "limit": limit + 1}
    name = "my_conversations_of_workspace" if values["user"] is None else "my_conversations_of_user"
    del values["org"]
    if values["user"] is None:
        del values["user"]
    hits = [Hit(conversation=to_conversation(row), snippet=None) for row in session.rows(name, values)]
    return page_of(hits, limit=limit, cursor_of=lambda hit: list_cursor(of, hit))


def my_hits(
    session: Session,
    query: SearchQuery,
    conversation_ids: list[ConversationId],
    places: dict[ConversationId, tuple[str, int]],
) -> list[Hit]:
    """What a search found, read as the client sees it, in the order of the ids."""
    found = {row[0]: row for row in session.rows("my_conversations_by_id", {"ids": json_text(conversation_ids)})}
    hits = []
    for conversation_id in conversation_ids:
        if conversation_id not in found:
            continue
        conversation = to_conversation(found[conversation_id])
        shown = None
        if conversation_id in places:
            turn_id, sequence = places[conversation_id]
            row = session.row("my_message", {"turn": turn_id, "sequence": sequence})
            shown = snippet(words_of(content_of(to_message(row))), query) if row is not None else None
        if shown is None and conversation.title is not None:
            shown = snippet(conversation.title, query)
        hits.append(Hit(conversation=conversation, snippet=shown))
    return hits


def transcript(
    session: Session, conversation_id: ConversationId, order: Order, limit: int, cursor: str | None
) -> Page[PublicMessage]:
    of = messages_of(conversation_id, order)
    with session.snapshot():
        if order == "asc":
            ordinal, sequence = (0, -1) if cursor is None else decode_cursor(cursor, of, tuple[int, int])
            found = session.rows("transcript_forward", (conversation_id, ordinal, sequence, limit + 1))
        else:
            ordinal, sequence = (ALL, 0) if cursor is None else decode_cursor(cursor, of, tuple[int, int])
            found = session.rows("transcript_backward", (conversation_id, ordinal, sequence, limit + 1))
        if not found and session.row("my_conversation_exists", {"conversation": conversation_id}) is None:
            raise no_conversation()
        shown = found[:limit]
        siblings = _siblings(session, conversation_id, shown)
    next_cursor = None
    if len(found) > limit:
        *_, ordinal, sequence = shown[-1]
        next_cursor = encode_cursor(of, ordinal, sequence)
    data = [_public_message(conversation_id, row, siblings) for row in shown]
    return Page(data=tuple(data), next_cursor=next_cursor)


def _public_message(
    conversation_id: ConversationId, row: Row, siblings: dict[TurnId, tuple[TurnId, ...]]
) -> PublicMessage:
    *columns, _parent, _ordinal, _sequence = row
    _, turn_id, *_ = columns
    return to_public_message(conversation_id, (*columns, siblings.get(turn_id)))


def _siblings(session: Session, conversation_id: ConversationId, shown: list[Row]) -> dict[TurnId, tuple[TurnId, ...]]:
    """For each turn of a page that has others beside it: all of them, in order."""
    parents: dict[str, list[tuple[int, TurnId]]] = {}
    for _, turn_id, *_, parent, ordinal, _ in shown:
        parents.setdefault(parent or "", []).append((ordinal, turn_id))
    if not parents:
        return {}
    beside = session.rows("branches", (conversation_id, json_text(list(parents))))
    families: dict[str, set[tuple[int, TurnId]]] = {}
    for parent, ordinal, turn_id in beside:
        families.setdefault(parent, set(parents[parent])).add((ordinal, turn_id))
    return {
        turn_id: tuple(each for _, each in sorted(family))
        for parent, family in families.items()
        for _, turn_id in parents[parent]
    }


def content_of(message: Message) -> tuple[Part, ...]:
    """What a reader sees of a visible row."""
    return message.display if message.display is not None else parts_of(message.blocks)


def conversation_trace(
    session: Session, conversation_id: ConversationId, limit: int, cursor: str | None
) -> Page[Message]:
    of = rows_of(conversation_id)
    ordinal, sequence = (0, -1) if cursor is None else decode_cursor(cursor, of, tuple[int, int])
    found = session.rows(
        "conversation_rows",
        {"conversation": conversation_id, "ordinal": ordinal, "sequence": sequence, "limit": limit + 1},
    )
    shown = found[:limit]
    next_cursor = None
    if len(found) > limit:
        _, sequence, *_, ordinal = shown[-1]
        next_cursor = encode_cursor(of, ordinal, sequence)
    return Page(data=tuple(to_message(columns) for *columns, _ in shown), next_cursor=next_cursor)
