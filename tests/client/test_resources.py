"""Every verb of the client against a real server: typed answers, and the server's own errors."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.client.site import Site, rounds_of
from turnkeep.client import (
    AsyncTurnkeep,
    Delta,
    Failure,
    Result,
    Step,
    ToolCalls,
    TurnBegan,
    TurnFailed,
    TurnStopped,
)
from turnkeep.errors import (
    Conflict,
    ConversationBusy,
    Forbidden,
    IdempotencyConflict,
    InvalidRequest,
    NotFound,
    OutOfScope,
    QuotaExceeded,
    RateLimited,
    Unauthorized,
)
from turnkeep.providers.ports import ModelRequest, ProviderFailed
from turnkeep.providers.scripted import Call, Fail, Script, Think, Until
from turnkeep_client.wire.blocks import ReasoningPart, StepPart, TextPart


def with_a_tool(request: ModelRequest) -> Script:
    if not rounds_of(request):
        return [Think("Where? "), "Let me look. ", Call("lookup", {"city": "Bern"})]
    return ["It is ", "sunny."]


@pytest.fixture
async def gated(site: Site) -> AsyncIterator[asyncio.Event]:
    """A model that says one word and then waits."""
    gate = asyncio.Event()
    site.model = lambda request: ["Well, ", Until(gate.wait), "yes."]
    yield gate
    gate.set()


class TestAsking:
    async def test_an_answer_is_text_and_everything_around_it(self, site: Site, turnkeep: AsyncTurnkeep) -> None:
        site.model = with_a_tool
        answer = await turnkeep.ask("Weather?")
        assert str(answer) == answer.text == "It is sunny."
        assert [type(part) for part in answer.content] == [ReasoningPart, TextPart, StepPart, TextPart]
        assert answer.status == "succeeded"
        assert answer.usage.output_tokens == 10
        messages = [one async for one in turnkeep.conversations.messages(answer.conversation_id)]
        assert tuple(messages[1].content) == tuple(answer.content)
        assert messages[1].id == answer.message_id
        assert messages[1].text == "Let me look. \nIt is sunny."

    async def test_a_stream_is_typed_events_in_order(self, site: Site, turnkeep: AsyncTurnkeep) -> None:
        site.model = with_a_tool
        async with turnkeep.stream("Weather?") as stream:
            events = [event async for event in stream]
        kinds = [type(event) for event in events if not isinstance(event, Delta)]
        assert kinds == [TurnBegan, ToolCalls, Step, Step, Result]
        previews = [event.text for event in events if isinstance(event, Delta)]
        assert set(previews) <= {"Where? ", "Let me look. ", "It is ", "sunny."}
        assert stream.is_over
        assert (await stream.result()).text == "It is sunny."

    async def test_what_is_read_so_far_is_what_a_reader_sees(
        self, turnkeep: AsyncTurnkeep, gated: asyncio.Event
    ) -> None:
        async with turnkeep.stream("Really?") as stream:
            async for event in stream:
                if isinstance(event, Delta) and not gated.is_set():
                    assert stream.text == "Well, "
                    assert stream.content == (TextPart(text="Well, "),)
                    gated.set()
            assert stream.text == "Well, yes."

    async def test_words_alone(self, turnkeep: AsyncTurnkeep, gated: asyncio.Event) -> None:
        said: list[str] = []
        async for word in turnkeep.stream("Really?").words():
            said.append(word)
            gated.set()
        assert said[0] == "Well, "
        assert "Well, yes.".startswith("".join(said))

    async def test_a_stream_that_was_left_goes_on_where_it_was(
        self, turnkeep: AsyncTurnkeep, gated: asyncio.Event
    ) -> None:
        stream = turnkeep.stream("Really?")
        first = [await anext(stream), await anext(stream)]
        await stream.close()
        gated.set()
        rest = [event async for event in stream]
        assert [type(event) for event in first + rest if not isinstance(event, Delta)] == [TurnBegan, Result]
        assert stream.text == "Well, yes."

    async def test_a_conversation_goes_on(self, turnkeep: AsyncTurnkeep) -> None:
        first = await turnkeep.ask("Hello?")
        second = await turnkeep.ask("And?", conversation_id=first.conversation_id)
        assert second.conversation_id == first.conversation_id
        assert (await turnkeep.conversations.get(first.conversation_id)).turn_count == 2

    async def test_in_the_background_and_waited_for(self, turnkeep: AsyncTurnkeep, gated: asyncio.Event) -> None:
        accepted = await turnkeep.turns.start("Really?")
        assert (await turnkeep.turns.get(accepted.turn_id)).is_settled is False
        gated.set()
        assert (await turnkeep.turns.wait(accepted.turn_id)).text == "Well, yes."
        turn = await turnkeep.turns.get(accepted.turn_id)
        assert turn.response == "Well, yes."

    async def test_a_stream_of_a_turn_that_is_over_is_the_same_again(self, turnkeep: AsyncTurnkeep) -> None:
        answer = await turnkeep.ask("Hello?")
        assert await turnkeep.turns.wait(answer.turn_id) == answer
        at_the_end = turnkeep.turns.follow(answer.turn_id, after="2")
        assert [event async for event in at_the_end] == []
        assert (await turnkeep.turns.follow(answer.turn_id, after="2").result()).text == "Hello there."

    async def test_regenerate_and_edit_are_streams_too(self, site: Site, turnkeep: AsyncTurnkeep) -> None:
        first = await turnkeep.ask("Hello?")
        site.model = lambda request: ["Again."]
        again = await turnkeep.turns.regenerate(first.conversation_id, first.turn_id).result()
        assert again.text == "Again."
        edited = await turnkeep.turns.edit(first.conversation_id, again.turn_id, "Goodbye?").result()
        messages = [one async for one in turnkeep.conversations.messages(first.conversation_id)]
        assert [one.text for one in messages] == ["Goodbye?", "Again."]
        assert set(messages[0].siblings) == {first.turn_id, again.turn_id, edited.turn_id}

    async def test_the_trace_of_a_turn(self, turnkeep: AsyncTurnkeep) -> None:
        answer = await turnkeep.ask("Hello?")
        trace = await turnkeep.turns.trace(answer.turn_id)
        assert [line["type"] for line in trace] == ["turn", "result"]


class TestStopping:
    async def test_a_stop_keeps_what_was_said(self, turnkeep: AsyncTurnkeep, gated: asyncio.Event) -> None:
        async with turnkeep.stream("Really?") as stream:
            async for event in stream:
                if isinstance(event, Delta):
                    await stream.cancel()
            assert stream.text == "Well, "
            with pytest.raises(TurnStopped) as stopped:
                await stream.result()
        assert stopped.value.answer.content == (TextPart(text="Well, "),)
        assert stopped.value.answer.status == "cancelled"
        assert (await turnkeep.turns.cancel(stream.turn_id or "")).status == "cancelled"

    async def test_a_stop_before_the_first_event_loses_no_event(
        self, turnkeep: AsyncTurnkeep, gated: asyncio.Event
    ) -> None:
        stream = turnkeep.stream("Really?")
        await stream.cancel()
        events = [event async for event in stream]
        assert isinstance(events[0], TurnBegan)
        assert isinstance(events[-1], Failure)

    async def test_a_stop_while_somebody_waits_for_the_first_event(
        self, turnkeep: AsyncTurnkeep, gated: asyncio.Event
    ) -> None:
        stream = turnkeep.stream("Really?")
        reading = asyncio.create_task(anext(stream))
        await asyncio.sleep(0)
        assert (await stream.cancel()).status == "cancelled"
        assert isinstance(await reading, TurnBegan)
        assert isinstance([event async for event in stream][-1], Failure)

    async def test_a_failed_turn_is_an_error_with_what_was_kept(self, site: Site, turnkeep: AsyncTurnkeep) -> None:
        site.model = lambda request: ["I was just ", Fail(ProviderFailed("The provider fell over."))]
        with pytest.raises(TurnFailed, match="fell over") as failed:
            await turnkeep.ask("Hello?")
        assert failed.value.answer.error is not None
        assert failed.value.answer.error.code == "provider_error"
        assert failed.value.answer.text == "I was just "


class TestRefusals:
    async def test_busy_names_the_turn_that_runs(self, turnkeep: AsyncTurnkeep, gated: asyncio.Event) -> None:
        running = await turnkeep.turns.start("Really?")
        with pytest.raises(ConversationBusy) as busy:
            await turnkeep.ask("Hello?", conversation_id=running.conversation_id)
        assert busy.value.turn_id == running.turn_id
        waiting = asyncio.create_task(turnkeep.ask("Next?", conversation_id=running.conversation_id, if_busy="enqueue"))
        gated.set()
        assert (await waiting).text == "Well, yes."

    async def test_the_same_key_with_another_question_is_a_conflict(self, turnkeep: AsyncTurnkeep) -> None:
        first = await turnkeep.ask("Hello?", idempotency_key="order-7")
        again = await turnkeep.ask("Hello?", idempotency_key="order-7")
        assert again.turn_id == first.turn_id
        with pytest.raises(IdempotencyConflict) as conflict:
            await turnkeep.ask("Something else?", idempotency_key="order-7")
        assert conflict.value.turn_id == first.turn_id

    async def test_each_is_the_error_that_the_server_raised(self, site: Site, turnkeep: AsyncTurnkeep) -> None:
        with pytest.raises(NotFound):
            await turnkeep.conversations.get("conv_" + "0" * 32)
        with pytest.raises(NotFound):
            await turnkeep.conversations.get("../keys")
        with pytest.raises(InvalidRequest, match="model"):
            await turnkeep.ask("Hello?", model="nobody/knows")
        with pytest.raises(InvalidRequest):
            await turnkeep.turns.follow((await turnkeep.ask("Hello?")).turn_id, after="99").result()
        async with AsyncTurnkeep(site.url, "wrong") as stranger:
            with pytest.raises(Unauthorized):
                await stranger.ask("Hello?")
        token = await turnkeep.tokens.create("ann")
        async with AsyncTurnkeep(site.url, token.token) as ann:
            with pytest.raises(Forbidden):
                await ann.keys.create("mine")

    async def test_a_used_up_quota_is_not_waited_for(self, site: Site, turnkeep: AsyncTurnkeep) -> None:
        key = await turnkeep.keys.create("small", monthly_message_limit=1)
        async with AsyncTurnkeep(site.url, str(key.key)) as small:
            await small.ask("Hello?")
            with pytest.raises(QuotaExceeded):
                await small.ask("Hello?")

    async def test_a_rate_limit_is_waited_for_as_long_as_patience_lasts(
        self, site: Site, turnkeep: AsyncTurnkeep
    ) -> None:
        key = await turnkeep.keys.create("slow", requests_per_minute=1)
        async with AsyncTurnkeep(site.url, str(key.key), patience_seconds=0.2) as slow:
            await slow.usage.get()
            with pytest.raises(RateLimited) as limited:
                await slow.usage.get()
        assert limited.value.retry_after_seconds >= 1


class TestConversations:
    async def test_from_making_to_restoring(self, turnkeep: AsyncTurnkeep) -> None:
        made = await turnkeep.conversations.create(title="Plans", metadata={"a": 1})
        assert (await turnkeep.conversations.rename(made.id, "Dreams")).title == "Dreams"
        assert (await turnkeep.conversations.update(made.id, model="demo")).model == "demo"
        await turnkeep.conversations.delete(made.id)
        with pytest.raises(NotFound):
            await turnkeep.conversations.get(made.id)
        [gone] = [one async for one in turnkeep.conversations.list(deleted=True)]
        assert gone.id == made.id
        assert gone.deleted_at is not None
        assert (await turnkeep.conversations.restore(made.id)).metadata == {"a": 1}

    async def test_are_pinned_and_moved_to_folders(self, turnkeep: AsyncTurnkeep) -> None:
        made = await turnkeep.conversations.create(title="Plans", folder="Travel")
        assert (await turnkeep.conversations.update(made.id, is_pinned=True)).is_pinned
        assert [one.id async for one in turnkeep.conversations.list(folder="Travel", is_pinned=True)] == [made.id]
        assert [(one.name, one.conversations) for one in await turnkeep.conversations.folders()] == [("Travel", 1)]
        assert await turnkeep.conversations.rename_folder("Travel", "Journeys") == 1
        assert (await turnkeep.conversations.get(made.id)).folder == "Journeys"
        assert await turnkeep.conversations.rename_folder("Journeys", None) == 1
        assert (await turnkeep.conversations.get(made.id)).folder is None

    async def test_lists_are_read_page_by_page_and_found_by_words(self, turnkeep: AsyncTurnkeep) -> None:
        for number in range(5):
            await turnkeep.conversations.create(title=f"Plan {number}")
        page = await turnkeep.conversations.page(limit=2)
        assert len(page.data) == 2
        rest = await turnkeep.conversations.page(limit=50, cursor=page.next_cursor)
        assert len(rest.data) == 3
        assert len([one async for one in turnkeep.conversations.list(limit=4)]) == 4
        found = [one async for one in turnkeep.conversations.list("Plan 3")]
        assert [one.title for one in found] == ["Plan 3"]
        assert "**3**" in (found[0].snippet or "")

    async def test_rows_and_replay(self, site: Site, turnkeep: AsyncTurnkeep) -> None:
        site.model = with_a_tool
        answer = await turnkeep.ask("Weather?")
        rows = [row async for row in turnkeep.conversations.trace(answer.conversation_id)]
        assert [row.internal for row in rows] == [False, True, True, False]
        replay = await turnkeep.conversations.replay(answer.conversation_id, provider="anthropic")
        assert replay.turns_included == 1
        assert len(replay.messages) == 4

    async def test_an_export_comes_back_the_same(self, site: Site, turnkeep: AsyncTurnkeep) -> None:
        site.model = with_a_tool
        answer = await turnkeep.ask("Weather?")
        document = await turnkeep.conversations.export(answer.conversation_id)
        imported = await turnkeep.conversations.import_(document)
        copy = imported.conversation
        assert copy.id != answer.conversation_id
        was = [one async for one in turnkeep.conversations.messages(answer.conversation_id)]
        now = [one async for one in turnkeep.conversations.messages(copy.id)]
        assert [(one.role, one.content, one.usage) for one in now] == [
            (one.role, one.content, one.usage) for one in was
        ]
        assert (await turnkeep.ask("And now?", conversation_id=copy.id)).text == "It is sunny."

    async def test_a_history_from_elsewhere_is_continued(self, turnkeep: AsyncTurnkeep) -> None:
        history = b'[{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}]'
        imported = await turnkeep.conversations.import_(history, title="Old")
        assert imported.conversation.title == "Old"
        assert imported.remarks == []
        await turnkeep.ask("Still there?", conversation_id=imported.conversation.id)
        assert (await turnkeep.conversations.get(imported.conversation.id)).message_count == 4

    @pytest.mark.parametrize("body", [b"", b"{", b"[]", b"{}", b'{"turnkeep_export": 99}', b'{"turnkeep_export": 1}'])
    async def test_what_is_no_history_is_refused_and_leaves_nothing(self, turnkeep: AsyncTurnkeep, body: bytes) -> None:
        with pytest.raises(InvalidRequest):
            await turnkeep.conversations.import_(body)
        assert [one async for one in turnkeep.conversations.list()] == []

    async def test_an_agent_of_somebody_else_is_left_behind(self, turnkeep: AsyncTurnkeep) -> None:
        agent = await turnkeep.agents.create("Support")
        made = await turnkeep.conversations.create(agent_id=agent.id)
        await turnkeep.ask("Hello?", conversation_id=made.id)
        document = await turnkeep.conversations.export(made.id)
        assert (await turnkeep.conversations.import_(document)).conversation.agent_id == agent.id
        await turnkeep.agents.delete(agent.id)
        assert (await turnkeep.conversations.import_(document)).conversation.agent_id is None


class TestFeedback:
    async def test_is_given_read_exported_and_taken_back(self, site: Site, turnkeep: AsyncTurnkeep) -> None:
        ann = turnkeep.as_user("ann")
        answer = await ann.ask("Good?")
        rated = await ann.turns.rate(answer.turn_id, "up", comment="Fine.")
        assert (rated.rating, rated.comment) == ("up", "Fine.")
        assert [one async for one in ann.feedback.of(answer.conversation_id)] == [rated]
        [item] = [one async for one in turnkeep.feedback.list(rating="up") if one.turn_id == answer.turn_id]
        assert item.user is not None
        assert (item.user.external_id, item.comment) == ("ann", "Fine.")
        assert answer.turn_id in (await turnkeep.feedback.export()).decode()
        assert (await turnkeep.feedback.export(format="csv")).startswith(b"turn_id,")
        await ann.turns.unrate(answer.turn_id)
        assert [one async for one in ann.feedback.of(answer.conversation_id)] == []


class TestShareLinks:
    async def test_are_made_read_listed_and_revoked(self, site: Site, turnkeep: AsyncTurnkeep) -> None:
        file = await turnkeep.files.upload(b"words", name="a.txt")
        answer = await turnkeep.ask("Shared?", attachment_ids=[file.id])
        made = await turnkeep.shares.create(answer.conversation_id, with_files=True, ttl_seconds=3_600)
        assert made.url is not None
        shown = await turnkeep.shares.open(made.url)
        assert [message.role for message in shown.data] == ["user", "assistant"]
        assert (shown.data[0].text, shown.data[1].text) == ("Shared?", answer.text)
        assert await turnkeep.shares.read_file(made.url, file.id) == b"words"
        assert [one.id async for one in turnkeep.shares.list(answer.conversation_id)] == [made.id]
        await turnkeep.shares.revoke(made.id)
        with pytest.raises(NotFound):
            await turnkeep.shares.open(made.url.partition("#")[2])
        assert [one async for one in turnkeep.shares.list()] == []


class TestTheAccount:
    async def test_users_scopes_and_tools(self, site: Site, turnkeep: AsyncTurnkeep) -> None:
        agent = await turnkeep.agents.create("Support", description="Helps.", starters=["Hello?"], model="demo")
        assert str(agent.tool_secret).startswith("tksec_")
        assert await turnkeep.agents.rotate_tool_secret(agent.id) != agent.tool_secret
        [image] = [image async for image in turnkeep.agents.sandbox_images()]
        assert (image.name, "numpy" in image.packages) == ("science", True)
        token = await turnkeep.tokens.create("lee@example.com", scopes={"agents": [agent.id], "features": []})
        assert token.user.external_id == "lee@example.com"
        async with AsyncTurnkeep(site.url, token.token) as lee:
            [seen] = [one async for one in lee.agents.list()]
            assert (seen.id, seen.description, list(seen.starters)) == (agent.id, "Helps.", ["Hello?"])
            answer = await lee.ask("Hello?", agent_id=agent.id)
            with pytest.raises(OutOfScope):
                await lee.ask("Hello?")
            conversation = await turnkeep.conversations.get(answer.conversation_id)
            assert conversation.user is not None
            assert conversation.user.external_id == "lee@example.com"
            [found] = [one async for one in turnkeep.users.list("lee@")]
            assert await turnkeep.users.get("lee@example.com") == found
            changed = await turnkeep.users.update(found.id, name="Lee", is_disabled=True, monthly_cost_limit=1.5)
            assert (changed.name, changed.is_disabled, changed.monthly_cost_limit) == ("Lee", True, 1.5)
            with pytest.raises(Forbidden, match="disabled"):
                await lee.ask("Hello?", agent_id=agent.id)
        key = await turnkeep.keys.create("scoped", scopes={"models": []})
        assert key.scopes is not None
        assert (key.scopes.agents, list(key.scopes.models)) == ("*", [])
        assert [one.name async for one in turnkeep.tools.list()] == ["lookup"]
        await turnkeep.keys.revoke(key.id)
        await turnkeep.agents.delete(agent.id)

    async def test_agents(self, turnkeep: AsyncTurnkeep) -> None:
        made = await turnkeep.agents.create("Support", instructions="Be brief.", model="demo")
        assert (await turnkeep.agents.update(made.id, instructions="Be kind.")).instructions == "Be kind."
        assert (await turnkeep.agents.replace(made.id, {"name": "Help"})).instructions == ""
        assert [one.name async for one in turnkeep.agents.list()] == ["Help"]
        assert (await turnkeep.agents.get(made.id)).name == "Help"
        await turnkeep.agents.delete(made.id)
        assert [one async for one in turnkeep.agents.list()] == []

    async def test_webhooks(self, turnkeep: AsyncTurnkeep) -> None:
        made = await turnkeep.webhooks.create("https://hook.invalid/", ["turn.succeeded", "file.created"])
        assert (made.is_enabled, str(made.secret)[:6]) == (True, "whsec_")
        shown = await turnkeep.webhooks.get(made.id)
        assert (shown.secret, shown.events) == (None, ["turn.succeeded", "file.created"])
        assert [one.id async for one in turnkeep.webhooks.list()] == [made.id]
        answer = await turnkeep.ask("Hello?")
        [delivery] = [one async for one in turnkeep.webhooks.deliveries(made.id)]
        assert (delivery.type, delivery.payload.data["turn_id"]) == ("turn.succeeded", answer.turn_id)
        assert (await turnkeep.webhooks.redeliver(made.id, delivery.id)).status == "pending"
        changed = await turnkeep.webhooks.update(made.id, is_enabled=False, events=["turn.failed"])
        assert (changed.is_enabled, changed.events, changed.url) == (False, ["turn.failed"], made.url)
        await turnkeep.webhooks.delete(made.id)
        assert [one async for one in turnkeep.webhooks.list()] == []

    async def test_keys_tokens_workspaces_usage_and_models(self, site: Site, turnkeep: AsyncTurnkeep) -> None:
        key = await turnkeep.keys.create("web")
        async with AsyncTurnkeep(site.url, str(key.key), user="Zoë") as zoe:
            answer = await zoe.ask("Hello?")
            assert (await zoe.usage.get()).messages == 1
            assert (await zoe.usage.csv("model")).count("\n") == 2
            assert [one.id async for one in zoe.usage.turns()] == [answer.turn_id]
            shown = await zoe.turns.timeline(answer.turn_id)
            assert (shown.status, [span.kind for span in shown.spans]) == ("succeeded", ["model"])
            assert (await zoe.turns.span(answer.turn_id, shown.spans[0].id)).text == answer.text
            sent = await zoe.turns.replay(answer.turn_id, iteration=0, provider="anthropic")
            assert "Hello?" in str(sent.messages)
            await zoe.keys.create("next")
        assert (await turnkeep.conversations.get(answer.conversation_id)).user_id is not None
        await turnkeep.keys.revoke(key.id, keep_made=True)
        revoked = {one.name: one.revoked_at is not None async for one in turnkeep.keys.list()}
        assert (revoked["web"], revoked["next"]) == (True, False)
        await turnkeep.keys.revoke(key.id)
        assert {one.name: one.revoked_at is not None async for one in turnkeep.keys.list()}["next"]
        made = await turnkeep.workspaces.create("Lab", monthly_message_limit=5)
        assert (await turnkeep.workspaces.update(made.id, monthly_message_limit=None)).monthly_message_limit is None
        async with site.client(workspace_id=made.id) as lab:
            await lab.ask("Hello?")
            with pytest.raises(Conflict):
                await turnkeep.workspaces.delete(made.id)
        assert {one.name async for one in turnkeep.workspaces.list()} >= {"Lab"}
        assert (await turnkeep.workspaces.get(made.id)).name == "Lab"
        assert {one.id async for one in turnkeep.models.list()} == {"scripted", "demo"}
