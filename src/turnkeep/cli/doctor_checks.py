"""The checks of `turnkeep doctor`: whether each part of an installation works, and what to do if it does not.

They run while the server is down too: database, bucket, Redis and runner are checked directly. They change nothing,
except for a small object that is written to the bucket and removed again.
"""

import asyncio
import os
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from email.utils import parsedate_to_datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from turnkeep.cli.database import check_schema
from turnkeep.clock import system_clock
from turnkeep.config import Settings, exposed_secrets, find_config_file, mask_url
from turnkeep.errors import SchemaMismatch, TurnkeepError
from turnkeep.files.orphans import BagReport
from turnkeep.knowledge.extraction import EXTRA, PARSERS
from turnkeep.store.queries import load_queries
from turnkeep_client.discovery import ServerAddress
from turnkeep_client.wire import ModelName, Page

State = Literal["ok", "warn", "fail", "skip"]
SECONDS = 5.0
"""Timeout of one request to one part."""
FREE_BYTES = 500_000_000
OTEL_VARIABLES = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
SKEW_SECONDS = 5.0
SHOWN_TABLES = 5
BLOATED_ROWS = 10_000
"""With fewer dead rows no vacuum needs to begin."""
LATE_MS = 3_600_000
"""An erasure that has been open for longer is reported."""
_DOWN = "is compared with the server's, which is down"


T = TypeVar("T")
PostgresQuery = Callable[..., Awaitable[list[Sequence[Any]]]]
SqliteQuery = Callable[..., list[Sequence[Any]]]


class Finding(Struct, frozen=True, kw_only=True):
    """The result for one part. `todo` says what to do if the part does not work."""

    name: str
    state: State
    says: str
    todo: str | None = None


class CheckFailed(Exception):
    """A check did not pass; `todo` says what to do."""

    def __init__(self, says: str, todo: str, *, state: State = "fail") -> None:
        super().__init__(says)
        self.says = says
        self.todo = todo
        self.state = state


async def check_up(settings: Settings, place: ServerAddress, *, is_remote: bool, rows: bool = False) -> list[Finding]:
    """All findings, in the order in which an operator would look. A remote server is only asked over HTTP. With `rows`
    the rows of the database are compared too, which may take long."""
    server = ServerChecks(place)
    findings = [await run_check("server", server.is_ready)]
    is_up = findings[0].state == "ok"
    if is_up:
        findings.append(await run_check("key", server.knows_key))
    if not is_remote:
        local = LocalChecks(settings)
        config = await run_check("config", local.config)
        findings += [config] if config.state != "skip" else []
        findings += [
            await run_check("database", local.database),
            await run_check("roles", local.roles),
            await run_check("sizes", local.sizes),
            *([await run_check("rows", local.rows, seconds=None)] if rows else []),
            await run_check("erasures", local.erasures),
            await run_check("webhooks", local.webhooks),
            await run_check("bucket", local.bucket),
            await run_check("files", server.files if is_up else local.files),
            await run_check("redis", local.redis),
            await run_check("runner", local.runner),
        ]
        extras = await run_check("extras", local.extras)
        findings += [extras] if extras.state != "skip" else []
    findings.append(await run_check("models", server.models) if is_up else _models_of(os.environ))
    findings.append(
        await run_check("clock", server.clock) if is_up else Finding(name="clock", state="skip", says=_DOWN)
    )
    return findings


async def run_check(
    name: str, check: Callable[[], Awaitable[str | None]], *, seconds: float | None = 2 * SECONDS
) -> Finding:
    """Run a check. It returns a text if the part works, None if the part is not used, or raises CheckFailed."""
    try:
        async with asyncio.timeout(seconds):
            says = await check()
    except CheckFailed as failed:
        return Finding(name=name, state=failed.state, says=failed.says, todo=failed.todo)
    except TimeoutError:
        return Finding(name=name, state="fail", says=f"gave no answer within {seconds:g} s", todo="Is it overloaded?")
    except TurnkeepError as exc:
        return Finding(name=name, state="fail", says=exc.detail)
    if says is None:
        return Finding(name=name, state="skip", says="is not used here")
    return Finding(name=name, state="ok", says=says)


