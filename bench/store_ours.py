"""Turnkeep itself, through the verbs of its store: values in, values out, every check on.

The final row carries what the engine would store with it: the display (with the tool step and its result) and the
usage. So more is written here than by the limit.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import apsw
from msgspec import Struct

from bench.harness import Place
from bench.store_contender import Database, Role
from bench.store_payloads import Exchange
from turnkeep.clock import system_clock
from turnkeep.ids import ConversationId, TurnId, new_call_id, new_message_id, new_turn_id
from turnkeep.model.messages import Message
from turnkeep.model.principals import Principal
from turnkeep.model.turns import Held
from turnkeep.store.commands import Appended, Claim, NewConversation, Settlement
from turnkeep.store.ports import Store
from turnkeep.store.postgres import PostgresStore
from turnkeep.store.sqlite import SqliteStore
from turnkeep_client.wire.blocks import Block, Text, ToolResult, ToolUse, Usage
from turnkeep_client.wire.display import fold
from turnkeep_client.wire.events import Result, Step, ToolCall, ToolCalls, TurnEvent

USAGE = Usage(input_tokens=1_200, output_tokens=340)


class LiveTurn(Struct, frozen=True, kw_only=True):
    """A turn as the engine writes it: a claim, two records, a settlement."""

    claim: Claim
    iteration: tuple[tuple[Message, ...], tuple[TurnEvent, ...]]
    result: tuple[tuple[Message, ...], tuple[TurnEvent, ...]]
    settlement: Settlement


class _Turnkeep:
    """Everything but how the store is opened."""

    role: Role = "ours"
    _store: Store
    _principal: Principal

    async def _begin(self, store: Store) -> None:
        self._store = store
        org, workspace = await store.create_org("Bench")
        member = await store.ensure_member(org.id, workspace.id, "reader")
        self._principal = Principal(org_id=org.id, workspace_id=workspace.id, user_id=member.id, role="member")

    async def prepare(self, history: Sequence[Exchange]) -> ConversationId:
        conversation = await self._store.create_conversation(self._principal, NewConversation())
        for exchange in history:
            await self.append(conversation.id, self.shape(conversation.id, exchange))
        return conversation.id

    def shape(self, thread: ConversationId, exchange: Exchange) -> Appended:
        turn_id, now = new_turn_id(), system_clock()
        rows, _ = rows_of(thread, turn_id, exchange)
        return Appended(turn_id=turn_id, rows=rows, usage=USAGE, started_at=now, settled_at=now)

    async def append(self, thread: ConversationId, payload: Appended) -> None:
        await self._store.append(self._principal, thread, payload)

    async def load(self, thread: ConversationId, turns: int) -> Sequence[Any]:
        return (await self._store.window(thread, turns=turns)).rows

    async def transcript(self, thread: ConversationId, messages: int) -> Sequence[Any]:
        return (await self._store.transcript(self._principal, thread, order="desc", limit=messages)).data

    def shape_live(self, thread: ConversationId, exchange: Exchange) -> LiveTurn:
        turn_id = new_turn_id()
        (question, asked, answered, final), events = rows_of(thread, turn_id, exchange)
        claim = Claim(
            principal=self._principal,
            turn_id=turn_id,
            worker="bench",
            lease_seconds=30,
            blocks=question.blocks,
            conversation_id=thread,
        )
        terminal = Result(message_id=final.id, message=exchange.final, content=final.display or (), usage=USAGE)
        return LiveTurn(
            claim=claim,
            iteration=((asked,), events[:2]),
            result=((answered,), events[2:]),
            settlement=Settlement(status="succeeded", terminal=terminal, usage=USAGE, final=final),
        )

    async def live(self, thread: ConversationId, payload: LiveTurn) -> None:
        claimed = await self._store.claim(payload.claim)
        held: Held | None = claimed.held
        assert held is not None
        last = claimed.turn.last_seq
        for rows, events in (payload.iteration, payload.result):
            last = (await self._store.record(held, after=last, rows=rows, events=events)).last_seq
        await self._store.settle(held, after=last, settlement=payload.settlement)

    async def close(self) -> None:
        await self._store.close()


class TurnkeepSqlite(_Turnkeep):
    """On SQLite. Commits are counted from outside, by SQLite's own hook, which costs a little; so only if asked."""

    name = "Turnkeep (SQLite)"
    database: Database = "sqlite"

    def __init__(self, *, counts_commits: bool = False) -> None:
        self._counts_commits = counts_commits
        self._commits = 0

    async def open(self, place: Place) -> None:
        if self._counts_commits:
            apsw.connection_hooks.append(self._count_commits)
        try:
            store = await SqliteStore.open(place.directory / "turnkeep.db")
        finally:
            with suppress(ValueError):
                apsw.connection_hooks.remove(self._count_commits)
        await self._begin(store)

    def commits(self) -> int:
        return self._commits

    def _count_commits(self, connection: apsw.Connection) -> None:
        def hook() -> bool:
            self._commits += 1
            return False

        connection.set_commit_hook(hook, id="bench")


class TurnkeepPostgres(_Turnkeep):
    """On PostgreSQL."""

    name = "Turnkeep (PostgreSQL)"
    database: Database = "postgres"

    async def open(self, place: Place) -> None:
        await self._begin(await PostgresStore.open(await place.create_database("turnkeep")))


def rows_of(
    thread: ConversationId, turn_id: TurnId, exchange: Exchange
) -> tuple[tuple[Message, Message, Message, Message], tuple[TurnEvent, ...]]:
    """The four rows of a turn, and the events between the first and the last."""
    call = ToolUse(id=new_call_id(), name=exchange.tool, input={"query": exchange.asked})
    events: tuple[TurnEvent, ...] = (
        ToolCalls(iteration=1, text=exchange.said, calls=(ToolCall(id=call.id, name=call.name, args=call.input),)),
        Step(id=call.id, name=call.name, status="running", args=call.input),
        Step(id=call.id, name=call.name, status="succeeded", result=exchange.result, duration_ms=12),
    )
    now = system_clock()

    def row(sequence: int, *blocks: Block, **more: Any) -> Message:
        return Message(
            id=new_message_id(),
            turn_id=turn_id,
            conversation_id=thread,
            turn_sequence=sequence,
            role="user" if sequence in {0, 2} else "assistant",
            blocks=blocks,
            created_at=now,
            internal=sequence in {1, 2},
            **more,
        )

    display = fold(events).then_said(text=exchange.final).content
    rows = (
        row(0, Text(text=exchange.user)),
        row(1, Text(text=exchange.said), call, iteration=1, provider="bench/model"),
        row(2, ToolResult(call_id=call.id, content=exchange.result), iteration=1),
        row(3, Text(text=exchange.final), iteration=2, provider="bench/model", display=display, usage=USAGE),
    )
    return rows, events
