"""Reading: windows for the model, transcripts for readers, traces for operators, events for streams."""

import pytest
from msgspec import structs

from tests.store.databases import Database
from tests.store.factories import (
    Tenant,
    a_conversation,
    a_file,
    a_row,
    a_tenant,
    answered,
    as_user,
    begin,
    elsewhere,
    failed,
    final_row,
    finish,
    finish_with_tool,
    kinds,
    message_ids,
    spoken,
    step,
    stopped,
    transcript_of,
    wait_in_queue,
)
from turnkeep.errors import Forbidden, InvalidRequest, NotFound
from turnkeep.ids import ConversationId, new_conversation_id, new_turn_id
from turnkeep.model.messages import Message, Order, PublicMessage
from turnkeep.model.turns import TurnError, TurnReport, WindowCut
from turnkeep.store import commands
from turnkeep.store.commands import Settlement
from turnkeep.store.ports import Store
from turnkeep_client.wire.blocks import Reasoning, ReasoningPart, StepPart, Text, TextPart, ToolUse, Usage
from turnkeep_client.wire.events import Failure, LogLine


async def a_thread(store: Store, tenant: Tenant, turns: int) -> ConversationId:
    conversation = await a_conversation(store, tenant.ann)
    for number in range(1, turns + 1):
        turn = elsewhere(conversation.id, f"Q{number}", f"thinking {number}", f"A{number}")
        await store.append(tenant.ann, conversation.id, turn)
    return conversation.id


class TestTheWindow:
    async def test_it_holds_the_newest_turns_whole_and_oldest_first(self, store: Store, tenant: Tenant) -> None:
        conversation_id = await a_thread(store, tenant, 5)
        window = await store.window(conversation_id, turns=2)
        assert said(window.rows) == ["Q4", "thinking 4", "A4", "Q5", "thinking 5", "A5"]
        assert not window.is_cut

    async def test_by_default_it_holds_twenty(self, store: Store, tenant: Tenant) -> None:
        conversation_id = await a_thread(store, tenant, 21)
        assert said((await store.window(conversation_id)).rows)[0] == "Q2"

    async def test_the_running_turn_is_in_it(self, store: Store, tenant: Tenant) -> None:
        first = await finish_with_tool(store, tenant.ann)
        held = await begin(store, tenant.ann, "Now", conversation_id=first.conversation_id)
        await store.record(held, after=1, rows=[a_row(held, 1)])
        window = await store.window(first.conversation_id)
        assert [(row.turn_id, row.turn_sequence) for row in window.rows] == [
            *((first.id, number) for number in range(4)),
            (held.turn_id, 0),
            (held.turn_id, 1),
        ]

    async def test_rows_are_those_that_were_recorded_without_their_display(self, store: Store, tenant: Tenant) -> None:
        turn = await finish_with_tool(store, tenant.ann)
        window = await store.window(turn.conversation_id)
        rows = await store.turn_rows(turn.id)
        assert rows[-1].display is not None
        assert list(window.rows) == [structs.replace(row, display=None) for row in rows]

    async def test_more_rows_than_the_limit_cuts_the_oldest_and_says_so(self, store: Store, tenant: Tenant) -> None:
        conversation_id = await a_thread(store, tenant, 3)
        window = await store.window(conversation_id, row_limit=5)
        assert said(window.rows) == ["thinking 2", "A2", "Q3", "thinking 3", "A3"]
        assert window.is_cut

    async def test_exactly_the_limit_is_not_cut(self, store: Store, tenant: Tenant) -> None:
        conversation_id = await a_thread(store, tenant, 3)
        assert not (await store.window(conversation_id, row_limit=9)).is_cut
        assert not (await store.window(conversation_id, turns=2, row_limit=6)).is_cut

    async def test_earlier_turns_are_read_page_by_page(self, store: Store, tenant: Tenant) -> None:
        conversation_id = await a_thread(store, tenant, 7)
        pages, before = [], None
        for _ in range(5):
            window = await store.window(conversation_id, turns=3, before=before)
            pages.append([text for text in said(window.rows) if text.startswith("Q")])
            before = window.first
            if before is None:
                break
        assert pages == [["Q5", "Q6", "Q7"], ["Q2", "Q3", "Q4"], ["Q1"]]

    async def test_a_page_whose_rows_were_cut_says_where_it_begins(self, store: Store, tenant: Tenant) -> None:
        conversation_id = await a_thread(store, tenant, 3)
        window = await store.window(conversation_id, row_limit=5)
        again = await store.window(conversation_id, before=None if window.first is None else window.first + 1)
        assert said(again.rows) == ["Q1", "thinking 1", "A1", "Q2", "thinking 2", "A2"]

    async def test_it_has_the_newest_cut_that_its_turns_report(self, store: Store, tenant: Tenant) -> None:
        first = await finish(store, tenant.ann)
        cuts = [WindowCut(first=first.id, size=size) for size in (1_000, 2_000)]
        reports = [*(TurnReport(cut=cut) for cut in cuts), TurnReport(finish="length"), TurnReport()]
        for report in reports:
            held = await begin(store, tenant.ann, conversation_id=first.conversation_id)
            settled = await store.settle(held, after=1, settlement=answered(held, report=report))
            assert settled.turn.report == report
            assert (await store.turn(tenant.ann, held.turn_id)).report == report
        window = await store.window(first.conversation_id)
        assert window.cut == cuts[1]
        assert (await store.window(first.conversation_id, turns=2)).cut is None

    async def test_of_an_unknown_conversation_it_is_empty(self, store: Store, tenant: Tenant) -> None:
        window = await store.window(new_conversation_id())
        assert (window.rows, window.is_cut) == ((), False)


