"""The same random commands for both stores: the same answers, and every promise kept.

The stores make some ids themselves, so answers are compared after each id has been replaced by its kind and the
order of its first appearance. Clocks are moved together, so times are compared as they are.
"""

import asyncio
import functools
import re
import secrets
import shutil
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from msgspec import structs

from tests.store.conversation_invariants import check_invariants
from tests.store.databases import BEGINNING, Database, PostgresDatabase, SqliteDatabase, make_postgres_database
from tests.store.factories import (
    Tenant,
    a_file,
    a_row,
    a_tenant,
    answered,
    elsewhere,
    failed,
    save_workspace,
    step,
    stopped,
)
from turnkeep.errors import ConversationBusy, IdempotencyConflict, TurnkeepError
from turnkeep.ids import (
    PREFIXES,
    CallId,
    ConversationId,
    FileId,
    MessageId,
    TurnId,
    new_file_id,
    new_message_id,
    new_turn_id,
)
from turnkeep.model.principals import Principal
from turnkeep.model.turns import Held
from turnkeep.model.waits import CallAnswer, Wait, WaitingCall, digest_of
from turnkeep.store.commands import (
    Adopted,
    Appended,
    Claim,
    Claimed,
    ConversationChange,
    NewConversation,
    Settlement,
    TokenBinding,
)
from turnkeep.store.ports import Store
from turnkeep_client.wire.blocks import Text
from turnkeep_client.wire.events import Approval, LogLine, ToolCall

Answer = TypeVar("Answer")

TEXTS = ["apple", "apple pie\nwith cream", "banana Split", "東京都", "京都 apple", ""]
QUERIES = ["app", "apple", "pie apple", "ban", "京", "東京", "split", "zebra", ""]
WHO = ["ann", "bob", "service"]

_ID = re.compile(rf"(?:{'|'.join(PREFIXES)})_[0-9a-f]{{32}}")

who = st.sampled_from(WHO)
index = st.integers(0, 7)
text = st.sampled_from(TEXTS)


class Side:
    """One store, with its own names for what both sides know."""

    def __init__(self, database: Database, tenant: Tenant) -> None:
        self.database = database
        self.store: Store = database.store
        self.tenant = tenant
        self.conversations: list[ConversationId] = []
        self.turn_places: dict[TurnId, ConversationId] = {}
        self._names: dict[str, str] = {}

    def principal(self, name: str) -> Principal:
        found: Principal = getattr(self.tenant, name)
        return found

    def conversation(self, number: int) -> ConversationId:
        return self.conversations[number % len(self.conversations)]

    def plain(self, value: object) -> Any:
        """The value without the ids that this side made."""
        return self._renamed(msgspec.to_builtins(value))

    def _renamed(self, value: Any) -> Any:
        if isinstance(value, str):
            return _ID.sub(self._name, value)
        if isinstance(value, list | tuple):
            return [self._renamed(each) for each in value]
        if isinstance(value, dict):
            return {self._renamed(key): self._renamed(each) for key, each in value.items()}
        return value

    def _name(self, match: re.Match[str]) -> str:
        kind = match[0].partition("_")[0]
        return self._names.setdefault(match[0], f"<{kind} {len(self._names)}>")


Command = Callable[[Side], Awaitable[Answer]]


def waiting_call(name: str) -> WaitingCall:
    args = {"amount": 5}
    return WaitingCall(
        id=CallId(name), name="pay", args=args, reason="approval", digest=digest_of("pay", args), identity=f"pay#{name}"
    )


@functools.cache
def postgres_uri() -> str:
    return make_postgres_database("machine")