def _models_of(environ: Mapping[str, str]) -> Finding:
    named = [name for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "OPENAI_BASE_URL") if environ.get(name)]
    if named:
        return Finding(name="models", state="ok", says=f"{' and '.join(named)} set here; the server will try them")
    return Finding(
        name="models",
        state="warn",
        says="only the demo model would answer",
        todo="Set ANTHROPIC_API_KEY, OPENAI_API_KEY or OPENAI_BASE_URL before you start the server.",
    )


class LocalChecks:
    """Checks from this machine, with the settings that a server would have here."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    async def config(self) -> str | None:
        file = find_config_file(os.environ)
        if file is None:
            return None
        if exposed := exposed_secrets(file):
            says = f"other users of this machine can read {', '.join(exposed)} in {file.path}"
            raise CheckFailed(says, f"`chmod 600 {file.path}`", state="warn")
        return f"{file.path} shows no secret to other users of this machine"

    async def database(self) -> str:
        settings = self._settings
        if settings.is_sqlite:
            _check_room(settings.sqlite_path.parent)
            if not settings.sqlite_path.exists():
                raise CheckFailed(
                    f"there is none yet at {settings.sqlite_path}", "`turnkeep serve` makes it.", state="warn"
                )
        try:
            await check_schema(settings)
        except SchemaMismatch as exc:
            raise CheckFailed(exc.detail, "`turnkeep migrate` brings it to this release.") from exc
        except (OSError, TurnkeepError) as exc:
            raise CheckFailed(
                f"{mask_url(settings.database_url)} cannot be reached: {reason_of(exc)}", "Check TURNKEEP_DATABASE_URL."
            ) from exc
        return f"{mask_url(settings.database_url)} is ready for this release"

    async def roles(self) -> str | None:
        if self._settings.is_sqlite:
            return "SQLite guards users' reads with an authorizer inside the server"
        import asyncpg

        from turnkeep.store.postgres.io.address import DatabaseAddress
        from turnkeep.store.postgres.io.roles import client_login
        from turnkeep.store.postgres.io.statements import statements

        try:
            connection = await DatabaseAddress(self._settings.database_url).connect(statement_cache_size=0)
        except (OSError, asyncpg.InternalClientError, asyncpg.PostgresError) as exc:
            raise CheckFailed("could not be looked at: the database is away", "See above.") from exc
        try:
            own = self._settings.database_client_url
            login = (
                urlsplit(own).username if own else client_login(await connection.fetchval("SELECT current_database()"))
            )
            if not await connection.fetchval("SELECT 1 FROM pg_roles WHERE rolname = $1", login):
                raise CheckFailed(f"there is no login {login}", "`turnkeep migrate` makes it.")
            problems = [row[0] for row in await connection.fetch(statements()["boundary_problems"], login)]
        finally:
            await connection.close()
        if problems:
            raise CheckFailed("; ".join(problems), "Take these rights away; the server does not start until then.")
        return f"{login} sees only what a user may see"

    async def sizes(self) -> str:
        """How large the database is, and how much of it waits to be used again."""
        if not self._settings.is_sqlite:
            return judge_sizes(await self._sizes_of_postgres())
        path = self._settings.sqlite_path
        if not path.exists():
            raise CheckFailed(f"there is no {path.name} yet", "See above.", state="warn")
        size, free = await asyncio.to_thread(_size_of_sqlite, path)
        return f"{path.name} has {in_units(size)}, of which {in_units(free)} are free"

    async def _sizes_of_postgres(self) -> "list[TableSize]":
        import asyncpg

        from turnkeep.store.postgres.io.address import DatabaseAddress
        from turnkeep.store.postgres.io.statements import statements

        try:
            connection = await DatabaseAddress(self._settings.database_url).connect(statement_cache_size=0)
            try:
                return [TableSize(*row) for row in await connection.fetch(statements()["table_sizes"])]
            finally:
                await connection.close()
        except (OSError, asyncpg.InternalClientError, asyncpg.PostgresError) as exc:
            raise CheckFailed("could not be looked at: the database is away", "See above.") from exc

    async def rows(self) -> str:
        """Compare the rows of all tenants, on a connection without a time limit. A server may use the database
        meanwhile: what is read is of one moment."""
        try:
            await check_schema(self._settings)
            counts, problems = await (self._rows_of_sqlite() if self._settings.is_sqlite else self._rows_of_postgres())
        except (OSError, TurnkeepError) as exc:
            raise CheckFailed(f"could not be compared: {reason_of(exc)}", "See above.") from exc
        orgs, conversations, turns, messages, files = counts
        if problems:
            raise CheckFailed(
                "; ".join(f"{count:,} {what}, such as {example}" for what, count, example in problems),
                "The backup was not complete. Restore another one; docs/howto/back-up.md says how to make them.",
            )
        if not orgs:
            raise CheckFailed("the database is empty", "Restore the backup into it. A new server begins like this.")
        return f"{conversations:,} conversations with {turns:,} turns, {messages:,} messages and {files:,} files"

    async def _rows_of_postgres(self) -> tuple[Sequence[int], list[Sequence[Any]]]:
        async with self._postgres() as query:
            [counts] = await query("row_counts")
            return counts, await query("row_problems")

    async def _rows_of_sqlite(self) -> tuple[Sequence[int], list[Sequence[Any]]]:
        def read(query: SqliteQuery) -> tuple[Sequence[int], list[Sequence[Any]]]:
            [counts] = query("row_counts")
            return counts, query("row_problems")

        return await self._sqlite(read)

    async def erasures(self) -> str | None:
        """Raises CheckFailed for an erasure that has been open for long, with the reason that it gave."""
        settings = self._settings
        if settings.is_sqlite and not settings.sqlite_path.exists():
            return None
        try:
            await check_schema(settings)
            late = await (self._late_erasures_of_sqlite() if settings.is_sqlite else self._late_erasures_of_postgres())
        except (OSError, TurnkeepError) as exc:
            raise CheckFailed(f"could not be looked at: {reason_of(exc)}", "See above.", state="warn") from exc
        if not late:
            return "none is late"
        [(count, open_ms, problem)] = late
        raise CheckFailed(
            f"{count:,} not done, the first for {open_ms / LATE_MS:.1f} hours: {problem or 'no server works on it'}",
            "Remove the reason. The server tries again within an hour, on SQLite also at its next start.",
        )

    async def webhooks(self) -> str | None:
        """Raises CheckFailed, as a warning, for endpoints that are gone or have failed for long."""
        settings = self._settings
        if settings.is_sqlite and not settings.sqlite_path.exists():
            return None
        try:
            await check_schema(settings)
            [(gone, late)] = await (
                self._late_deliveries_of_sqlite() if settings.is_sqlite else self._late_deliveries_of_postgres()
            )
        except (OSError, TurnkeepError) as exc:
            raise CheckFailed(f"could not be looked at: {reason_of(exc)}", "See above.", state="warn") from exc
        if not gone and not late:
            return "none is late"
        raise CheckFailed(
            f"{late:,} have failed for more than an hour, {gone:,} are disabled because their endpoint is gone",
            "`turnkeep webhooks list` and `turnkeep webhooks deliveries` say which, and why.",
            state="warn",
        )

    async def _late_deliveries_of_postgres(self) -> list[Sequence[Any]]:
        async with self._postgres() as query:
            return await query("late_deliveries", LATE_MS)

    async def _late_deliveries_of_sqlite(self) -> list[Sequence[Any]]:
        return await self._sqlite(lambda query: query("late_deliveries", {"before": system_clock() - LATE_MS}))

    async def _late_erasures_of_postgres(self) -> list[Sequence[Any]]:
        async with self._postgres() as query:
            return await query("late_erasures", LATE_MS)

    async def _late_erasures_of_sqlite(self) -> list[Sequence[Any]]:
        now = system_clock()
        return await self._sqlite(lambda query: query("late_erasures", {"now": now, "before": now - LATE_MS}))

    @asynccontextmanager
    async def _postgres(self) -> AsyncIterator[PostgresQuery]:
        """Asks named queries of the database, all of one moment, without a time limit."""
        from turnkeep.store.postgres.io.address import DatabaseAddress
        from turnkeep.store.postgres.io.statements import statements

        connection = await DatabaseAddress(self._settings.database_url).connect(statement_cache_size=0)

        async def query(name: str, *values: Any) -> list[Sequence[Any]]:
            return [tuple(row) for row in await connection.fetch(statements()[name], *values)]

        try:
            async with connection.transaction(isolation="repeatable_read", readonly=True):
                yield query
        finally:
            await connection.close()

    async def _sqlite(self, read: Callable[[SqliteQuery], T]) -> T:
        """What `read` makes of the named queries that it asks, on a connection that only reads."""
        import apsw

        def run() -> T:
            queries = load_queries("sqlite")
            connection = apsw.Connection(str(self._settings.sqlite_path), flags=apsw.SQLITE_OPEN_READONLY)
            try:
                return read(lambda name, values=None: list(connection.execute(queries[name], values or {})))
            finally:
                connection.close()

        return await asyncio.to_thread(run)

    async def bucket(self) -> str:
        settings = self._settings
        if urlsplit(settings.files_url).scheme == "file":
            folder = settings.files_path
            existing = _existing(folder)
            if not os.access(existing, os.W_OK):
                raise CheckFailed(f"{existing} cannot be written", "Give it to the user that runs the server.")
            _check_room(existing)
            return f"files are kept in {folder}"
        return await self._remote_bucket()

    async def _remote_bucket(self) -> str:
        from turnkeep.files.objects import open_objects

        if not _is_installed("obstore"):
            raise CheckFailed("the library is not installed", "Install `turnkeep[s3]`.")
        settings = self._settings
        objects = open_objects(settings.files_url, folder=settings.files_path)
        key = f"doctor/{os.getpid()}-{time.time_ns()}"

        async def probe() -> AsyncIterator[bytes]:
            yield b"turnkeep doctor"

        try:
            await objects.put(key, probe())
            await objects.delete([key])
        except (OSError, TurnkeepError) as exc:
            raise CheckFailed(
                f"{mask_url(settings.files_url)}: {reason_of(exc)}",
                "Check TURNKEEP_FILES_URL and the AWS_* variables; the key must be allowed to write and delete.",
            ) from exc
        return f"{mask_url(settings.files_url)} can be written"

    async def files(self) -> str | None:
        """Compare rows with objects while no server runs.

        A database of another release is not opened, because opening would migrate it.
        """
        from turnkeep.files.objects import open_objects
        from turnkeep.files.orphans import check_bag
        from turnkeep.runtime import open_store

        settings = self._settings
        if settings.is_sqlite and not settings.sqlite_path.exists():
            return None
        try:
            await check_schema(settings)
            store = await open_store(settings)
            try:
                report = await check_bag(store, open_objects(settings.files_url, folder=settings.files_path))
            finally:
                await store.close()
        except (OSError, TurnkeepError) as exc:
            raise CheckFailed(f"could not be compared: {reason_of(exc)}", "See above.", state="warn") from exc
        return judge_files(report)

    async def redis(self) -> str | None:
        url = self._settings.redis_url
        if url is None:
            return None
        try:
            from redis.exceptions import RedisError

            from turnkeep.streaming.redis_servers import RedisServers
        except ImportError as exc:
            raise CheckFailed("the library is not installed", "Install `turnkeep[redis]`.") from exc
        servers = RedisServers(url, seconds=SECONDS)
        try:
            async with servers.connected() as client:
                await client.ping()
        except (OSError, RedisError) as exc:
            raise CheckFailed(
                f"{mask_url(url)}: {reason_of(exc)}", "Readers on other workers get their words late until it is back."
            ) from exc
        finally:
            await servers.close()
        return f"{mask_url(url)} answers"

    async def runner(self) -> str | None:
        url = self._settings.sandbox_url
        if url == "off":
            return "switched off"
        if url is None:
            return await _start_box()
        try:
            status, _, _ = await _get(f"{url.rstrip('/')}/healthz")
        except ConnectionError as exc:
            raise CheckFailed(f"nothing answers at {url} ({exc})", "Start it with `turnkeep sandbox`.") from exc
        if status != 200:
            raise CheckFailed(f"{url} answers with {status}", "Is it a sandbox runner? See its log.")
        return f"{url} answers"

    async def extras(self) -> None:
        """Raises CheckFailed for an extra that is not installed, unless another check reports it."""
        if any(os.environ.get(name) for name in OTEL_VARIABLES) and not _is_installed("opentelemetry"):
            raise CheckFailed(
                "OpenTelemetry has an endpoint, and its library is not installed",
                "Install `turnkeep[otel]`, or unset OTEL_EXPORTER_OTLP_ENDPOINT.",
            )
        if not all(_is_installed(parser) for parser in PARSERS.values()):
            raise CheckFailed(
                "PDF and Office files can be attached, but not read or searched",
                f"Install `turnkeep[{EXTRA}]`.",
                state="warn",
            )


async def _start_box() -> str:
    """Start a box as the server's own runner would, and remove it."""
    from turnkeep.cli.serve import runner_environment, try_sandbox

    try:
        has_cgroups = await try_sandbox(runner_environment(os.environ))
    except TurnkeepError as exc:
        says = "no box can be started here, so a server has no sandbox of its own; chats work without"
        raise CheckFailed(says, exc.detail, state="warn") from exc
    guard = "the kernel limits the memory of boxes" if has_cgroups else "a watchdog limits the memory of boxes"
    return f"boxes can be started here; {guard}"


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ImportError:
        return False