def said(rows: tuple[Message, ...]) -> list[str]:
    return ["".join(block.text for block in row.blocks if isinstance(block, Text)) for row in rows]


class TestAMessage:
    """It says what its turn was asked with, and what the engine reports of it."""

    async def test_has_the_error_the_model_and_the_metadata_of_its_turn(self, store: Store, tenant: Tenant) -> None:
        held = await begin(store, tenant.ann, metadata={"ticket": 7}, model="demo/x")
        await store.settle(held, after=1, settlement=stopped(held, "Half"))
        question, answer = (await store.transcript(tenant.ann, held.conversation_id)).data
        for message in (question, answer):
            assert message.error == TurnError(code="cancelled", message="It ended: cancelled.")
            assert message.metadata == {"ticket": 7}
            assert message.finish is None
        assert question.model == "demo/x"

    async def test_has_the_report_of_its_turn(self, store: Store, tenant: Tenant) -> None:
        files = [await a_file(store, tenant.ann) for _ in range(2)]
        ids = tuple(file.id for file in files)
        held = await begin(store, tenant.ann, attachment_ids=ids)
        report = TurnReport(finish="length", readings={ids[0]: "text", ids[1]: "named"})
        running = (await store.transcript(tenant.ann, held.conversation_id)).data[0]
        assert [ref.reading for ref in running.attachments] == [None, None]
        await store.settle(held, after=1, settlement=answered(held, report=report))
        question, answer = (await store.transcript(tenant.ann, held.conversation_id)).data
        assert [ref.reading for ref in question.attachments] == ["text", "named"]
        assert (question.finish, answer.finish) == (None, "length")

    async def test_that_waits_has_what_its_turn_was_asked_with(self, store: Store, tenant: Tenant) -> None:
        held = await begin(store, tenant.ann)
        await wait_in_queue(store, tenant.ann, held.conversation_id, metadata={"ticket": 8}, model="demo/y")
        [message] = (await store.conversation_with_queue(tenant.ann, held.conversation_id)).queue
        assert (message.metadata, message.model, message.error) == ({"ticket": 8}, "demo/y", None)

    async def test_that_was_cut_in_a_failed_turn_is_that_of_the_last_event(self, store: Store, tenant: Tenant) -> None:
        held = await begin(store, tenant.ann)
        cut = (StepPart(id="s", name="n", status="failed", error="x", is_cut=True),)
        final = final_row(held, 1, "", display=cut, usage=Usage())
        failure = Failure(code="x", message="It failed.", message_id=final.id, content=cut)
        error = TurnError(code="x", message="It failed.")
        settlement = Settlement(status="failed", terminal=failure, usage=Usage(), final=final, error=error)
        await store.settle(held, after=1, settlement=settlement)
        assert (await store.events(held.turn_id))[-1].event == failure
        assert (await store.transcript(tenant.ann, held.conversation_id)).data[-1].content == cut