class TwoStores(RuleBasedStateMachine):
    """Drives both stores, and remembers what was said so that it can be said again."""

    def __init__(self) -> None:
        super().__init__()
        uri = postgres_uri()
        self.runner = asyncio.Runner()
        self.directory = Path(tempfile.mkdtemp())
        self.sides: list[Side] = []
        self.turns: list[TurnId] = []
        self.helds: list[tuple[TurnId, int]] = []
        self.last_seq: dict[TurnId, int] = {}
        self.next_row: dict[TurnId, int] = {}
        self.calls: list[tuple[TurnId, int, CallId]] = []
        """Calls that have waited, with the attempt that let them wait."""
        self.files: list[FileId] = []
        self.tokens: list[bytes] = []
        self.said: list[Command[object]] = []
        self.now = BEGINNING
        self.runner.run(self._open(uri))

    async def _open(self, uri: str) -> None:
        for database in (await SqliteDatabase.open(self.directory / "turnkeep.db"), await PostgresDatabase.open(uri)):
            self.sides.append(Side(database, await a_tenant(database.store)))

    def teardown(self) -> None:
        try:
            self.runner.run(self._check_promises())
        finally:
            for side in self.sides:
                self.runner.run(side.database.close())
            self.runner.close()
            shutil.rmtree(self.directory)

    async def _check_promises(self) -> None:
        for side in self.sides:
            for conversation_id in side.conversations:
                if await _is_there(side, conversation_id):
                    await check_invariants(side.store, side.tenant, conversation_id)

    def both(self, command: Command[Answer], *, again: bool = True) -> list[Answer] | None:
        """The answers of both sides, seen to be the same; None if both refused in the same way."""
        if again:
            self.said.append(command)
        outcomes = [self.runner.run(_outcome(side, command)) for side in self.sides]
        compared = [
            side.plain(_told(outcome)) if isinstance(outcome, TurnkeepError) else side.plain(outcome)
            for side, outcome in zip(self.sides, outcomes, strict=True)
        ]
        assert compared[0] == compared[1]
        answers = [outcome for outcome in outcomes if not isinstance(outcome, TurnkeepError)]
        return answers or None

    def held(self, number: int, stale: int) -> Callable[[Side], Held]:
        turn_id, attempt = self.helds[-1 - number % len(self.helds)]
        attempt = max(1, attempt - stale)
        return lambda side: Held(turn_id=turn_id, conversation_id=side.turn_places[turn_id], attempt=attempt)

    def learn(self, turn_id: TurnId, attempt: int | None, last_seq: int) -> None:
        if turn_id not in self.turns:
            self.turns.append(turn_id)
        self.last_seq[turn_id] = last_seq
        if attempt is not None and (turn_id, attempt) not in self.helds:
            self.helds.append((turn_id, attempt))

    @initialize(limit=st.sampled_from([None, None, 6]))
    def set_limit(self, limit: int | None) -> None:
        self.both(
            lambda side: save_workspace(side.store, structs.replace(side.tenant.workspace, monthly_message_limit=limit))
        )

    # Asking

    @rule(
        by=who,
        new=st.sampled_from([None, None, NewConversation(kind="run"), NewConversation(title="apple tree")]),
        place=index,
        is_first=st.sampled_from([False, False, False, True]),
        words=text,
        if_busy=st.sampled_from(["reject", "enqueue", "interrupt"]),
        beside=st.none() | index,
        key=st.sampled_from([None, None, None, "k1", "k2"]),
        attach=st.none() | index,
        watched=st.sampled_from([None, 10.0]),
        background=st.booleans(),
        source=st.sampled_from(["ui", "api"]),
        queue_limit=st.sampled_from([1, 3]),
    )
    def claim(
        self,
        *,
        by: str,
        new: NewConversation | None,
        place: int,
        is_first: bool,
        words: str,
        beside: int | None,
        key: str | None,
        attach: int | None,
        watched: float | None,
        **plain: Any,
    ) -> None:
        turn_id = new_turn_id()
        is_first = is_first or not self.sides[0].conversations
        beside_id = None if is_first or beside is None or not self.turns else self.turns[beside % len(self.turns)]
        files = () if attach is None or not self.files else (self.files[attach % len(self.files)],)

        def asked(side: Side) -> Claim:
            return Claim(
                principal=side.principal(by),
                turn_id=turn_id,
                worker="worker-1",
                lease_seconds=30,
                blocks=(Text(text=words),),
                conversation_id=None if is_first else side.conversation(place),
                new=new or NewConversation(),
                beside=beside_id,
                attachment_ids=files,
                watched_seconds=watched,
                idempotency_key=key,
                request_hash=words if key else None,
                **plain,
            )

        self._claimed(self.both(lambda side: side.store.claim(asked(side))))

    def _claimed(self, answers: list[Claimed] | None) -> None:
        for side, answer in zip(self.sides, answers or [], strict=False):
            turn = answer.turn
            side.turn_places[turn.id] = turn.conversation_id
            if turn.conversation_id not in side.conversations:
                side.conversations.append(turn.conversation_id)
            self.learn(turn.id, answer.held.attempt if answer.held else None, turn.last_seq)
            self.next_row.setdefault(turn.id, 1)

    @precondition(lambda self: self.said)
    @rule(number=index)
    def say_something_again(self, number: int) -> None:
        """A request whose answer was lost, or a worker that wakes late. A claim that was refused may succeed now."""
        answers = self.both(self.said[-1 - number % len(self.said)], again=False)
        self._claimed([answer for answer in answers or () if isinstance(answer, Claimed)])
        self._learn_everything()

    def _learn_everything(self) -> None:
        side = self.sides[0]
        for turn_id in self.turns:
            events = self.runner.run(side.store.events(turn_id))
            rows = self.runner.run(side.store.turn_rows(turn_id))
            if events and rows:
                self.last_seq[turn_id], self.next_row[turn_id] = events[-1].seq, len(rows)

    @precondition(lambda self: self.sides[0].conversations)
    @rule(by=who, place=index, words=st.lists(text, min_size=2, max_size=3))
    def append(self, by: str, place: int, words: list[str]) -> None:
        turn_id = new_turn_id()
        ids = [new_message_id() for _ in words]

        def asked(side: Side) -> Appended:
            turn = elsewhere(side.conversation(place), *words, turn_id=turn_id)
            rows = tuple(structs.replace(row, id=id_) for row, id_ in zip(turn.rows, ids, strict=True))
            return structs.replace(turn, rows=rows)

        answers = self.both(lambda side: side.store.append(side.principal(by), side.conversation(place), asked(side)))
        if answers is not None:
            for side in self.sides:
                side.turn_places[turn_id] = side.conversation(place)
            self.learn(turn_id, None, 0)

    # Working

    @precondition(lambda self: self.helds)
    @rule(
        number=index,
        stale=st.sampled_from([0, 0, 0, 0, 1]),
        shift=st.sampled_from([0, 0, 0, 0, 0, -1, 1]),
        rows=st.integers(0, 2),
        events=st.integers(0, 3),
        logs=st.integers(0, 1),
    )
    def record(self, number: int, stale: int, shift: int, rows: int, events: int, logs: int) -> None:
        held = self.held(number, stale)
        turn_id = held(self.sides[0]).turn_id
        after, first_row = max(0, self.last_seq[turn_id] + shift), self.next_row.get(turn_id, 1)
        ids = [new_message_id() for _ in range(rows)]
        told = [step(f"s{after}.{n}") for n in range(events)]
        lines = [LogLine(after_seq=after, level="info", message=f"line {n}") for n in range(logs)]

        def written(side: Side) -> Awaitable[object]:
            mine = [a_row(held(side), first_row + n, id=id_) for n, id_ in enumerate(ids)]
            return side.store.record(held(side), after=after, rows=mine, events=told, logs=lines)

        if self.both(written, again=bool(events or rows)) is not None:
            self._learn_everything()

    @precondition(lambda self: self.helds)
    @rule(
        number=index,
        stale=st.sampled_from([0, 0, 0, 0, 1]),
        shift=st.sampled_from([0, 0, 0, 0, 0, -1, 1]),
        how=st.sampled_from(["answered", "answered", "failed", "stopped", "stopped halfway"]),
        words=text,
        events=st.integers(0, 1),
    )
    def settle(self, number: int, stale: int, shift: int, how: str, words: str, events: int) -> None:
        held = self.held(number, stale)
        turn_id = held(self.sides[0]).turn_id
        after, sequence = max(0, self.last_seq[turn_id] + shift), self.next_row.get(turn_id, 1)
        told = tuple(step(f"e{n}", "failed") for n in range(events))
        final_id = new_message_id()

        def end(side: Side) -> Settlement:
            if how == "answered":
                ending = answered(held(side), words, sequence=sequence, events=told)
            elif how == "failed":
                ending = failed(held(side), events=told)
            else:
                partial = words if how == "stopped halfway" else None
                ending = stopped(held(side), partial, sequence=sequence, events=told)
            return _with_final_id(ending, final_id)

        if self.both(lambda side: side.store.settle(held(side), after=after, settlement=end(side))) is not None:
            self._learn_everything()

    # Waiting

    @precondition(lambda self: self.helds)
    @rule(
        number=index,
        stale=st.sampled_from([0, 0, 0, 0, 1]),
        shift=st.sampled_from([0, 0, 0, 0, 0, -1, 1]),
        count=st.integers(1, 2),
        is_held=st.booleans(),
    )
    def wait(self, number: int, stale: int, shift: int, count: int, is_held: bool) -> None:
        held = self.held(number, stale)
        turn_id, attempt = held(self.sides[0]).turn_id, held(self.sides[0]).attempt
        after = max(0, self.last_seq[turn_id] + shift)
        calls = [waiting_call(f"call-{after}-{n}") for n in range(count)]
        asked = Approval(
            calls=tuple(ToolCall(id=call.id, name=call.name, args=call.args) for call in calls), expires_at=0
        )
        wait = Wait(
            calls=tuple(calls),
            since=self.now,
            expires_at=self.now + 30_000,
            reason="approval",
            held_by=attempt if is_held else None,
        )
        if self.both(lambda side: side.store.wait(held(side), after=after, events=[asked], wait=wait)) is not None:
            self.calls += [(turn_id, attempt, call.id) for call in calls]
            self._learn_everything()

    @precondition(lambda self: self.calls)
    @rule(
        by=who,
        numbers=st.lists(index, min_size=1, max_size=2, unique=True),
        verdict=st.sampled_from(["allow", "allow", "deny"]),
        amount=st.sampled_from([None, None, 7]),
        is_remembered=st.booleans(),
    )
    def decide(
        self, by: str, numbers: list[int], verdict: Literal["allow", "deny"], amount: int | None, is_remembered: bool
    ) -> None:
        turn_id = self.calls[-1 - numbers[0] % len(self.calls)][0]
        named = [self.calls[-1 - number % len(self.calls)] for number in numbers]
        is_allowed = verdict == "allow"
        answer = CallAnswer(
            verdict=verdict,
            args={"amount": amount} if amount and is_allowed else None,
            is_remembered=is_remembered and is_allowed,
            by=by,
        )
        answers = {call_id: answer for each, _, call_id in named if each == turn_id}
        self.both(
            lambda side: side.store.answer_calls(side.principal(by), turn_id, answers, reason="approval"), again=True
        )
        self.both(lambda side: side.store.trusted_tools(side.turn_places[turn_id]), again=False)
        self._learn_everything()

    @precondition(lambda self: self.calls)
    @rule(number=index, later=st.integers(0, 1), amount=st.sampled_from([5, 5, 7]))
    def begin_call(self, number: int, later: int, amount: int) -> None:
        """A call in a sandbox begins, or its wait ends."""
        turn_id, attempt, call_id = self.calls[-1 - number % len(self.calls)]
        digest = digest_of("pay", {"amount": amount})
        self.both(lambda side: side.store.end_held_wait(turn_id, attempt + later), again=False)
        self.both(lambda side: side.store.spend_answer(turn_id, attempt + later, call_id, digest))

    @rule(limit=st.integers(1, 3), named=st.none() | index)
    def adopt(self, limit: int, named: int | None) -> None:
        turn_id = None if named is None or not self.turns else self.turns[named % len(self.turns)]
        answers = self.both(
            lambda side: side.store.adopt("worker-2", lease_seconds=30, limit=limit, turn_id=turn_id), again=False
        )
        adopted: list[Adopted] = answers[0] if answers else []
        for each in adopted:
            self.learn(each.turn.id, each.held.attempt, each.turn.last_seq)

    @precondition(lambda self: self.helds)
    @rule(numbers=st.lists(index, max_size=3, unique=True), stale=st.sampled_from([0, 0, 1]))
    def renew(self, numbers: list[int], stale: int) -> None:
        helds = [self.held(number, stale) for number in numbers]
        self.both(lambda side: side.store.renew([held(side) for held in helds], lease_seconds=30))

    @precondition(lambda self: self.helds)
    @rule(number=index, stale=st.sampled_from([0, 0, 1]))
    def hand_over(self, number: int, stale: int) -> None:
        held = self.held(number, stale)
        self.both(lambda side: side.store.hand_over([held(side)]))

    @precondition(lambda self: self.helds)
    @rule(names=st.lists(st.sampled_from(["worker-1", "worker-2"]), max_size=2, unique=True))
    def release(self, names: list[str]) -> None:
        self.both(lambda side: side.store.release(names))

    @precondition(lambda self: self.turns)
    @rule(by=who, number=index)
    def request_cancel(self, by: str, number: int) -> None:
        turn_id = self.turns[number % len(self.turns)]
        self.both(lambda side: side.store.request_cancel(side.principal(by), turn_id))
        self._learn_everything()

    @precondition(lambda self: self.turns)
    @rule(number=index, seconds=st.sampled_from([5.0, 40.0]))
    def watch(self, number: int, seconds: float) -> None:
        turn_id = self.turns[number % len(self.turns)]
        self.both(lambda side: side.store.watch([turn_id], seconds=seconds))

    @rule()
    def sweep(self) -> None:
        self.both(lambda side: side.store.due_work(), again=False)
        self.both(lambda side: side.store.cancel_unwatched(), again=False)
        self.both(lambda side: side.store.promote_waiting(), again=False)
        self.both(lambda side: side.store.end_overdue_waits(), again=False)
        self._learn_everything()

    @rule(seconds=st.sampled_from([0.5, 11, 20, 31, 31, 31, 86_400 * 20]))
    def time_passes(self, seconds: float) -> None:
        self.now += int(seconds * 1000)
        for side in self.sides:
            self.runner.run(side.database.move_clock_to(self.now))

    # Conversations and files

    @precondition(lambda self: self.sides[0].conversations)
    @rule(by=who, place=index, what=st.sampled_from(["delete", "restore", "restore"]))
    def delete_or_restore(self, by: str, place: int, what: str) -> None:
        def asked(side: Side) -> Awaitable[object]:
            verb = side.store.delete_conversation if what == "delete" else side.store.restore_conversation
            return verb(side.principal(by), side.conversation(place))

        self.both(asked)
        self._learn_everything()

    @rule(age=st.sampled_from([0, 10_000, 100_000]))
    def purge(self, age: int) -> None:
        before = self.now - age
        answers = self.both(lambda side: side.store.purge(deleted_before=before), again=False)
        if answers and answers[0].conversations:
            self._forget_what_is_gone()

    def _forget_what_is_gone(self) -> None:
        side = self.sides[0]
        gone = [turn_id for turn_id in self.turns if not self.runner.run(side.store.turn_rows(turn_id))]
        self.turns = [turn_id for turn_id in self.turns if turn_id not in gone]
        self.helds = [(turn_id, attempt) for turn_id, attempt in self.helds if turn_id not in gone]
        self.calls = [each for each in self.calls if each[0] not in gone]

    @precondition(lambda self: self.sides[0].conversations)
    @rule(
        by=who,
        place=index,
        title=st.none() | st.sampled_from(["banana", "東京"]),
        model=st.none() | st.just("m-1"),
        head=st.none() | index,
    )
    def change_conversation(self, by: str, place: int, title: str | None, model: str | None, head: int | None) -> None:
        head_turn_id = None if head is None or not self.turns else self.turns[head % len(self.turns)]
        change = ConversationChange(title=title, model=model, head_turn_id=head_turn_id)
        self.both(lambda side: side.store.change_conversation(side.principal(by), side.conversation(place), change))

    @rule(
        by=who,
        place=st.none() | index,
        name=st.sampled_from(["a.txt", "A.txt", "b"]),
        is_ready=st.sampled_from([True, True, False]),
    )
    def add_file(self, by: str, place: int | None, name: str, is_ready: bool) -> None:
        file_id = new_file_id()

        def added(side: Side) -> Awaitable[object]:
            conversation_id = side.conversation(place) if place is not None and side.conversations else None
            sha256 = "ab" * 32 if is_ready else None
            return a_file(
                side.store, side.principal(by), name, conversation_id=conversation_id, file_id=file_id, sha256=sha256
            )

        if self.both(added, again=False) is not None:
            self.files.append(file_id)

    @precondition(lambda self: self.files)
    @rule(by=who, number=index, what=st.sampled_from(["complete", "complete", "delete"]))
    def complete_or_delete_file(self, by: str, number: int, what: str) -> None:
        file_id = self.files[number % len(self.files)]

        def asked(side: Side) -> Awaitable[object]:
            if what == "delete":
                return side.store.delete_file(side.principal(by), file_id)
            return side.store.complete_file(side.principal(by), file_id, size=3, sha256="ab" * 32)

        self.both(asked)

    @precondition(lambda self: self.helds)
    @rule(number=index, seconds=st.sampled_from([10.0, 600.0]))
    def add_token(self, number: int, seconds: float) -> None:
        token = secrets.token_bytes(32)
        turn_id, attempt = self.helds[number % len(self.helds)]
        binding = TokenBinding(purpose="run", turn_id=turn_id, attempt=attempt)
        self.both(lambda side: side.store.add_token(token, binding, expires_in_seconds=seconds), again=False)
        self.tokens.append(token)

    @precondition(lambda self: self.tokens)
    @rule(number=index, purpose=st.sampled_from(["run", "run", "upload"]))
    def spend_token(self, number: int, purpose: Any) -> None:
        token = self.tokens[number % len(self.tokens)]
        self.both(lambda side: side.store.spend_token(token, purpose))

    # Reading

    @rule(by=who, query=st.none() | st.sampled_from(QUERIES), limit=st.sampled_from([1, 100]))
    def list_conversations(self, by: str, query: str | None, limit: int) -> None:
        async def listed(side: Side) -> object:
            page = await side.store.conversations(side.principal(by), query=query, limit=limit)
            if page.next_cursor is None:
                return page.data, None
            rest = await side.store.conversations(side.principal(by), query=query, cursor=page.next_cursor)
            return page.data, rest.data

        self.both(listed, again=False)

    @rule(limit=st.integers(1, 3))
    def index_pending(self, limit: int) -> None:
        self.both(lambda side: side.store.index_pending(limit=limit), again=False)

    @precondition(lambda self: self.sides[0].conversations)
    @rule(by=who, place=index, order=st.sampled_from(["asc", "desc"]), limit=st.sampled_from([1, 3, 100]))
    def transcript(self, by: str, place: int, order: Any, limit: int) -> None:
        async def read(side: Side) -> object:
            asked = functools.partial(
                side.store.transcript, side.principal(by), side.conversation(place), order=order, limit=limit
            )
            pages = [await asked()]
            while pages[-1].next_cursor is not None:
                pages.append(await asked(cursor=pages[-1].next_cursor))
            return [page.data for page in pages]  # a cursor is of one conversation, and each side has its own ids

        self.both(read, again=False)

    @precondition(lambda self: self.sides[0].conversations)
    @rule(by=who, place=index, turns=st.integers(1, 4), row_limit=st.sampled_from([2, 2_000]))
    def read_conversation(self, by: str, place: int, turns: int, row_limit: int) -> None:
        self.both(
            lambda side: side.store.window(side.conversation(place), turns=turns, row_limit=row_limit), again=False
        )
        self.both(lambda side: side.store.conversation(side.principal(by), side.conversation(place)), again=False)
        self.both(
            lambda side: side.store.conversation_with_queue(side.principal(by), side.conversation(place)), again=False
        )
        self.both(lambda side: side.store.files(side.principal(by), side.conversation(place)), again=False)
        self.both(lambda side: side.store.conversation_trace(side.principal(by), side.conversation(place)), again=False)

    @precondition(lambda self: self.turns)
    @rule(by=who, number=index, after=st.integers(0, 3))
    def read_turn(self, by: str, number: int, after: int) -> None:
        turn_id = self.turns[number % len(self.turns)]
        self.both(lambda side: side.store.turn(side.principal(by), turn_id), again=False)
        self.both(lambda side: side.store.events(turn_id, after=after, limit=2), again=False)
        self.both(lambda side: side.store.trace(side.principal(by), turn_id), again=False)

    @rule(by=who, month=st.sampled_from([None, "2025-06"]))
    def usage(self, by: str, month: str | None) -> None:
        self.both(lambda side: side.store.usage(side.principal(by), month=month), again=False)

    @precondition(lambda self: self.sides[0].conversations)
    @rule(by=who, place=index)
    def export_and_import(self, by: str, place: int) -> None:
        async def copied(side: Side) -> object:
            exported = await side.store.export_conversation(side.tenant.service, side.conversation(place))
            imported = await side.store.import_conversation(side.principal(by), exported)
            side.conversations.append(imported.id)
            return exported, await side.store.export_conversation(side.tenant.service, imported.id)

        self.both(copied, again=False)