def _existing(folder: Path) -> Path:
    """The folder, or its nearest parent that exists."""
    return next((each for each in (folder, *folder.parents) if each.exists()), Path("/"))


def _check_room(folder: Path) -> None:
    existing = _existing(folder)
    free = shutil.disk_usage(existing).free
    if free < FREE_BYTES:
        raise CheckFailed(
            f"only {free // 1_000_000} MB are free in {existing}", "Make room before it is full.", state="warn"
        )


class ServerChecks:
    """Checks of a running server, over HTTP."""

    def __init__(self, place: ServerAddress) -> None:
        self._place = place

    async def is_ready(self) -> str:
        status, _, _ = await self._get("/healthz")
        if status != 200:
            raise CheckFailed(f"something else answers at {self._place.url}", "Check --url or TURNKEEP_URL.")
        status, _, body = await self._get("/readyz")
        if status != 200:
            raise CheckFailed(f"{self._place.url} is alive but not ready: {_detail(body)}", "See its log.")
        return f"{self._place.url} answers"

    async def knows_key(self) -> str:
        if self._place.key is None:
            raise CheckFailed("no key is known here", "Set TURNKEEP_KEY, or use the server's --data-dir.")
        status, _, body = await self._get("/v1/usage")
        if status == 401:
            raise CheckFailed("the server does not know this key", "Make one with `turnkeep keys create`.")
        if status != 200:
            raise CheckFailed(_detail(body), "See the server's log.")
        return "is valid"

    async def models(self) -> str:
        status, _, body = await self._get("/v1/models")
        if status != 200:
            raise CheckFailed(_detail(body), "A key that is valid can list them.")
        names = [model.id for model in msgspec.json.decode(body, type=Page[ModelName]).data]
        if names in ([], ["demo"]):
            raise CheckFailed(
                "only the demo model, which is made of rules",
                "Set ANTHROPIC_API_KEY, OPENAI_API_KEY or OPENAI_BASE_URL where the server runs, and restart it.",
                state="warn",
            )
        return f"{len(names)} can be reached: {', '.join(names[:5])}{', …' if len(names) > 5 else ''}"

    async def files(self) -> str | None:
        status, _, body = await self._get("/v1/operator/files")
        if status == 403:
            return None  # for the operator's key alone
        if status != 200:
            raise CheckFailed(_detail(body), "See the server's log.")
        return judge_files(msgspec.json.decode(body, type=BagReport))

    async def clock(self) -> str:
        _, headers, _ = await self._get("/healthz")
        said = headers.get("date")
        if said is None:
            raise CheckFailed("the server does not tell its time", "A proxy may remove the header Date.", state="warn")
        skew = time.time() - parsedate_to_datetime(said).timestamp()
        if abs(skew) > SKEW_SECONDS:
            raise CheckFailed(
                f"differs from the server's by {abs(skew):.0f} s", "Let both keep time (NTP); tokens expire by it."
            )
        return "agrees with the server's"

    async def _get(self, path: str) -> tuple[int, Mapping[str, str], bytes]:
        place = self._place
        headers = {"authorization": f"Bearer {place.key}"} if place.key and path.startswith("/v1") else {}
        try:
            return await _get(place.url + path, headers=headers, trust_env=not place.is_loopback)
        except ConnectionError as exc:
            raise CheckFailed(
                f"nothing answers at {place.url} ({exc})",
                "Start it with `turnkeep serve`." if place.is_loopback else "Is the address right, and is it up?",
            ) from exc


