"""Grouping: what comes while a write is under way goes out together, and nobody pays for a neighbour."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from msgspec import structs

from tests.store.databases import CLIENT_PASSWORD
from tests.store.factories import (
    Tenant,
    a_claim,
    a_conversation,
    a_row,
    a_tenant,
    answered,
    begin,
    claim,
    elsewhere,
    finish,
    kinds,
    save_workspace,
    step,
)
from turnkeep.errors import (
    ConversationBusy,
    Defect,
    InvalidRequest,
    NotFound,
    QuotaExceeded,
    TurnkeepError,
    Unavailable,
)
from turnkeep.model.turns import Turn
from turnkeep.store.commands import Claimed
from turnkeep.store.postgres import PostgresStore, turns
from turnkeep.store.postgres.io import pool
from turnkeep.store.postgres.io.database import SLOW_SECONDS, Groups


class Flushes:
    """Remembers its groups, and holds each back until it is let go."""

    def __init__(self) -> None:
        self.groups: list[list[str]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.failing: dict[str, TurnkeepError] = {}

    async def flush(self, jobs: Sequence[str]) -> Sequence[str | TurnkeepError]:
        self.groups.append(list(jobs))
        await self.gate.wait()
        for job in jobs:
            if job in self.failing:
                raise self.failing[job]
        return [f"done {job}" for job in jobs]


CROWD = 1_000
READS = 12_000
"""They take longer than a caller waits for a silent database."""


class TestACrowd:
    """More callers at once than one connection serves while a caller has patience with a silent database."""

    @pytest.fixture
    async def small(self, uri: str, tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[PostgresStore]:
        monkeypatch.setattr(pool, "QUEUE_SECONDS", 600.0)  # the machine may be busy
        store = await PostgresStore.open(uri, client_password=CLIENT_PASSWORD, pool_size=1, retry_seconds=3.0)
        yield store
        await store.close()

    async def test_every_claim_is_served_and_so_is_every_settlement(self, small: PostgresStore, tenant: Tenant) -> None:
        async def turn() -> Turn:
            held = await begin(small, tenant.ann)
            await small.window(held.conversation_id)
            return (await small.settle(held, after=1, settlement=answered(held))).turn

        turns = await asyncio.gather(*(turn() for _ in range(CROWD)))
        assert {each.status for each in turns} == {"succeeded"}
        usage = await small.usage(tenant.service, month=turns[0].month)
        assert usage.messages == CROWD

    async def test_every_read_is_served_in_its_turn(self, small: PostgresStore, tenant: Tenant) -> None:
        turn = await finish(small, tenant.ann)
        ended: list[int] = []

        async def read(number: int) -> None:
            assert (await small.window(turn.conversation_id)).rows
            ended.append(number)

        await asyncio.gather(*(read(number) for number in range(READS)))
        assert ended == list(range(READS))

    async def test_claims_leave_connections_for_those_who_settle(self, small: PostgresStore, tenant: Tenant) -> None:
        held = await begin(small, tenant.ann)
        claims = [asyncio.create_task(begin(small, tenant.ann)) for _ in range(CROWD)]
        await asyncio.sleep(0)
        await small.settle(held, after=1, settlement=answered(held))
        assert sum(claim.done() for claim in claims) < CROWD, "it did not wait for all claims"
        await asyncio.gather(*claims)


class TestGroupedClaims:
    async def test_each_gets_its_own_answer(self, store: PostgresStore, tenant: Tenant) -> None:
        busy = await begin(store, tenant.ann)
        first = await finish(store, tenant.ann)
        answers = await asyncio.gather(
            claim(store, tenant.ann, "new"),
            claim(store, tenant.ann, "busy", conversation_id=busy.conversation_id),
            claim(store, tenant.ann, "next", conversation_id=first.conversation_id),
            claim(store, tenant.bob, "foreign", conversation_id=first.conversation_id),
            claim(store, tenant.ann, "queued", conversation_id=busy.conversation_id, if_busy="enqueue"),
            return_exceptions=True,
        )
        found = [each.turn.status if isinstance(each, Claimed) else type(each).__name__ for each in answers]
        assert found == ["running", "ConversationBusy", "running", "NotFound", "queued"]

    @pytest.mark.parametrize("failure", [Unavailable("away"), Defect("odd")], ids=lambda error: error.code)
    async def test_those_that_were_written_are_answered_when_a_later_step_fails(
        self, store: PostgresStore, tenant: Tenant, failure: TurnkeepError, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write, steps = turns._write_claims, 0

        async def write_all_but_one(statements: Any, accepted: Any, answers: Any) -> None:
            nonlocal steps
            steps += 1
            if steps == 2:
                raise failure
            await write(statements, dict(list(accepted.items())[:4]), answers)

        monkeypatch.setattr(turns, "_write_claims", write_all_but_one)
        claims = (claim(store, tenant.ann, f"question {number}") for number in range(5))
        answers = await asyncio.gather(*claims, return_exceptions=True)
        assert [isinstance(answer, Claimed) and answer.held is not None for answer in answers[:4]] == [True] * 4
        assert isinstance(answers[4], Claimed) == isinstance(failure, Defect), "one that is odd is tried again alone"

    async def test_one_over_its_limit_costs_the_others_a_few_statements(
        self, store: PostgresStore, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write, sizes = turns._write_claims, []

        async def counted(statements: Any, accepted: Any, answers: Any) -> None:
            sizes.append(len(accepted))
            await write(statements, accepted, answers)

        monkeypatch.setattr(turns, "_write_claims", counted)
        other = await a_tenant(store, "Other")
        await save_workspace(store, structs.replace(other.workspace, monthly_message_limit=1))
        await claim(store, other.ann)
        callers = [*[tenant.ann] * 20, other.ann, *[tenant.ann] * 20]
        answers = await asyncio.gather(*(claim(store, caller) for caller in callers), return_exceptions=True)
        assert [type(answer) for answer in answers] == [Claimed] * 20 + [QuotaExceeded] + [Claimed] * 20
        assert len(sizes) < 20, sizes

    async def test_the_same_key_at_once_makes_one_turn(self, store: PostgresStore, tenant: Tenant) -> None:
        fields = {"idempotency_key": "k", "request_hash": "h"}
        answers = await asyncio.gather(*(claim(store, tenant.ann, **fields) for _ in range(20)))
        assert len({each.turn.id for each in answers}) == 1
        assert sum(each.is_new for each in answers) == 1
        assert sum(each.held is not None for each in answers) == 1

    async def test_the_same_claim_on_two_workers_at_once_makes_one_turn(
        self, store: PostgresStore, uri: str, tenant: Tenant
    ) -> None:
        other = await PostgresStore.open(uri, client_password=CLIENT_PASSWORD)
        try:
            for _ in range(20):
                request = a_claim(tenant.ann)
                answers = await asyncio.gather(store.claim(request), other.claim(request))
                assert {each.turn.id for each in answers} == {request.turn_id}
                assert len({each.user_message_id for each in answers}) == 1
        finally:
            await other.close()

    async def test_at_a_limit_only_those_over_it_are_refused(self, store: PostgresStore, tenant: Tenant) -> None:
        await save_workspace(store, structs.replace(tenant.workspace, monthly_message_limit=7))
        answers = await asyncio.gather(*(claim(store, tenant.ann) for _ in range(20)), return_exceptions=True)
        assert sum(isinstance(each, Claimed) for each in answers) == 7
        assert sum(isinstance(each, QuotaExceeded) for each in answers) == 13


class TestGroups:
    async def test_a_lone_job_goes_out_at_once_and_alone(self) -> None:
        flushes = Flushes()
        groups: Groups[str, str] = Groups(flushes.flush, lanes=1)
        assert await groups.submit("a", "1") == "done 1"
        assert flushes.groups == [["1"]]

    async def test_jobs_that_come_meanwhile_go_together_but_one_for_each_key(self) -> None:
        flushes = Flushes()
        flushes.gate.clear()
        groups: Groups[str, str] = Groups(flushes.flush, lanes=1)
        first = asyncio.create_task(groups.submit("a", "a1"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        rest = [asyncio.create_task(groups.submit(name[0], name)) for name in ("a2", "b1", "a3", "c1", "b2")]
        await asyncio.sleep(0)
        flushes.gate.set()
        assert await asyncio.gather(first, *rest) == [f"done {name}" for name in ("a1", "a2", "b1", "a3", "c1", "b2")]
        assert flushes.groups == [["a1"], ["a2", "b1", "c1"], ["a3", "b2"]]

    async def test_a_key_is_never_in_two_lanes(self) -> None:
        flushes = Flushes()
        flushes.gate.clear()
        groups: Groups[str, str] = Groups(flushes.flush, lanes=3)
        tasks = [asyncio.create_task(groups.submit("a", f"a{n}")) for n in range(3)]
        await asyncio.sleep(SLOW_SECONDS * 3)
        assert flushes.groups == [["a0"]]
        flushes.gate.set()
        await asyncio.gather(*tasks)
        assert flushes.groups == [["a0"], ["a1"], ["a2"]]

    async def test_what_comes_at_once_goes_out_in_one_group(self) -> None:
        flushes = Flushes()
        groups: Groups[str, str] = Groups(flushes.flush)
        await asyncio.gather(*(groups.submit(f"key {n}", f"{n}") for n in range(6)))
        assert flushes.groups == [["0", "1", "2", "3", "4", "5"]]

    async def test_nobody_waits_long_for_a_group_that_waits_for_a_lock(self) -> None:
        flushes = Flushes()
        flushes.gate.clear()
        groups: Groups[str, str] = Groups(flushes.flush, lanes=2)
        stuck = [asyncio.create_task(groups.submit(f"key {n}", f"{n}")) for n in range(2)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        later = [asyncio.create_task(groups.submit(f"key {n}", f"{n}")) for n in range(2, 6)]
        async with asyncio.timeout(30):
            while len(flushes.groups) < 2:  # noqa: ASYNC110 - the groups tell nobody
                await asyncio.sleep(0.01)
        assert flushes.groups == [["0", "1"], ["2", "3", "4", "5"]]
        await asyncio.sleep(SLOW_SECONDS * 3)
        assert len(flushes.groups) == 2, "no more lanes than there are"
        flushes.gate.set()
        await asyncio.gather(*stuck, *later)

    async def test_only_the_guilty_job_fails(self) -> None:
        flushes = Flushes()
        flushes.failing["b"] = InvalidRequest("no")
        groups: Groups[str, str] = Groups(flushes.flush, lanes=1)
        answers = await asyncio.gather(*(groups.submit(name, name) for name in "abc"), return_exceptions=True)
        assert [str(answer) for answer in answers] == ["done a", "no", "done c"]

    async def test_a_database_that_is_away_fails_them_all_once(self) -> None:
        flushes = Flushes()
        flushes.failing["b"] = Unavailable("away")
        groups: Groups[str, str] = Groups(flushes.flush, lanes=1)
        answers = await asyncio.gather(*(groups.submit(name, name) for name in "abc"), return_exceptions=True)
        assert [str(answer) for answer in answers] == ["away"] * 3
        assert len(flushes.groups) == 1

    async def test_a_job_that_comes_as_the_last_lane_ends_is_not_forgotten(self) -> None:
        flushes = Flushes()
        groups: Groups[str, str] = Groups(flushes.flush, lanes=1)

        async def again_and_again(key: str) -> None:
            for n in range(200):
                await groups.submit(key, f"{key}{n}")

        async with asyncio.timeout(20):
            await asyncio.gather(*(again_and_again(key) for key in "abcdefgh"))

    async def test_closing_waits_for_what_has_begun(self) -> None:
        flushes = Flushes()
        flushes.gate.clear()
        groups: Groups[str, str] = Groups(flushes.flush, lanes=1)
        task = asyncio.create_task(groups.submit("a", "a"))
        await asyncio.sleep(0)
        closing = asyncio.create_task(groups.close())
        await asyncio.sleep(0)
        assert not closing.done()
        flushes.gate.set()
        await closing
        assert await task == "done a"


class TestOnTheDatabase:
    async def test_appends_of_many_conversations_share_statements_and_are_all_there(
        self, store: PostgresStore, tenant: Tenant
    ) -> None:
        conversations = [await a_conversation(store, tenant.ann) for _ in range(20)]

        async def fill(conversation_id: str) -> None:
            for ordinal in range(1, 6):
                turn = elsewhere(conversation_id, "q", "between", "a")  # type: ignore[arg-type]
                assert await store.append(tenant.ann, turn.rows[0].conversation_id, turn) == ordinal

        await asyncio.gather(*(fill(each.id) for each in conversations))
        for each in conversations:
            found = await store.conversation(tenant.ann, each.id)
            assert (found.turn_count, found.message_count) == (5, 10)
            window = await store.window(each.id)
            assert [row.turn_sequence for row in window.rows] == [0, 1, 2] * 5
            exported = await store.export_conversation(tenant.service, each.id)
            turns = [trace.turn for trace in exported.turns]
            assert [turn.parent_turn_id for turn in turns] == [None, *(turn.id for turn in turns[:-1])]

    async def test_a_refused_append_harms_none_of_its_neighbours(self, store: PostgresStore, tenant: Tenant) -> None:
        good = [await a_conversation(store, tenant.ann) for _ in range(6)]
        foreign = await a_conversation(store, tenant.bob)
        busy = await begin(store, tenant.ann)
        known = elsewhere(good[0].id)
        await store.append(tenant.ann, good[0].id, known)
        turns = [(each.id, elsewhere(each.id)) for each in good[1:]]
        turns[2:2] = [(foreign.id, elsewhere(foreign.id)), (busy.conversation_id, elsewhere(busy.conversation_id))]
        turns[4:4] = [(good[0].id, known)]
        answers = await asyncio.gather(
            *(store.append(tenant.ann, conversation_id, turn) for conversation_id, turn in turns),
            return_exceptions=True,
        )
        assert [type(answer) if isinstance(answer, Exception) else answer for answer in answers] == [
            1, 1, NotFound, ConversationBusy, 1, 1, 1, 1,
        ]  # fmt: skip
        for each in good:
            assert (await store.conversation(tenant.ann, each.id)).turn_count == 1

    async def test_a_user_without_a_name_appends_nowhere_alone_or_in_a_group(
        self, store: PostgresStore, tenant: Tenant
    ) -> None:
        conversations = [await a_conversation(store, tenant.ann) for _ in range(6)]
        nobody = structs.replace(tenant.ann, user_id=None, role="admin")
        answers = await asyncio.gather(
            *(store.append(nobody, each.id, elsewhere(each.id)) for each in conversations), return_exceptions=True
        )
        assert [type(answer) for answer in answers] == [NotFound] * 6
        for each in conversations:
            assert (await store.conversation(tenant.ann, each.id)).turn_count == 0

    async def test_a_control_character_inside_a_name_is_kept(self, store: PostgresStore, tenant: Tenant) -> None:
        conversations = [await a_conversation(store, tenant.ann) for _ in range(4)]
        turns = [elsewhere(each.id, model="a\x1fb") for each in conversations]
        turns[0] = structs.replace(turns[0], rows=(structs.replace(turns[0].rows[0], provider="a\x1fb"),))
        appends = (store.append(tenant.ann, turn.rows[0].conversation_id, turn) for turn in turns)
        assert await asyncio.gather(*appends) == [1] * 4
        [trace] = (await store.export_conversation(tenant.service, conversations[0].id)).turns
        assert (trace.turn.model, trace.rows[0].provider) == ("a\x1fb", "a\x1fb")

    async def test_a_record_with_a_taken_place_fails_alone(self, store: PostgresStore, tenant: Tenant) -> None:
        held = [await begin(store, tenant.ann) for _ in range(8)]
        bad = held[3]
        answers = await asyncio.gather(
            *(
                store.record(each, after=1, rows=[a_row(each, 0 if each is bad else 1)], events=[step("a")])
                for each in held
            ),
            return_exceptions=True,
        )
        assert [isinstance(answer, Defect) for answer in answers] == [each is bad for each in held]
        for each in held:
            expected = ["turn"] if each is bad else ["turn", "step"]
            assert kinds(await store.events(each.turn_id)) == expected

    async def test_a_question_that_fails_after_the_write_is_the_answer_of_its_job_alone(
        self, store: PostgresStore, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A record or a settlement that comes again asks whether its events are stored."""
        held = [await begin(store, tenant.ann) for _ in range(4)]
        again = held[1]
        await store.record(again, after=1, events=[step("a"), step("b")])

        async def away(*args: object) -> bool:
            raise Unavailable("away")

        monkeypatch.setattr(store, "_has_events", away)
        records = (store.record(each, after=1, events=[step("a")]) for each in held)
        answers = await asyncio.gather(*records, return_exceptions=True)
        assert [isinstance(answer, Unavailable) for answer in answers] == [each is again for each in held]
        await store.settle(again, after=3, settlement=answered(again))
        settlements = (store.settle(each, after=3 if each is again else 2, settlement=answered(each)) for each in held)
        settled = await asyncio.gather(*settlements, return_exceptions=True)
        assert [isinstance(answer, Unavailable) for answer in settled] == [each is again for each in held]

    async def test_settlements_of_many_count_every_token(self, store: PostgresStore, tenant: Tenant) -> None:
        held = [await begin(store, by) for by in (tenant.ann, tenant.bob, tenant.service) for _ in range(7)]
        settled = await asyncio.gather(*(store.settle(each, after=1, settlement=answered(each)) for each in held))
        assert {each.turn.status for each in settled} == {"succeeded"}
        usage = await store.usage(tenant.service)
        assert (usage.messages, usage.input_tokens, usage.output_tokens) == (21, 210, 105)
        assert (await store.usage(tenant.ann)).input_tokens == 70

    @pytest.mark.parametrize("prepared", [True, False])
    async def test_the_same_without_prepared_statements(self, uri: str, prepared: bool) -> None:
        store = await PostgresStore.open(uri, client_password=CLIENT_PASSWORD, prepared_statements=prepared)
        tenant = await a_tenant(store)
        turns = await asyncio.gather(*(finish(store, tenant.ann, f"question {n}") for n in range(10)))
        for turn in turns:
            assert len((await store.transcript(tenant.ann, turn.conversation_id)).data) == 2
        assert len((await store.conversations(tenant.ann, query="quest")).data) == 10
        await store.close()
