"""The one place that builds everything. What is opened here is closed in reverse order, in one exit stack.

A process has one runtime. Tests give it their own providers and tools; nothing else is replaceable.
"""

import hmac
import os
import secrets
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from turnkeep.config import Settings
from turnkeep.engine import Engine, EngineSettings, Observer
from turnkeep.errors import InvalidRequest
from turnkeep.ids import OrgId
from turnkeep.providers.demo import DemoProvider
from turnkeep.providers.ports import Providers
from turnkeep.providers.registry import ProviderRegistry
from turnkeep.store.ports import Store
from turnkeep.streaming.ports import Hub
from turnkeep.streaming.response import OpenStreams
from turnkeep.tools.ports import Tools
from turnkeep.tools.registry import ToolRegistry

HOME_ORG = "default"


class Runtime(Struct, frozen=True, kw_only=True):
    """Everything that a server is made of, open and running."""

    settings: Settings
    store: Store
    hub: Hub
    providers: Providers
    tools: Tools
    engine: Engine
    streams: OpenStreams
    worker: str
    home_org: OrgId
    """The org of the operator's own keys and of the bundled page."""


@asynccontextmanager
async def open_runtime(
    settings: Settings,
    *,
    providers: Providers | None = None,
    tools: Tools | None = None,
    observer: Observer | None = None,
) -> AsyncIterator[Runtime]:
    """Open the database (migrating it), join the hub, and run turns until the end of the block.

    On the way out running turns are handed over first, so that another worker or the next start goes on with them.
    """
    worker = worker_name()
    async with AsyncExitStack() as stack:
        store = await open_store(settings)
        stack.push_async_callback(store.close)
        hub = await _open_hub(settings)
        stack.push_async_callback(hub.close)
        providers = providers or default_providers()
        tools = tools or ToolRegistry()
        engine = Engine(
            store=store,
            hub=hub,
            providers=providers,
            tools=tools,
            settings=engine_settings(settings),
            worker=worker,
            observer=observer,
        )
        stack.push_async_callback(engine.close)
        await engine.start()
        stack.push_async_callback(engine.drain, seconds=settings.drain_seconds)
        yield Runtime(
            settings=settings,
            store=store,
            hub=hub,
            providers=providers,
            tools=tools,
            engine=engine,
            streams=OpenStreams(draining=engine.draining),
            worker=worker,
            home_org=await home_org(store),
        )


async def open_store(settings: Settings) -> Store:
    """The database of these settings, brought up to this release."""
    if settings.is_sqlite:
        from turnkeep.store.sqlite import SqliteStore

        settings.sqlite_path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        return await SqliteStore.open(settings.sqlite_path)
    from turnkeep.store.postgres import PostgresStore

    return await PostgresStore.open(
        settings.database_url,
        client_url=settings.database_client_url,
        client_password=client_password(settings.database_url),
    )


def client_password(database_url: str) -> str | None:
    """The password of the login that serves users, the same on every server of this database.

    It follows from the password in the address, which does not follow from it. Without one (a socket, a
    certificate) the login has none either.
    """
    password = urlsplit(database_url).password
    if not password:
        return None
    return hmac.new(unquote(password).encode(), b"turnkeep client login", "sha256").hexdigest()


async def home_org(store: Store) -> OrgId:
    """The first org there is, made if there is none."""
    orgs = await store.orgs()
    if orgs:
        return min(orgs, key=lambda org: (org.created_at, org.id)).id
    org, _ = await store.create_org(HOME_ORG)
    return org.id


def default_providers() -> Providers:
    return ProviderRegistry([DemoProvider()])


def engine_settings(settings: Settings) -> EngineSettings:
    return EngineSettings(
        default_model=settings.model,
        replay_turns=settings.replay_turns,
        context_chars=settings.context_chars,
        tool_rounds=settings.tool_rounds,
        tool_result_chars=settings.tool_result_chars,
        lease_seconds=settings.lease_seconds,
        disconnect_grace_seconds=settings.disconnect_grace_seconds,
        provider_timeout_seconds=settings.provider_timeout_seconds,
        tool_timeout_seconds=settings.tool_timeout_seconds,
        turn_timeout_seconds=settings.turn_timeout_seconds,
        retention_days=settings.retention_days,
    )


def worker_name() -> str:
    """Unlike any other worker's, also after a restart under the same process id."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"


async def _open_hub(settings: Settings) -> Hub:
    from turnkeep.streaming.hub import LocalHub

    if settings.redis_url is None:
        return LocalHub()
    try:
        from turnkeep.streaming.redis_hub import RedisHub
    except ImportError as exc:
        raise InvalidRequest("TURNKEEP_REDIS_URL is set: install `turnkeep[redis]`, or unset it.") from exc
    return await RedisHub.open(settings.redis_url)
