"""The engine of all fault tests, in a worker process or in the test's own."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from msgspec import structs

from tests.faults.journal import Journal, JournalSink, tools
from tests.faults.script import model
from turnkeep.engine import Engine, EngineSettings, Observer, Options, Question, Services
from turnkeep.ids import ConversationId, TurnId
from turnkeep.model.principals import Principal
from turnkeep.providers.registry import ProviderRegistry
from turnkeep.providers.scripted import ScriptedProvider
from turnkeep.store.commands import Claimed
from turnkeep.store.ports import Store
from turnkeep.streaming.hub import LocalHub
from turnkeep.tools.registry import ToolRegistry
from turnkeep_client.wire.blocks import Text

LEASE_SECONDS = 1.0

QUICK = EngineSettings(
    model="scripted",
    disconnect_grace_seconds=600.0,
    sweep_seconds=0.1,
    tool_timeout_seconds=20.0,
    provider_timeout_seconds=60.0,
)


def build_engine(
    store: Store,
    journal: Journal,
    *,
    name: str,
    observer: Observer,
    running: Callable[[TurnId], None] = lambda _: None,
    gate: Callable[[], Awaitable[object]] | None = None,
    pace: float = 0.0,
    lease_seconds: float = LEASE_SECONDS,
) -> Engine:
    offered = tools(journal, running)
    return Engine(
        Services(
            store=store,
            hub=LocalHub(),
            providers=ProviderRegistry([ScriptedProvider(model(gate=gate, pace=pace))]),
            tools=ToolRegistry(offered, offered_to_all=[each.spec.name for each in offered]),
            settings=structs.replace(QUICK, lease_seconds=lease_seconds),
            observer=observer,
            outbox_sink=JournalSink(journal),
        ),
        worker=name,
    )


class Watcher(Observer):
    """Keeps what the engine calls a defect."""

    def __init__(self) -> None:
        self.defects: list[BaseException] = []

    def defect(self, turn_id: TurnId | None, error: BaseException) -> None:
        self.defects.append(error)


@asynccontextmanager
async def running_engine(
    store: Store,
    journal: Journal,
    *,
    name: str = "worker-1",
    pace: float = 0.0,
    lease_seconds: float = LEASE_SECONDS,
) -> AsyncIterator[Engine]:
    """An engine in this process. Fails at the end if it met something unexpected."""
    watcher = Watcher()
    engine = build_engine(store, journal, name=name, observer=watcher, pace=pace, lease_seconds=lease_seconds)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.drain(seconds=10)
        await engine.close()
    assert watcher.defects == []


async def ask(
    engine: Engine, principal: Principal, text: str, *, conversation_id: ConversationId | None = None
) -> Claimed:
    """Ask in the background; behind what runs in the conversation, if one is named."""
    options = Options(background=True, if_busy="reject" if conversation_id is None else "enqueue")
    return await engine.ask(
        Question(principal=principal, message=(Text(text=text),), conversation_id=conversation_id, options=options)
    )
