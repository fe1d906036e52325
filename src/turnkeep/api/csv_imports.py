"""CSV that somebody sends: taken in as it comes, imported whole or not at all, and told of line by line if asked."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from typing import Any

import msgspec
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from turnkeep.api.http.disconnects import CallerLeft, while_connected
from turnkeep.api.http.endpoints import Call
from turnkeep.api.http.idempotency import StreamHash
from turnkeep.api.http.problem_details import translated
from turnkeep.api.http.requests import body_chunks
from turnkeep.api.http.responses import json_response
from turnkeep.api.knowledge_wire import Added, CsvQuery, Table
from turnkeep.errors import InvalidRequest
from turnkeep.ids import TableId
from turnkeep.knowledge.csv_files import CsvFile
from turnkeep.knowledge.importing import Importer, Progress, spooled, unheard

NDJSON = "application/x-ndjson"
CSV = "text/csv"

Import = Callable[[CsvFile, Progress], Awaitable[Added | Table]]


async def import_into(call: Call[Any, CsvQuery], table_id: TableId, *, batch: str | None) -> ASGIApp:
    """All rows of the body into this table, or none. The same body as the same batch is imported once."""
    store = call.runtime.store
    table = await store.table(call.principal, table_id)
    seen = StreamHash(call, charset_of(call.headers), call.query.delimiter)

    async def run(csv: CsvFile, progress: Progress) -> Added:
        digest = seen.hexdigest()
        if batch is not None:
            known = await store.added_rows(call.principal, table.id, batch=batch, digest=digest)
            if known is not None:
                return Added(rows=len(known), table=Table.of(table))
        filled = await Importer(store).fill(call.principal, table, csv, progress, batch=batch, digest=digest)
        return Added(rows=filled.row_count - table.row_count, table=Table.of(filled))

    return await _answered(call, seen.passing(body_chunks(call.receive)), run)


async def import_as_new(call: Call[Any, CsvQuery]) -> ASGIApp:
    """A new table with the columns and rows of the body, or nothing at all."""
    store, name = call.runtime.store, call.query.name
    if not name or not name.strip():
        raise InvalidRequest("Say how the new table is called: ?name=…")

    async def run(csv: CsvFile, progress: Progress) -> Table:
        importer = Importer(store)
        columns = await importer.columns(csv, progress)
        table = await store.create_table(call.principal, name=name, columns=columns)
        try:
            return Table.of(await importer.fill(call.principal, table, csv, progress))
        except BaseException:
            await asyncio.shield(store.delete_table(call.principal, table.id))
            raise

    return await _answered(call, body_chunks(call.receive), run)


async def _answered(call: Call[Any, CsvQuery], chunks: AsyncIterator[bytes], run: Import) -> ASGIApp:
    async with AsyncExitStack() as stack:
        limit = call.runtime.settings.max_file_bytes
        file = await stack.enter_async_context(spooled(chunks, limit=limit))
        importer = Importer(call.runtime.store)
        csv = await importer.open(file, charset=charset_of(call.headers), delimiter=call.query.delimiter)
        if NDJSON in call.headers.get("accept", "").lower():
            return ImportStream(stack.pop_all(), lambda progress: run(csv, progress))
        return json_response(await run(csv, unheard), status=201)


class ImportStream:
    """The import while it is told of: `progress` lines, then one `result` or `error`. Who leaves takes it back."""

    def __init__(self, stack: AsyncExitStack, run: Callable[[Progress], Awaitable[Added | Table]]) -> None:
        self._stack = stack
        self._run = run

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def tell(line: dict[str, Any], *, more: bool = True) -> None:
            body = msgspec.json.encode(line) + b"\n"
            await send({"type": "http.response.body", "body": body, "more_body": more})

        async def progress(stage: str, rows: int, total: int | None) -> None:
            await tell({"type": "progress", "stage": stage, "rows": rows, "total": total})

        headers = [(b"content-type", NDJSON.encode()), (b"cache-control", b"no-store")]
        async with self._stack:
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            with suppress(CallerLeft):
                await tell(await while_connected(receive, self._last_line(progress)), more=False)

    async def _last_line(self, progress: Progress) -> dict[str, Any]:
        """What the import came to."""
        try:
            shown = await self._run(progress)
        except Exception as exc:
            error = translated(exc)
            return {"type": "error", "code": error.code, "message": error.detail}
        return {"type": "result", **msgspec.to_builtins(shown)}


def charset_of(headers: Headers) -> str | None:
    """What the content type says of its encoding."""
    _, *parameters = headers.get("content-type", "").split(";")
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "charset":
            return value.strip().strip('"') or None
    return None
