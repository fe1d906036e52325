"""The check-up of what the server needs, asked from this machine: database, bucket, Redis, runner."""

import os
import shutil
import time
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

from turnkeep.cli.findings import SECONDS, Trouble, files_found, words_of
from turnkeep.config import Settings, mask_url
from turnkeep.errors import SchemaMismatch, TurnkeepError

FREE_BYTES = 500_000_000


class LocalChecks:
    """What can be seen from this machine, with the settings that the server would have."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    async def database(self) -> str:
        from turnkeep.cli.migrate import check_schema_now

        settings = self._settings
        if settings.is_sqlite:
            _check_room(settings.sqlite_path.parent)
            if not settings.sqlite_path.exists():
                raise Trouble(
                    f"there is none yet at {settings.sqlite_path}", "`turnkeep serve` makes it.", state="warn"
                )
        try:
            await check_schema_now(settings)
        except SchemaMismatch as exc:
            raise Trouble(exc.detail, "`turnkeep migrate` brings it to this release.") from exc
        except (OSError, TurnkeepError) as exc:
            raise Trouble(
                f"{mask_url(settings.database_url)} cannot be reached: {words_of(exc)}", "Check TURNKEEP_DATABASE_URL."
            ) from exc
        return f"{mask_url(settings.database_url)} is at this release"

    async def roles(self) -> str | None:
        if self._settings.is_sqlite:
            return "SQLite guards users' reads with an authorizer inside the server"
        import asyncpg

        from turnkeep.store.postgres.io.roles import client_login
        from turnkeep.store.postgres.io.statements import statements

        try:
            connection = await asyncpg.connect(self._settings.database_url, timeout=SECONDS, statement_cache_size=0)
        except (OSError, asyncpg.PostgresError) as exc:
            raise Trouble("could not be looked at: the database is away", "See above.") from exc
        try:
            own = self._settings.database_client_url
            login = (
                urlsplit(own).username if own else client_login(await connection.fetchval("SELECT current_database()"))
            )
            if not await connection.fetchval("SELECT 1 FROM pg_roles WHERE rolname = $1", login):
                raise Trouble(f"there is no login {login}", "`turnkeep migrate` makes it.")
            problems = [row[0] for row in await connection.fetch(statements()["boundary_problems"], login)]
        finally:
            await connection.close()
        if problems:
            raise Trouble("; ".join(problems), "Take these rights away; the server does not start until then.")
        return f"{login} sees only what a user may see"

    async def bucket(self) -> str:
        settings = self._settings
        if urlsplit(settings.files_url).scheme == "file":
            folder = settings.files_path
            existing = _existing(folder)
            if not os.access(existing, os.W_OK):
                raise Trouble(f"{existing} cannot be written", "Give it to the user that runs the server.")
            _check_room(existing)
            return f"files are kept in {folder}"
        return await self._remote_bucket()

    async def _remote_bucket(self) -> str:
        from turnkeep.filebag.objects import open_objects

        settings = self._settings
        objects = open_objects(settings.files_url, folder=settings.files_path)
        key = f"doctor/{os.getpid()}-{time.time_ns()}"

        async def probe() -> AsyncIterator[bytes]:
            yield b"turnkeep doctor"

        try:
            await objects.put(key, probe())
            await objects.delete([key])
        except (OSError, TurnkeepError) as exc:
            raise Trouble(
                f"{mask_url(settings.files_url)}: {words_of(exc)}",
                "Check TURNKEEP_FILES_URL and the AWS_* variables; the key must be allowed to write and delete.",
            ) from exc
        return f"{mask_url(settings.files_url)} can be written"

    async def files(self) -> str | None:
        """While no server runs, the rows are read from here. A database of another release is not opened: it would be
        migrated."""
        from turnkeep.cli.migrate import check_schema_now
        from turnkeep.filebag.objects import open_objects
        from turnkeep.filebag.sweeping import check_bag
        from turnkeep.runtime import open_store

        settings = self._settings
        if settings.is_sqlite and not settings.sqlite_path.exists():
            return None
        try:
            await check_schema_now(settings)
            store = await open_store(settings)
            try:
                report = await check_bag(store, open_objects(settings.files_url, folder=settings.files_path))
            finally:
                await store.close()
        except (OSError, TurnkeepError) as exc:
            raise Trouble(f"could not be compared: {words_of(exc)}", "See above.", state="warn") from exc
        return files_found(report)

    async def redis(self) -> str | None:
        url = self._settings.redis_url
        if url is None:
            return None
        try:
            from redis.asyncio import Redis
            from redis.exceptions import RedisError
        except ImportError as exc:
            raise Trouble("the library is not installed", "Install `turnkeep[redis]`.") from exc
        client = Redis.from_url(url, socket_connect_timeout=SECONDS, socket_timeout=SECONDS)
        try:
            await client.ping()
        except (OSError, RedisError) as exc:
            raise Trouble(
                f"{mask_url(url)}: {words_of(exc)}", "Readers on other workers get their words late until it is back."
            ) from exc
        finally:
            await client.aclose()
        return f"{mask_url(url)} answers"

    async def runner(self) -> str | None:
        url = self._settings.sandbox_url
        if url is None:
            if shutil.which("bwrap") is None:
                raise Trouble(
                    "there is no bubblewrap, so no sandbox is started beside the server",
                    "Install bubblewrap, or name a runner with TURNKEEP_SANDBOX_URL. Chats work without.",
                    state="warn",
                )
            return "bubblewrap is here; the server starts its own"
        import httpx

        try:
            async with httpx.AsyncClient(timeout=SECONDS) as http:
                answer = await http.get(f"{url.rstrip('/')}/healthz")
        except httpx.HTTPError as exc:
            raise Trouble(
                f"nothing answers at {url} ({str(exc) or type(exc).__name__})", "Start it with `turnkeep sandbox`."
            ) from exc
        if answer.status_code != 200:
            raise Trouble(f"{url} answers with {answer.status_code}", "Is it a sandbox runner? See its log.")
        return f"{url} answers"


def _existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that exists."""
    return next((each for each in (folder, *folder.parents) if each.exists()), Path("/"))


def _check_room(folder: Path) -> None:
    existing = _existing(folder)
    free = shutil.disk_usage(existing).free
    if free < FREE_BYTES:
        raise Trouble(
            f"only {free // 1_000_000} MB are free in {existing}", "Make room before it is full.", state="warn"
        )
