"""Files that a sandbox wrote back: the holder of the turn announces each of them once, also after a takeover."""

import secrets

from tests.engine.harness import Cluster, Latch, kinds
from turnkeep.ids import TurnId, new_file_id
from turnkeep.model.files import NewFile
from turnkeep.providers.scripted import Call, Script, Until
from turnkeep.store.commands import TokenBinding
from turnkeep.tools.functions import tool
from turnkeep.tools.ports import CallContext
from turnkeep_client.wire.blocks import FilePart
from turnkeep_client.wire.events import Files, Result


async def write_back(cluster: Cluster, turn_id: TurnId, *names: str, attempt: int = 1) -> None:
    """What the route of the sandbox does, on whichever worker it arrives."""
    token = secrets.token_bytes(32)
    binding = TokenBinding(purpose="upload", turn_id=turn_id, attempt=attempt)
    await cluster.store.add_token(token, binding, expires_in_seconds=60)
    new = []
    for name in names:
        file_id = new_file_id()
        new.append(
            NewFile(
                id=file_id,
                conversation_id=None,
                name=name,
                mime_type="text/plain",
                size=1,
                storage_key=f"bag/{file_id}",
                source="sandbox",
                sha256="ab" * 32,
            )
        )
    await cluster.store.write_back(token, new)


def told(events: list[object]) -> list[list[str]]:
    return [[file.name for file in event.files] for event in events if isinstance(event, Files)]


class TestTelling:
    async def test_a_record_brings_the_news_and_the_next_iteration_begins_with_it(self, cluster: Cluster) -> None:
        @tool
        async def make(context: CallContext) -> str:
            await write_back(cluster, context.turn_id, "a.csv", "b.csv")
            return "made"

        engine = await cluster.enter([[Call("make")], [Call("make")], ["Done."]], tools=[make])
        turn = await cluster.answer(engine)
        events = await cluster.events(turn.id)
        one = ["tool_calls", "step running", "step succeeded", "files"]
        assert kinds(events) == ["turn", *one, *one, "result"]
        assert told(list(events)) == [["a.csv", "b.csv"], ["a-1.csv", "b-1.csv"]]
        assert isinstance(events[-1], Result)
        shown = [part.name for part in events[-1].content if isinstance(part, FilePart)]
        assert shown == ["a.csv", "b.csv", "a-1.csv", "b-1.csv"]

    async def test_a_stopped_turn_tells_of_them_before_its_end(self, cluster: Cluster) -> None:
        latch = Latch()

        @tool
        async def make(context: CallContext) -> str:
            await write_back(cluster, context.turn_id, "a.csv")
            await latch.pass_through()
            return "made"

        engine = await cluster.enter([[Call("make")], ["Done."]], tools=[make])
        claimed = await cluster.ask(engine)
        await latch.reached.wait()
        lease = engine._leases._held[claimed.turn.id]

        async def has_heard() -> bool:
            return lease.files_written == 1

        await cluster.until(has_heard)
        await engine.cancel(cluster.ann, claimed.turn.id)
        events = await cluster.events(claimed.turn.id)
        assert told(list(events)) == [["a.csv"]]
        assert kinds(events)[-1] == "error"

    async def test_another_worker_tells_only_of_what_was_not_told(self, cluster: Cluster) -> None:
        latch, second = Latch(), Latch()
        scripts: list[Script] = [[Call("make")], [Until(latch.pass_through), "Lost."]]

        @tool(idempotent=True)
        async def make(context: CallContext) -> str:
            await write_back(cluster, context.turn_id, "first.csv")
            return "made"

        engine = await cluster.enter(scripts, tools=[make])
        claimed = await cluster.ask(engine, background=True)
        turn_id = claimed.turn.id
        await latch.reached.wait()
        await engine.drain(seconds=0)
        other = await cluster.enter([[Until(second.pass_through), "Done."]], tools=[make])
        await second.reached.wait()
        await write_back(cluster, turn_id, "second.csv", attempt=2)

        async def has_heard() -> bool:
            return other._leases._held[turn_id].files_written == 2

        await cluster.until(has_heard)
        second.open()

        async def is_settled() -> bool:
            return (await cluster.store.turn(cluster.ann, turn_id)).is_settled

        await cluster.until(is_settled)
        assert told(list(await cluster.events(turn_id))) == [["first.csv"], ["second.csv"]]