async def _outcome(side: Side, command: Command[Answer]) -> Answer | TurnkeepError:
    try:
        return await command(side)
    except TurnkeepError as refused:
        return refused


def _told(refused: TurnkeepError) -> object:
    match refused:
        case ConversationBusy():
            return type(refused).__name__, refused.turn_id, refused.started_at
        case IdempotencyConflict():
            return type(refused).__name__, refused.turn_id
        case _:
            return type(refused).__name__


def _with_final_id(ending: Settlement, final_id: MessageId) -> Settlement:
    if ending.final is None:
        return ending
    return structs.replace(
        ending,
        final=structs.replace(ending.final, id=final_id),
        terminal=structs.replace(ending.terminal, message_id=final_id),
    )


async def _is_there(side: Side, conversation_id: ConversationId) -> bool:
    try:
        await side.store.conversation(side.tenant.service, conversation_id)
    except TurnkeepError:
        return False
    return True


# A failure is told as it was found: making it smaller may take minutes. The nightly run does that.
USUAL = settings(
    max_examples=20,
    stateful_step_count=30,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)
NIGHTLY = settings(USUAL, max_examples=300, stateful_step_count=80, phases=list(Phase), derandomize=False)


@pytest.mark.parametrize("part", [1, 2, 3])
def test_both_stores_answer_alike(part: int) -> None:
    class Part(TwoStores):
        pass

    run_state_machine_as_test(seed(part)(Part), settings=USUAL)


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(8))
def test_both_stores_answer_alike_for_long(part: int) -> None:
    run_state_machine_as_test(TwoStores, settings=NIGHTLY)