async def _get(
    url: str, *, headers: Mapping[str, str] | None = None, trust_env: bool = True
) -> tuple[int, Mapping[str, str], bytes]:
    """Status, headers and body. With `trust_env` the proxies of the environment are used. Raises ConnectionError."""
    import aiohttp

    from turnkeep.tls import trusted_tls

    timeout = aiohttp.ClientTimeout(total=SECONDS)
    connector = aiohttp.TCPConnector(ssl=trusted_tls())
    try:
        async with (
            aiohttp.ClientSession(connector=connector, timeout=timeout, trust_env=trust_env) as http,
            http.get(url, headers=headers, allow_redirects=False) as response,
        ):
            return response.status, response.headers, await response.read()
    except (aiohttp.ClientError, TimeoutError) as exc:
        is_refused = isinstance(exc, aiohttp.ClientConnectorError) and isinstance(exc.os_error, ConnectionRefusedError)
        raise ConnectionError("connection refused" if is_refused else str(exc) or type(exc).__name__) from exc


def _detail(body: bytes) -> str:
    try:
        return str(msgspec.json.decode(body, type=dict)["detail"])
    except (msgspec.MsgspecError, KeyError):
        return "it did not say why"


class TableSize(Struct, frozen=True):
    """A table of PostgreSQL with its indexes, and its rows. Dead ones were changed or erased, and a vacuum has yet to
    make room of them."""

    name: str
    size: int
    live: int
    dead: int

    @property
    def is_bloated(self) -> bool:
        return self.dead >= BLOATED_ROWS and self.dead > self.live


