"""The composition of a server: everything is built here, and closed in reverse order by one exit stack.

A process has one runtime. Tests pass in their own providers and tools; nothing else can be replaced.
"""

import hmac
import os
import secrets
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Protocol, TypeVar
from urllib.parse import unquote, urlsplit

import msgspec
from msgspec import structs

from turnkeep.config import Settings
from turnkeep.engine import Engine, Observer, Services
from turnkeep.engine.assembly import AttachmentReader
from turnkeep.engine.observer import SafeObserver
from turnkeep.engine.sandbox.runner_client import GatewayTokens, RunnerAccess, RunnerClient
from turnkeep.engine.webhooks import WebhookClient
from turnkeep.errors import InvalidRequest
from turnkeep.fair_queue import FairQueue, Shares
from turnkeep.files.bag import Bag
from turnkeep.files.images import ImageConverter
from turnkeep.files.objects import open_objects
from turnkeep.files.orphans import BagSweeper
from turnkeep.files.signed_urls import UrlSigner
from turnkeep.ids import OrgId
from turnkeep.knowledge.file_texts import FileTexts
from turnkeep.knowledge.tools import knowledge_tools
from turnkeep.model.files import StorageLimits
from turnkeep.model.prices import Prices, read_prices
from turnkeep.providers.ports import Providers
from turnkeep.providers.registry import ProviderRegistry, configured_providers
from turnkeep.secret_files import secret_keys, signing_secrets
from turnkeep.store.ports import Store
from turnkeep.streaming.connection import OpenStreams
from turnkeep.streaming.ports import Hub
from turnkeep.tools.addresses import AddressGuard
from turnkeep.tools.functions import load_tools
from turnkeep.tools.oauth import Authorizations
from turnkeep.tools.ports import Tools
from turnkeep.tools.registry import ToolRegistry, open_tools
from turnkeep.tools.vault import Vault

HOME_ORG = "default"


class _Closes(Protocol):
    async def close(self) -> None: ...


Closable = TypeVar("Closable", bound=_Closes)


IMPORTS_AT_ONCE = 2
"""Imports of conversations that a process reads at a time, of one org one."""
IMPORTS_WAITING = 32
LARGE_BODIES_AT_ONCE = 4
"""Bodies above the ordinary limit that a process reads at a time, of one user two."""
LARGE_BODIES_WAITING = 64


class Runtime(Services, frozen=True, kw_only=True):
    """Everything that a server is made of, open and running: the services of the engine, and what the API adds."""

    settings: Settings
    files: AttachmentReader
    webhooks: WebhookClient
    vault: Vault
    authorizations: Authorizations
    bag: Bag
    pictures: ImageConverter
    imports: FairQueue
    """Places for imports of conversations. Each takes much memory while it is read."""
    large_bodies: FairQueue
    """Places for requests with a whole history in them, while they are read."""
    texts: FileTexts
    addresses: UrlSigner
    engine: Engine
    gateway_tokens: GatewayTokens
    streams: OpenStreams
    home_org: OrgId
    """The org of the operator's own keys and of the bundled page."""


@asynccontextmanager
async def open_runtime(
    settings: Settings,
    *,
    providers: Providers | None = None,
    tools: Tools | None = None,
    observer: Observer | None = None,
    sandbox: RunnerAccess | None = None,
) -> AsyncIterator[Runtime]:
    """Open the database (migrating it), join the hub, and run turns until the end of the block.

    On the way out running turns are handed over first, so that another worker or the next start continues them.
    """
    async with AsyncExitStack() as stack:
        store = _closed_by(stack, await open_store(settings))
        hub = _closed_by(stack, await _open_hub(settings))
        providers = _closed_by(stack, providers or default_providers(settings, os.environ))
        vault, signing = Vault(secret_keys(settings)), signing_secrets(settings)
        bag = _open_bag(settings, store)
        texts = _closed_by(stack, FileTexts(store, bag))
        operator_org = await home_org(store)
        guard = AddressGuard(allow_private=settings.allow_private_addresses)
        authorizations = _closed_by(stack, Authorizations(store, vault, guard))
        if tools is None:
            tools = await stack.enter_async_context(
                _open_tools(settings, vault, store, texts, operator_org, authorizations)
            )
        webhooks = _closed_by(stack, WebhookClient(guard, vault))
        pictures = ImageConverter()
        sandboxes = _open_sandboxes(settings, sandbox)
        if sandboxes is not None:
            _closed_by(stack, sandboxes)
        services = Services(
            settings=settings,
            observer=SafeObserver(observer or Observer()),
            prices=_read_prices(settings),
            store=store,
            hub=hub,
            providers=providers,
            tools=tools,
            files=AttachmentReader(store, bag, texts, pictures),
            file_cleanup=BagSweeper(store, bag.objects, retention_days=settings.retention_days),
            file_copies=bag,
            webhooks=webhooks,
            sandboxes=sandboxes,
        )
        engine = _closed_by(stack, Engine(services, worker=worker_name()))
        await engine.start()
        stack.push_async_callback(engine.drain, seconds=settings.drain_seconds)
        yield Runtime(
            **structs.asdict(services),
            vault=vault,
            authorizations=authorizations,
            bag=bag,
            pictures=pictures,
            imports=FairQueue(Shares.of(IMPORTS_AT_ONCE, waiting=IMPORTS_WAITING)),
            large_bodies=FairQueue(Shares.of(LARGE_BODIES_AT_ONCE, waiting=LARGE_BODIES_WAITING)),
            texts=texts,
            addresses=UrlSigner(signing),
            engine=engine,
            gateway_tokens=GatewayTokens(signing),
            streams=OpenStreams(draining=engine.draining),
            home_org=operator_org,
        )