class TestEvents:
    async def test_after_a_number_up_to_a_limit(self, store: Store, tenant: Tenant) -> None:
        held = await begin(store, tenant.ann)
        await store.record(held, after=1, events=[step(f"s{number}") for number in range(9)])
        assert [event.seq for event in await store.events(held.turn_id, after=7)] == [8, 9, 10]
        assert [event.seq for event in await store.events(held.turn_id, after=2, limit=3)] == [3, 4, 5]
        assert await store.events(held.turn_id, after=10) == []

    async def test_of_an_unknown_turn_there_are_none(self, store: Store, tenant: Tenant) -> None:
        assert await store.events(new_turn_id()) == []
        assert await store.turn_rows(new_turn_id()) == []

    async def test_a_week_later_they_are_the_same(self, store: Store, tenant: Tenant, database: Database) -> None:
        turn = await finish_with_tool(store, tenant.ann)
        before = await store.events(turn.id)
        await database.advance(seconds=7 * 24 * 3600)
        await finish(store, tenant.ann, conversation_id=turn.conversation_id)
        assert await store.events(turn.id) == before


class TestTheTranscript:
    async def test_it_shows_visible_messages_only(self, store: Store, tenant: Tenant) -> None:
        turn = await finish_with_tool(store, tenant.ann, "Weather?", "Rain.")
        await store.append(
            tenant.ann, turn.conversation_id, elsewhere(turn.conversation_id, "Q", "secret thoughts", "A")
        )
        assert await transcript_of(store, tenant.ann, turn.conversation_id) == [
            "user: Weather?",
            "assistant: <step> Rain.",
            "user: Q",
            "assistant: A",
        ]

    async def test_a_row_without_display_is_shown_from_its_blocks(self, store: Store, tenant: Tenant) -> None:
        conversation = await a_conversation(store, tenant.ann)
        turn = elsewhere(conversation.id, "Q", "A")
        blocks = (
            Reasoning(text="hm"),
            Text(text="A"),
            ToolUse(id="call-1", name="f", input={"a": 1}),  # type: ignore[arg-type]
        )
        final = structs.replace(turn.rows[1], display=None, blocks=blocks)
        await store.append(tenant.ann, conversation.id, structs.replace(turn, rows=(turn.rows[0], final)))
        answer = (await store.transcript(tenant.ann, conversation.id)).data[1]
        assert answer.content == (
            ReasoningPart(text="hm"),
            TextPart(text="A"),
            StepPart(id="call-1", name="f", status="running", args={"a": 1}),
        )

    async def test_a_message_tells_how_its_turn_stands(self, store: Store, tenant: Tenant) -> None:
        held = await begin(store, tenant.ann)
        [message] = (await store.transcript(tenant.ann, held.conversation_id)).data
        assert (message.turn_id, message.status) == (held.turn_id, "running")
        await store.settle(held, after=1, settlement=failed(held))
        [message] = (await store.transcript(tenant.ann, held.conversation_id)).data
        assert message.status == "failed"

    @pytest.mark.parametrize("order", ["asc", "desc"])
    @pytest.mark.parametrize("limit", [1, 3, 4, 14, 100])
    async def test_pages_of_any_size_meet_every_message_once(
        self, store: Store, tenant: Tenant, order: Order, limit: int
    ) -> None:
        conversation_id = await a_thread(store, tenant, 7)
        everything = [line for n in range(1, 8) for line in (f"user: Q{n}", f"assistant: A{n}")]
        met: list[str] = []
        cursor: str | None = None
        pages = 0
        while pages == 0 or cursor is not None:
            page = await store.transcript(tenant.ann, conversation_id, order=order, limit=limit, cursor=cursor)
            assert len(page.data) <= limit
            met += spoken(page)
            cursor = page.next_cursor
            pages += 1
        assert met == (everything if order == "asc" else everything[::-1])
        assert pages == -(-14 // limit)

    async def test_a_page_stays_valid_while_the_conversation_goes_on(self, store: Store, tenant: Tenant) -> None:
        conversation_id = await a_thread(store, tenant, 2)
        page = await store.transcript(tenant.ann, conversation_id, limit=3)
        await store.append(tenant.ann, conversation_id, elsewhere(conversation_id, "Q3", "A3"))
        rest = await store.transcript(tenant.ann, conversation_id, cursor=page.next_cursor)
        assert spoken(rest) == ["assistant: A2", "user: Q3", "assistant: A3"]

    async def test_an_empty_conversation_has_an_empty_page(self, store: Store, tenant: Tenant) -> None:
        conversation = await a_conversation(store, tenant.ann)
        page = await store.transcript(tenant.ann, conversation.id)
        assert (page.data, page.next_cursor) == ((), None)

    @pytest.mark.parametrize("cursor", ["", "nonsense", "WzFd", "eyJhIjoxfQ", "\0", "é", "WyJhIiwiYiJd", "A" * 10_000])
    async def test_a_cursor_that_we_never_handed_out_is_refused(
        self, store: Store, tenant: Tenant, cursor: str
    ) -> None:
        turn = await finish(store, tenant.ann)
        with pytest.raises(InvalidRequest):
            await store.transcript(tenant.ann, turn.conversation_id, cursor=cursor)
        with pytest.raises(InvalidRequest):
            await store.conversations(tenant.ann, cursor=cursor)
        with pytest.raises(InvalidRequest):
            await store.conversation_trace(tenant.service, turn.conversation_id, cursor=cursor)

    @pytest.mark.parametrize("limit", [0, -1, 101, True, 1.5, "10", None])
    async def test_a_limit_is_from_1_to_100(self, store: Store, tenant: Tenant, limit: int) -> None:
        turn = await finish(store, tenant.ann)
        with pytest.raises(InvalidRequest):
            await store.transcript(tenant.ann, turn.conversation_id, limit=limit)
        with pytest.raises(InvalidRequest):
            await store.conversations(tenant.ann, limit=limit)
        with pytest.raises(InvalidRequest):
            await store.conversation_trace(tenant.service, turn.conversation_id, limit=limit)
        with pytest.raises(InvalidRequest):
            await store.agents(tenant.ann, limit=limit)


class TestTraces:
    async def test_a_turn_with_everything(self, store: Store, tenant: Tenant) -> None:
        held = await begin(store, tenant.ann)
        line = LogLine(after_seq=2, level="debug", message="x", ts=3)
        await store.record(held, after=1, rows=[a_row(held, 1)], events=[step("a")], logs=[line])
        settled = await store.settle(held, after=2, settlement=answered(held, sequence=2))
        trace = await store.trace(tenant.service, held.turn_id)
        assert trace.turn == settled.turn
        assert list(trace.rows) == await store.turn_rows(held.turn_id)
        assert list(trace.events) == await store.events(held.turn_id)
        assert trace.logs == (line,)

    async def test_a_conversation_with_every_row_of_every_branch(self, store: Store, tenant: Tenant) -> None:
        first = await finish_with_tool(store, tenant.ann)
        again = await finish(store, tenant.ann, conversation_id=first.conversation_id, beside=first.id)
        held = await begin(store, tenant.ann, conversation_id=first.conversation_id)
        waiting = await wait_in_queue(store, tenant.ann, first.conversation_id)
        expected = [
            row.id
            for turn_id in (first.id, again.id, held.turn_id, waiting.id)
            for row in await store.turn_rows(turn_id)
        ]
        met: list[Message] = []
        cursor: str | None = None
        while not met or cursor is not None:
            page = await store.conversation_trace(tenant.service, first.conversation_id, limit=3, cursor=cursor)
            met += page.data
            cursor = page.next_cursor
        assert message_ids(met) == expected

    async def test_they_are_for_services_alone(self, store: Store, tenant: Tenant) -> None:
        turn = await finish(store, tenant.ann)
        admin = structs.replace(tenant.ann, role="admin")
        for by in (tenant.ann, admin):
            with pytest.raises(Forbidden):
                await store.trace(by, turn.id)
            with pytest.raises(Forbidden):
                await store.conversation_trace(by, turn.conversation_id)
            with pytest.raises(Forbidden):
                await store.export_conversation(by, turn.conversation_id)

    async def test_a_service_sees_its_own_workspace_and_with_a_user_only_that_users(
        self, store: Store, tenant: Tenant
    ) -> None:
        turn = await finish(store, tenant.ann)
        stranger = await a_tenant(store, "Other")
        assert (await store.trace(as_user(tenant.service, tenant.ann), turn.id)).turn == turn
        for by in (stranger.service, as_user(tenant.service, tenant.bob)):
            with pytest.raises(NotFound):
                await store.trace(by, turn.id)
            with pytest.raises(NotFound):
                await store.conversation_trace(by, turn.conversation_id)
            with pytest.raises(NotFound):
                await store.export_conversation(by, turn.conversation_id)


class TestATurn:
    async def test_its_owner_and_the_service_see_it(self, store: Store, tenant: Tenant) -> None:
        turn = await finish(store, tenant.ann)
        assert await store.turn(tenant.ann, turn.id) == turn
        assert await store.turn(tenant.service, turn.id) == turn

    async def test_nobody_else_does(self, store: Store, tenant: Tenant) -> None:
        turn = await finish(store, tenant.ann)
        stranger = await a_tenant(store, "Other")
        for by in (tenant.bob, stranger.ann, stranger.service, as_user(tenant.service, tenant.bob)):
            with pytest.raises(NotFound):
                await store.turn(by, turn.id)
        with pytest.raises(NotFound):
            await store.turn(tenant.ann, new_turn_id())


class TestTextsComeBackByteForByte:
    @pytest.mark.parametrize(
        "text",
        [
            pytest.param("  spaces\tand\nlines  \r\n", id="whitespace"),
            pytest.param("日本語 한국어 ไทย עברית", id="scripts"),
            pytest.param("\U0001f469\u200d\U0001f4bb e\u0301 \ufeff \u202e", id="joined-and-combining"),
            pytest.param("\\u0000 \\ud800 \\", id="escapes-as-text"),
            pytest.param("'; DROP TABLE turns; -- $1 ? :x %s {}", id="sql"),
            pytest.param("\x01\x1b[31m\x7f", id="control-characters"),
            pytest.param("x" * 1_000_000, id="a-megabyte"),
        ],
    )
    async def test_in_a_message(self, store: Store, tenant: Tenant, text: str) -> None:
        turn = await finish(store, tenant.ann, text, text)
        question, answer = (await store.transcript(tenant.ann, turn.conversation_id)).data
        assert text_of_message(question) == text_of_message(answer) == text

    async def test_json_keeps_its_order_and_its_numbers(self, store: Store, tenant: Tenant) -> None:
        held = await begin(store, tenant.ann)
        args = {"z": 1, "a": 1.0, "m": 1e300, "b": [0.1, 10**15, -0.0], "": {"nested": [[], {}]}}
        use = ToolUse(id="call-1", name="f", input=args)  # type: ignore[arg-type]
        await store.record(held, after=1, rows=[a_row(held, 1, use)])
        [block] = (await store.turn_rows(held.turn_id))[1].blocks
        assert isinstance(block, ToolUse)
        assert repr(block.input) == repr(args)


def text_of_message(message: PublicMessage) -> str:
    [part] = message.content
    assert isinstance(part, TextPart)
    return part.text


class TestStreamsOfOldTurns:
    async def test_a_failed_turn_replays_its_error(self, store: Store, tenant: Tenant) -> None:
        held = await begin(store, tenant.ann)
        await store.settle(held, after=1, settlement=failed(held))
        assert kinds(await store.events(held.turn_id)) == ["turn", "error"]


class TestLongMessages:
    """A page of them has fewer, so that it does not fill the memory of the server."""

    @pytest.mark.parametrize("order", ["asc", "desc"])
    async def test_come_in_shorter_pages_and_each_comes_once(self, store: Store, tenant: Tenant, order: Order) -> None:
        conversation = await a_conversation(store, tenant.ann)
        for number in range(6):
            appended = elsewhere(conversation.id, f"{number} " + "x" * 1_000_000, "short")
            await store.append(tenant.ann, conversation.id, appended)
        counts: list[int] = []
        begun: list[str] = []
        cursor: str | None = None
        while not counts or cursor is not None:
            page = await store.transcript(tenant.ann, conversation.id, order=order, limit=100, cursor=cursor)
            counts.append(len(page.data))
            begun += [
                part.text[:1]
                for message in page.data
                for part in message.content
                if message.role == "user" and isinstance(part, TextPart)
            ]
            cursor = page.next_cursor
        assert sum(counts) == 12
        assert len(counts) > 1
        assert begun == sorted("012345", reverse=order == "desc")

    async def test_are_shown_one_by_one_if_each_is_too_long(
        self, store: Store, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(commands, "PAGE_BYTES", 10)
        conversation = await a_conversation(store, tenant.ann)
        await store.append(tenant.ann, conversation.id, elsewhere(conversation.id, "Question", "Answer"))
        page = await store.transcript(tenant.ann, conversation.id, limit=100)
        assert len(page.data) == 1
        trace = await store.conversation_trace(tenant.service, conversation.id, limit=100)
        assert (len(trace.data), trace.next_cursor is None) == (1, False)