def judge_sizes(tables: Sequence[TableSize]) -> str:
    """The sizes of the largest tables, which come first."""
    shown = ", ".join(f"{table.name} {in_units(table.size)}" for table in tables[:SHOWN_TABLES])
    dead, rows = sum(table.dead for table in tables), sum(table.live + table.dead for table in tables)
    size = in_units(sum(table.size for table in tables))
    says = f"{size} ({shown}); {100 * dead // max(rows, 1)} % of the rows are dead"
    bloated = [table for table in tables if table.is_bloated]
    if bloated:
        raise CheckFailed(
            f"{says}. Mostly dead: {', '.join(f'{table.name} ({table.dead:,} rows)' for table in bloated)}",
            "Autovacuum does not keep up. End old transactions (see pg_stat_activity), or let it run more often.",
            state="warn",
        )
    return says


def in_units(size: int) -> str:
    """A number of bytes, for people."""
    value = float(size)
    for unit in ("bytes", "KB", "MB", "GB"):
        if value < 1_000:
            return f"{value:.3g} {unit}"
        value /= 1_000
    return f"{value:,.3g} TB"


def _size_of_sqlite(path: Path) -> tuple[int, int]:
    """The bytes of the file, and those of its free pages, which are used again before it grows."""
    import apsw

    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        pages, free, page = (connection.pragma(name) for name in ("page_count", "freelist_count", "page_size"))
    finally:
        connection.close()
    return pages * page, free * page


def judge_files(report: BagReport) -> str:
    if report.missing:
        raise CheckFailed(
            f"the bytes of {len(report.missing)} of {report.files} files are not there: "
            f"{', '.join(report.missing[:3])}{', …' if len(report.missing) > 3 else ''}",
            "Bring them back from a backup of the bucket; a file that is deleted is not asked for any more.",
        )
    if report.orphans:
        raise CheckFailed(
            f"{len(report.orphans)} objects belong to no file", "The server removes them once a day.", state="warn"
        )
    return "1 file, which is there" if report.files == 1 else f"{report.files} files, all of them there"


def reason_of(exc: Exception) -> str:
    return exc.detail if isinstance(exc, TurnkeepError) else str(exc) or type(exc).__name__
