"""Titles that a model writes: once, after the first answer, outside of the turn, and never over the title of a user."""

import asyncio

import pytest
from msgspec import structs

from tests.engine.harness import QUICK, Cluster, Latch
from turnkeep.engine import titles
from turnkeep.engine.titles import title_of
from turnkeep.ids import ConversationId
from turnkeep.providers.ports import ModelRequest, ProviderFailed
from turnkeep.providers.scripted import Fail, Script, Until
from turnkeep.store.commands import ConversationChange

TITLED = structs.replace(QUICK, title_model="scripted/titles")


class Scripts:
    """Answers of the model, and its titles: the last of these again and again."""

    def __init__(self, *titles: Script) -> None:
        self.titles = list(titles)
        self.asked: list[ModelRequest] = []

    def __call__(self, request: ModelRequest) -> Script:
        if request.model != TITLED.title_model:
            return ["The sea is deep."]
        self.asked.append(request)
        return self.titles.pop(0) if len(self.titles) > 1 else self.titles[0]


async def title_by(cluster: Cluster, conversation_id: ConversationId) -> tuple[str | None, str | None]:
    shown = await cluster.store.conversation(cluster.ann, conversation_id)
    return shown.title, shown.titled_by


async def until_titled(cluster: Cluster, conversation_id: ConversationId) -> str | None:
    async def is_decided() -> bool:
        return (await title_by(cluster, conversation_id))[1] is not None

    await cluster.until(is_decided)
    return (await title_by(cluster, conversation_id))[0]


