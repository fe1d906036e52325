"""Engines over one real store, each with a hub and a scripted model."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any

from msgspec import structs

from tests.store.factories import Tenant, a_tenant
from turnkeep.engine import Engine, EngineSettings, Observer, Options, Question, Services
from turnkeep.engine.outbox import AuditLog, OutboxSink
from turnkeep.engine.webhooks import WebhookPost
from turnkeep.ids import TurnId
from turnkeep.model.messages import Message
from turnkeep.model.principals import Principal
from turnkeep.model.turns import Turn
from turnkeep.providers.ports import Provider
from turnkeep.providers.registry import ProviderRegistry
from turnkeep.providers.scripted import Script, ScriptedProvider
from turnkeep.store.commands import Claimed
from turnkeep.store.ports import Store
from turnkeep.streaming.hub import LocalHub
from turnkeep.streaming.ports import Hub
from turnkeep.tools.ports import Tool
from turnkeep.tools.registry import ToolRegistry
from turnkeep_client.wire.blocks import Text
from turnkeep_client.wire.events import Recorded, TurnEvent

QUICK = EngineSettings(
    model="scripted",
    lease_seconds=5.0,
    disconnect_grace_seconds=60.0,
    sweep_seconds=0.1,
    tool_timeout_seconds=5.0,
    provider_timeout_seconds=5.0,
)

DYING = structs.replace(QUICK, lease_seconds=2.0)
"""Of a worker that is not started and so renews nothing: what it holds is another's after this time."""


class Cluster:
    """The workers of one store. `enter` starts one; a second one is another worker."""

    def __init__(self, store: Store, tenant: Tenant, stack: AsyncExitStack) -> None:
        self.store = store
        self.tenant = tenant
        self.ann = tenant.ann
        self._stack = stack
        self._workers = 0

    @classmethod
    async def open(cls, store: Store, stack: AsyncExitStack) -> "Cluster":
        return cls(store, await a_tenant(store), stack)

    async def enter(
        self,
        scripts: Sequence[Script] | Callable[..., Script] | Provider,
        *,
        tools: Sequence[Tool] = (),
        settings: EngineSettings | None = None,
        observer: Observer | None = None,
        hub: Hub | None = None,
        outbox_sink: OutboxSink | None = None,
        webhooks: WebhookPost | None = None,
        start: bool = True,
    ) -> Engine:
        provider: Any = ScriptedProvider(scripts) if callable(scripts) or isinstance(scripts, Sequence) else scripts
        self._workers += 1
        engine = Engine(
            Services(
                store=self.store,
                hub=LocalHub() if hub is None else hub,
                providers=ProviderRegistry([provider]),
                tools=ToolRegistry(tools, offered_to_all=[tool.spec.name for tool in tools]),
                settings=settings or (QUICK if start else DYING),
                observer=observer or FailOnDefect(),
                outbox_sink=outbox_sink or AuditLog(),
                webhooks=webhooks,
            ),
            worker=f"worker-{self._workers}",
        )
        if start:
            await engine.start()
        self._stack.push_async_callback(engine.close)
        self._stack.push_async_callback(engine.drain, seconds=0)
        return engine

    async def ask(self, engine: Engine, text: str = "Hello", **fields: Any) -> Claimed:
        options = {name: fields.pop(name) for name in list(fields) if name in Options.__struct_fields__}
        principal: Principal = fields.pop("principal", self.ann)
        return await engine.ask(
            Question(principal=principal, message=(Text(text=text),), options=Options(**options), **fields)
        )

    async def answer(self, engine: Engine, text: str = "Hello", **fields: Any) -> Turn:
        """Ask, and wait for the end."""
        claimed = await self.ask(engine, text, **fields)
        return await engine.wait(claimed.turn.id)

    async def events(self, turn_id: TurnId) -> list[TurnEvent]:
        recorded = await self.store.events(turn_id)
        assert [each.seq for each in recorded] == list(range(1, len(recorded) + 1))
        return [each.event for each in recorded]

    async def rows(self, turn_id: TurnId) -> list[Message]:
        return await self.store.turn_rows(turn_id)

    def new_hub(self) -> LocalHub:
        return LocalHub()

    async def until(self, holds: Callable[[], Awaitable[bool]], *, seconds: float = 60.0) -> None:
        """Wait for something that will be true soon."""
        async with asyncio.timeout(seconds):
            while not await holds():  # noqa: ASYNC110 - what is waited for happens in another worker
                await asyncio.sleep(0.01)


class FailOnDefect(Observer):
    """Shouts about what the engine caught: in a test nothing unexpected may be caught silently."""

    def __init__(self) -> None:
        self.defects: list[BaseException] = []

    def defect(self, turn_id: TurnId | None, error: BaseException) -> None:
        self.defects.append(error)


class Latch:
    """A place where a script or a tool waits until the test opens it."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self._open = asyncio.Event()

    async def pass_through(self) -> None:
        self.reached.set()
        await self._open.wait()

    def open(self) -> None:
        self._open.set()


def kinds(events: Sequence[TurnEvent] | Sequence[Recorded]) -> list[str]:
    """What happened, in short: `turn`, `tool_calls`, `step running` …"""
    told = []
    for each in events:
        event = each.event if isinstance(each, Recorded) else each
        kind = str(event.__struct_config__.tag)
        told.append(f"{kind} {event.status}" if kind == "step" else kind)  # type: ignore[union-attr]
    return told
