"""What must be true of a conversation at any moment, whatever has happened to it. Asked through the store's verbs."""

from collections.abc import Sequence

from tests.store.factories import Tenant
from turnkeep.ids import ConversationId, TurnId
from turnkeep.model.messages import Message, PublicMessage
from turnkeep.store.commands import Exported, TurnTrace
from turnkeep.store.ports import Store
from turnkeep_client.wire.events import Failure, Result, TurnBegan


async def check_invariants(store: Store, tenant: Tenant, conversation_id: ConversationId) -> None:
    """Raises AssertionError where a conversation that is there breaks a promise."""
    exported = await store.export_conversation(tenant.service, conversation_id)
    _one_turn_runs_at_most(exported)
    for trace in exported.turns:
        _events_are_numbered_without_gaps_and_end_once(trace)
        _rows_are_numbered(trace)
        _times_agree_with_status(trace)
    _the_visible_chain_is_that_of_the_head(exported)
    await _counters_agree_with_the_transcript(store, tenant, exported)
    await _the_window_is_the_chain(store, exported)


def _one_turn_runs_at_most(exported: Exported) -> None:
    running = [trace.turn.id for trace in exported.turns if trace.turn.status in {"running", "waiting"}]
    assert running == ([exported.conversation.running_turn_id] if exported.conversation.running_turn_id else [])
    ordinals = [trace.turn.ordinal for trace in exported.turns]
    assert ordinals == sorted(set(ordinals))


def _events_are_numbered_without_gaps_and_end_once(trace: TurnTrace) -> None:
    assert [recorded.seq for recorded in trace.events] == list(range(1, trace.turn.last_seq + 1))
    if not trace.events:
        assert trace.turn.status == "succeeded", "only a turn that happened elsewhere has no events"
        return
    events = [recorded.event for recorded in trace.events]
    assert isinstance(events[0], TurnBegan)
    terminal = [place for place, event in enumerate(events) if isinstance(event, Result | Failure)]
    assert terminal == ([len(events) - 1] if trace.turn.is_settled else [])
    if trace.turn.is_settled:
        assert isinstance(events[-1], Result) == (trace.turn.status == "succeeded")
    attempts = [event.attempt for event in events if hasattr(event, "attempt")]
    assert attempts == sorted(attempts)
    # A turn that waits has let its holder go. The next attempt has no event before a worker adopts it.
    assert trace.turn.attempt - attempts[-1] in ({0, 1} if trace.turn.wait is not None else {0})


def _rows_are_numbered(trace: TurnTrace) -> None:
    assert [row.turn_sequence for row in trace.rows] == list(range(len(trace.rows)))
    assert {row.turn_id for row in trace.rows} == {trace.turn.id}
    assert (trace.rows[0].role, trace.rows[0].internal) == ("user", False)
    assert sum(not row.internal for row in trace.rows) <= 2
    ids = [row.id for row in trace.rows]
    assert len(set(ids)) == len(ids)


def _times_agree_with_status(trace: TurnTrace) -> None:
    turn = trace.turn
    assert (turn.settled_at is not None) == turn.is_settled
    if turn.status == "queued":
        assert (turn.started_at, turn.active, turn.attempt) == (None, False, 0)
    elif turn.started_at is None:
        assert (turn.status, turn.active) == ("cancelled", False)
    assert (turn.error is None) == (turn.status in {"queued", "running", "waiting", "succeeded"})


def _the_visible_chain_is_that_of_the_head(exported: Exported) -> None:
    """Active turns are the running turn, or else the head, and their ancestors."""
    turns = {trace.turn.id: trace.turn for trace in exported.turns}
    conversation = exported.conversation
    chain: list[TurnId] = []
    place = conversation.running_turn_id or conversation.head_turn_id
    while place is not None:
        chain.append(place)
        place = turns[place].parent_turn_id
    assert sorted(chain) == sorted(turn.id for turn in turns.values() if turn.active)


async def _counters_agree_with_the_transcript(store: Store, tenant: Tenant, exported: Exported) -> None:
    conversation = exported.conversation
    visible = [row.id for row in _active_rows(exported) if not row.internal]
    messages: list[PublicMessage] = []
    cursor: str | None = None
    while not messages or cursor is not None:
        page = await store.transcript(tenant.service, conversation.id, limit=100, cursor=cursor)
        messages += page.data
        cursor = page.next_cursor
        if not page.data:
            break
    assert [message.id for message in messages] == visible
    assert conversation.message_count == len(visible)
    assert conversation.turn_count == sum(trace.turn.active for trace in exported.turns)


async def _the_window_is_the_chain(store: Store, exported: Exported) -> None:
    window = await store.window(exported.conversation.id, turns=1_000)
    assert [row.id for row in window.rows] == [row.id for row in _active_rows(exported)]


def _active_rows(exported: Exported) -> Sequence[Message]:
    return [row for trace in exported.turns if trace.turn.active for row in trace.rows]