class TestTitles:
    async def test_are_written_after_the_first_answer_and_counted(self, cluster: Cluster) -> None:
        scripts = Scripts(["**“Ocean depth.”**\n\nBecause you asked."])
        engine = await cluster.enter(scripts, settings=TITLED)
        turn = await cluster.answer(engine, "How deep is the sea?")
        assert await until_titled(cluster, turn.conversation_id) == "Ocean depth"
        [request] = scripts.asked
        assert "How deep is the sea?" in str(request.messages)
        assert "The sea is deep." in str(request.messages)
        usage = await cluster.store.usage(cluster.ann)
        assert usage.messages == 1
        assert usage.input_tokens > turn.usage.input_tokens
        await cluster.answer(engine, "And how salty?", conversation_id=turn.conversation_id)
        assert len(scripts.asked) == 1

    async def test_the_turn_does_not_wait_for_them(self, cluster: Cluster) -> None:
        latch = Latch()
        engine = await cluster.enter(Scripts([Until(latch.pass_through), "Ocean depth"]), settings=TITLED)
        turn = await cluster.answer(engine)
        await latch.reached.wait()
        assert turn.status == "succeeded"
        following = await cluster.answer(engine, "And then?", conversation_id=turn.conversation_id)
        assert following.status == "succeeded"
        latch.open()
        assert await until_titled(cluster, turn.conversation_id) == "Ocean depth"

    async def test_a_title_that_a_user_gave_meanwhile_stays(self, cluster: Cluster) -> None:
        latch = Latch()
        engine = await cluster.enter(Scripts([Until(latch.pass_through), "Theirs"]), settings=TITLED)
        turn = await cluster.answer(engine)
        await latch.reached.wait()
        await cluster.store.change_conversation(cluster.ann, turn.conversation_id, ConversationChange(title="Mine"))
        latch.open()

        async def is_ended() -> bool:
            return (await cluster.store.usage(cluster.ann)).input_tokens > turn.usage.input_tokens

        await cluster.until(is_ended)
        assert await title_by(cluster, turn.conversation_id) == ("Mine", "user")

    async def test_a_model_that_fails_is_asked_again_and_then_left_alone(
        self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(titles, "RETRY_SECONDS", 0.01)
        monkeypatch.setattr(titles, "PERIOD_SECONDS", 0.05)
        scripts = Scripts([Fail(ProviderFailed("Out of order."))])
        engine = await cluster.enter(scripts, settings=TITLED)
        turn = await cluster.answer(engine, "How deep is the sea?")
        assert await until_titled(cluster, turn.conversation_id) == "How deep is the sea?"
        assert len(scripts.asked) == 3
        scripts.titles = [["Ocean depth"]]
        again = await cluster.answer(engine, "Again", conversation_id=turn.conversation_id)
        assert again.status == "succeeded"
        assert (await title_by(cluster, turn.conversation_id))[1] == "question"

    async def test_a_worker_that_died_in_the_middle_leaves_it_to_another(
        self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(titles, "LEASE_SECONDS", 0.05)
        monkeypatch.setattr(titles, "PERIOD_SECONDS", 0.05)
        latch = Latch()
        dead = await cluster.enter(Scripts([Until(latch.pass_through), "Lost"]), settings=TITLED, start=False)
        turn = await cluster.answer(dead)
        await dead.titles.want([turn.id])
        dying = asyncio.create_task(dead.titles.write())
        await latch.reached.wait()
        dying.cancel()
        await asyncio.gather(dying, return_exceptions=True)
        assert (await title_by(cluster, turn.conversation_id))[1] is None
        await cluster.enter(Scripts(["Ocean depth"]), settings=TITLED)
        assert await until_titled(cluster, turn.conversation_id) == "Ocean depth"

    async def test_several_workers_write_one(self, cluster: Cluster) -> None:
        scripts = Scripts(["Ocean depth"])
        engines = [await cluster.enter(scripts, settings=TITLED) for _ in range(3)]
        turns = [await cluster.answer(engine) for engine in engines for _ in range(3)]
        for turn in turns:
            assert await until_titled(cluster, turn.conversation_id) == "Ocean depth"
        assert len(scripts.asked) == len(turns)

    async def test_are_off_by_default(self, cluster: Cluster) -> None:
        scripts = Scripts(["Ocean depth"])
        engine = await cluster.enter(scripts)
        turn = await cluster.answer(engine, "How deep is the sea?")
        await engine.drain(seconds=5)
        assert await title_by(cluster, turn.conversation_id) == ("How deep is the sea?", None)
        assert await cluster.store.take_titles(lease_seconds=60) == []


class TestWorkspaces:
    async def choose(self, cluster: Cluster, model: str | None) -> None:
        await cluster.store.change_workspace(
            cluster.ann.org_id, cluster.ann.workspace_id, lambda before: structs.replace(before, title_model=model)
        )

    async def test_choose_a_model_where_the_server_has_none(self, cluster: Cluster) -> None:
        scripts = Scripts(["Ocean depth"])
        engine = await cluster.enter(scripts)
        await self.choose(cluster, "scripted/titles")
        turn = await cluster.answer(engine, "How deep is the sea?")
        assert await until_titled(cluster, turn.conversation_id) == "Ocean depth"
        assert [request.model for request in scripts.asked] == ["scripted/titles"]

    async def test_choose_another_model_than_the_server(self, cluster: Cluster) -> None:
        other = structs.replace(QUICK, title_model="scripted/others")
        scripts = Scripts(["Ocean depth"])
        engine = await cluster.enter(scripts, settings=other)
        await self.choose(cluster, "scripted/titles")
        turn = await cluster.answer(engine, "How deep is the sea?")
        assert await until_titled(cluster, turn.conversation_id) == "Ocean depth"

    async def test_switch_titles_off(self, cluster: Cluster) -> None:
        scripts = Scripts(["Ocean depth"])
        engine = await cluster.enter(scripts, settings=TITLED)
        await self.choose(cluster, "off")
        turn = await cluster.answer(engine, "How deep is the sea?")
        await engine.drain(seconds=5)
        assert await title_by(cluster, turn.conversation_id) == ("How deep is the sea?", None)
        assert scripts.asked == []

    async def test_switch_off_titles_that_are_not_written_yet(self, cluster: Cluster) -> None:
        scripts = Scripts(["Ocean depth"])
        engine = await cluster.enter(scripts, settings=TITLED, start=False)
        turn = await cluster.answer(engine, "How deep is the sea?")
        await engine.titles.want([turn.id])
        await self.choose(cluster, "off")
        assert await engine.titles.write() == 1
        assert await title_by(cluster, turn.conversation_id) == ("How deep is the sea?", "question")
        assert scripts.asked == []


class TestReplies:
    @pytest.mark.parametrize(
        "reply, title",
        [
            ("Ocean depth", "Ocean depth"),
            ('"Ocean depth."', "Ocean depth"),
            ("# Ocean depth\n\nIt is deep.", "Ocean depth"),
            ("\n\n  **Ocean**  \n", "Ocean"),
            ("", None),
            ("“”", None),
            ("x" * 200, "x" * 79 + "…"),
        ],
    )
    def test_become_one_short_line(self, reply: str, title: str | None) -> None:
        assert title_of(reply) == title