async def open_store(settings: Settings) -> Store:
    """The database of these settings, migrated to this release. Without `auto_migrate` SchemaMismatch if it is not."""
    if settings.is_sqlite:
        from turnkeep.store.sqlite import SqliteStore

        settings.sqlite_path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        return await SqliteStore.open(settings.sqlite_path, auto_migrate=settings.auto_migrate)
    from turnkeep.store.postgres import PostgresStore

    return await PostgresStore.open(
        settings.database_url,
        client_url=settings.database_client_url,
        client_password=client_password(settings.database_url),
        pool_size=settings.database_connections,
        client_pool_size=settings.database_client_connections,
        prepared_statements=settings.database_prepared_statements,
        command_seconds=settings.command_seconds,
        auto_migrate=settings.auto_migrate,
    )


def client_password(database_url: str) -> str | None:
    """The password of the login that serves users, the same on every server of this database.

    It is derived from the password in the address, which cannot be derived from it. Without a password in the address
    (a socket, a certificate) the login has none either.
    """
    password = urlsplit(database_url).password
    if not password:
        return None
    return hmac.new(unquote(password).encode(), b"turnkeep client login", "sha256").hexdigest()


async def home_org(store: Store) -> OrgId:
    """The oldest org, created if there is none. Servers that start at the same time agree on it."""
    return (await store.first_org(HOME_ORG)).id


def default_providers(settings: Settings, environ: Mapping[str, str]) -> ProviderRegistry:
    """The demo model, and each provider for which the environment has a key or an address."""
    return configured_providers(environ, effort=settings.reasoning_effort, openai_api=settings.openai_api)


def worker_name() -> str:
    """A name that no other worker has, also after a restart under the same process id."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"


def _closed_by(stack: AsyncExitStack, opened: Closable) -> Closable:
    """Register `opened` with the stack, which will close it, and return it."""
    stack.push_async_callback(opened.close)
    return opened


async def _open_hub(settings: Settings) -> Hub:
    from turnkeep.streaming.hub import LocalHub

    if settings.redis_url is None:
        return LocalHub()
    try:
        from turnkeep.streaming.redis_hub import RedisHub
    except ImportError as exc:
        raise InvalidRequest("TURNKEEP_REDIS_URL is set: install `turnkeep[redis]`, or unset it.") from exc
    return await RedisHub.open(settings.redis_url)


def _read_prices(settings: Settings) -> Prices:
    """Raises InvalidRequest for a file that cannot be read, before the server starts."""
    if settings.prices is None:
        return Prices()
    try:
        return read_prices(settings.prices.read_bytes())
    except (OSError, msgspec.MsgspecError) as exc:
        raise InvalidRequest(f"TURNKEEP_PRICES names {settings.prices}, which cannot be used: {exc}.") from exc


def _open_bag(settings: Settings, store: Store) -> Bag:
    objects = open_objects(settings.files_url, folder=settings.files_path)
    limits = StorageLimits(user_bytes=settings.max_user_bytes, workspace_bytes=settings.max_workspace_bytes)
    return Bag(store, objects, max_file_bytes=settings.max_file_bytes, limits=limits)


def _open_tools(
    settings: Settings,
    vault: Vault,
    store: Store,
    texts: FileTexts,
    operator_org: OrgId,
    authorizations: Authorizations,
) -> AbstractAsyncContextManager[ToolRegistry]:
    """The tools for pages, tables and files, those of the operator, and those that agents declare."""
    return open_tools(
        vault,
        AddressGuard(allow_private=settings.allow_private_addresses),
        native=[*knowledge_tools(store, texts), *load_tools(settings.tools)],
        command_orgs=None if settings.allow_mcp_commands else frozenset({operator_org}),
        authorizations=authorizations,
    )


def _open_sandboxes(settings: Settings, access: RunnerAccess | None) -> RunnerClient | None:
    """The runner that was started beside this server, or the one of the settings."""
    if access is None and settings.runner_url is not None:
        access = RunnerAccess(
            url=settings.runner_url, server_url=settings.address(), secret=settings.sandbox_secret or ""
        )
    return None if access is None else RunnerClient(access)
