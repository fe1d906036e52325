"""How the command line reaches the database: directly, or through the server that owns it.

A SQLite file belongs to one process. While a server runs on it, commands ask that server, with the local key.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import typer

from turnkeep.client import finding
from turnkeep.client.finding import SERVER_FILE, RunningServer
from turnkeep.config import Settings, read_settings
from turnkeep.errors import Conflict, Forbidden, InvalidRequest, NotFound, TurnkeepError, Unavailable
from turnkeep.http_server.sockets import http_address
from turnkeep.store.ports import Store

Outcome = TypeVar("Outcome")

DataDir = Annotated[str | None, typer.Option("--data-dir", help="The data directory (TURNKEEP_DATA_DIR).")]
DatabaseUrl = Annotated[str | None, typer.Option("--database-url", help="The database (TURNKEEP_DATABASE_URL).")]
AsJson = Annotated[bool, typer.Option("--json", help="Answer as JSON, for scripts.")]


def settings_of(data_dir: str | None, database_url: str | None) -> Settings:
    return read_settings(os.environ, {"data_dir": data_dir, "database_url": database_url})


def with_store(settings: Settings, work: Callable[[Store], Awaitable[Outcome]]) -> Outcome:
    """Open the database, do this, close it. Raises Conflict while a server owns the file."""
    from turnkeep.runtime import home_org, open_store

    async def run() -> Outcome:
        store = await open_store(settings)
        try:
            await home_org(store)  # before any other: the first org is the operator's own
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(run())


def ask_server(settings: Settings, method: str, path: str, body: Any = None) -> Any:
    """The answer of the server that owns the database."""
    import httpx

    from turnkeep.api.identity.service_keys import local_key

    server = running_server(settings)
    if server is None:
        raise Unavailable("Another process has the database open, and it is not a server that can be asked. Stop it.")
    headers = {"authorization": f"Bearer {local_key(settings.data_dir)}"}
    try:
        answer = httpx.request(method, server.url + path, json=body, headers=headers, timeout=30, trust_env=False)
    except httpx.HTTPError as exc:
        raise Unavailable(f"The server at {server.url} does not answer: {exc}.") from exc
    if answer.status_code >= 400:
        raise _refused(answer.status_code, answer.text)
    return answer.json() if answer.content else None


def list_from_server(settings: Settings, path: str) -> list[Any]:
    """All pages of a list."""
    found: list[Any] = []
    cursor: str | None = None
    while True:
        page = ask_server(settings, "GET", path if cursor is None else f"{path}?cursor={cursor}")
        found += page["data"]
        cursor = page["next_cursor"]
        if cursor is None:
            return found


def either(settings: Settings, direct: Callable[[Store], Awaitable[Outcome]], ask: Callable[[], Outcome]) -> Outcome:
    """Work on the database itself, or ask the server where one owns it."""
    try:
        return with_store(settings, direct)
    except Conflict:
        if running_server(settings) is None:
            raise
        return ask()


def remember_server(settings: Settings, port: int) -> None:
    """Write down where the server of this data directory is."""
    url = http_address(settings.host, port)
    _server_file(settings).write_bytes(msgspec.json.encode(RunningServer(url=url, pid=os.getpid())))


def forget_server(settings: Settings) -> None:
    """Remove what this very process wrote."""
    server = running_server(settings)
    if server is not None and server.pid == os.getpid():
        _server_file(settings).unlink(missing_ok=True)


def running_server(settings: Settings) -> RunningServer | None:
    """The server that wrote itself down, if its process lives."""
    return finding.running_server(settings.data_dir)


def _server_file(settings: Settings) -> Path:
    return settings.data_dir / SERVER_FILE


def _refused(status: int, text: str) -> TurnkeepError:
    try:
        detail = str(msgspec.json.decode(text)["detail"])
    except (msgspec.MsgspecError, KeyError, TypeError):
        detail = f"The server answered with status {status}."
    match status:
        case 404:
            return NotFound(detail)
        case 401 | 403:
            return Forbidden(detail)
        case _ if status >= 500:
            return Unavailable(detail)
        case _:
            return InvalidRequest(detail)
