"""Pages and tables: write, read, search; CSV in and out, streamed both ways."""

import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec import Struct

from turnkeep_client.files import OnSent, Source, chunks_of, described
from turnkeep_client.transport import Refusal, Resource, given, lines_of, part
from turnkeep_client.wire.blocks import JsonObject, JsonValue
from turnkeep_client.wire.errors import CallerError, Defect
from turnkeep_client.wire.knowledge import Added, KnowledgePage, PageItem, Row, Table, TableColumn


class ImportStep(Struct, frozen=True, kw_only=True):
    """The progress of an import. The last step has the table."""

    type: Literal["progress", "result"]
    rows: int = 0
    stage: str | None = None
    total: int | None = None
    table: Table | None = None


class ImportRefused(CallerError):
    """The file does not fit; nothing of it was imported."""


class Pages(Resource):
    """Markdown documents of a workspace."""

    def list(self, q: str | None = None, *, limit: int | None = None) -> AsyncGenerator[PageItem, None]:
        """Pages, newest first; with `q` those that it finds, best first."""
        return self._pages("/v1/pages", PageItem, limit=limit, q=q)

    async def get(self, page_id: str) -> KnowledgePage:
        """A page with its Markdown."""
        return await self._transport.call("GET", f"/v1/pages/{part(page_id)}", KnowledgePage)

    async def create(self, title: str, content: str = "") -> KnowledgePage:
        """Write a page. A search finds it at once."""
        body = {"title": title, "content": content}
        return await self._transport.call("POST", "/v1/pages", KnowledgePage, body=body)

    async def update(self, page_id: str, *, title: str | None = None, content: str | None = None) -> KnowledgePage:
        """Change what is given."""
        body = given(title=title, content=content)
        return await self._transport.call("PATCH", f"/v1/pages/{part(page_id)}", KnowledgePage, body=body)

    async def delete(self, page_id: str) -> None:
        """Delete a page, for good."""
        await self._transport.fetch("DELETE", f"/v1/pages/{part(page_id)}")


class Tables(Resource):
    """Tables of a workspace, and their rows."""

    def list(self, *, limit: int | None = None) -> AsyncGenerator[Table, None]:
        """The tables of the workspace, without their rows."""
        return self._pages("/v1/tables", Table, limit=limit)

    async def get(self, table_id: str) -> Table:
        """A table with its columns, without its rows."""
        return await self._transport.call("GET", _path(table_id), Table)

    async def create(self, name: str, columns: Sequence[TableColumn | JsonObject], *, description: str = "") -> Table:
        """Make an empty table with these columns. `import_csv` makes one of a file."""
        body = {"name": name, "columns": list(columns), "description": description}
        return await self._transport.call("POST", "/v1/tables", Table, body=body)

    async def update(
        self,
        table_id: str,
        *,
        name: str | None = None,
        description: str | None = None,
        columns: Sequence[JsonObject] | None = None,
    ) -> Table:
        """Change what is given. `columns` is the whole list; `was` in one renames it."""
        body = given(name=name, description=description, columns=columns)
        return await self._transport.call("PATCH", _path(table_id), Table, body=body)

    async def delete(self, table_id: str) -> None:
        """Delete a table with all its rows, for good."""
        await self._transport.fetch("DELETE", _path(table_id))

    def rows(
        self,
        table_id: str,
        q: str | None = None,
        *,
        filters: Sequence[JsonObject] = (),
        sort: str | None = None,
        from_row: int | None = None,
        limit: int | None = None,
    ) -> AsyncGenerator[Row, None]:
        """Rows by their number, from `from_row` on; with words, filters or an order, those that fit."""
        encoded = msgspec.json.encode(list(filters)).decode() if filters else None
        return self._pages(
            f"{_path(table_id)}/rows", Row, limit=limit, q=q, filter=encoded, sort=sort, from_row=from_row
        )

    async def add_rows(
        self, table_id: str, rows: Sequence[Mapping[str, JsonValue]], *, idempotency_key: str | None = None
    ) -> Added:
        """Add up to 1,000 rows, all or none. With a key it is repeated when its answer was lost, and adds once."""
        headers = {} if idempotency_key is None else {"idempotency-key": idempotency_key}
        body = {"rows": [dict(row) for row in rows]}
        path = f"{_path(table_id)}/rows"
        is_safe = idempotency_key is not None
        return await self._transport.call("POST", path, Added, body=body, headers=headers, is_safe=is_safe)

    async def get_row(self, table_id: str, row: int) -> Row:
        """One row by its number."""
        return await self._transport.call("GET", f"{_path(table_id)}/rows/{row}", Row)

    async def update_row(self, table_id: str, row: int, values: Mapping[str, JsonValue]) -> Row:
        """Change some cells."""
        body = {"values": dict(values)}
        return await self._transport.call("PATCH", f"{_path(table_id)}/rows/{row}", Row, body=body)

    async def delete_row(self, table_id: str, row: int) -> None:
        """Delete a row, for good."""
        await self._transport.fetch("DELETE", f"{_path(table_id)}/rows/{row}")

    async def import_csv(
        self,
        source: Source,
        *,
        table_id: str | None = None,
        name: str | None = None,
        charset: str | None = None,
        delimiter: str | None = None,
        on_sent: OnSent | None = None,
    ) -> AsyncGenerator[ImportStep, None]:
        """Send a CSV file into a table, or into a new one of that name, whose columns are detected.

        Yields the progress; the last step has the table. The import is undone if the caller stops reading before.
        Raises ImportRefused, naming the line, for what does not fit; then nothing of the file is stored.
        """
        size, _, _ = described(source, "rows.csv", "text/csv")
        path = "/v1/tables" if table_id is None else f"{_path(table_id)}/rows"
        kind = "text/csv" if charset is None else f"text/csv; charset={charset}"
        headers = {"content-type": kind, "accept": "application/x-ndjson", "content-length": str(size)}
        query = given(name=name, delimiter=delimiter)
        try:
            async with self._transport.stream(
                "POST", path, headers=headers, query=query, content=chunks_of(source, on_sent)
            ) as response:
                async for line in lines_of(response):
                    yield _step(line)
        except Refusal as refusal:
            raise refusal.error from refusal

    async def export_csv(self, table_id: str) -> AsyncGenerator[bytes, None]:
        """The whole table as CSV, as it comes."""
        try:
            async with self._transport.stream("GET", f"{_path(table_id)}/rows", query={"format": "csv"}) as response:
                async for chunk in response.aiter_raw():
                    yield chunk
        except Refusal as refusal:
            raise refusal.error from refusal


def _path(table_id: str) -> str:
    return f"/v1/tables/{part(table_id)}"


class _Line(Struct, frozen=True, kw_only=True):
    type: str
    message: str | None = None


def _step(line: bytes) -> ImportStep:
    kind = msgspec.json.decode(line, type=_Line)
    if kind.type == "error":
        raise ImportRefused(kind.message or "The import failed.")
    if kind.type == "progress":
        return msgspec.json.decode(line, type=ImportStep)
    answer: dict[str, Any] = msgspec.json.decode(line)
    table = msgspec.convert(answer.get("table", answer), Table)
    return ImportStep(type="result", rows=answer.get("rows", table.row_count), table=table)


def size_of_source(source: Source) -> int:
    """How many bytes will be sent."""
    if isinstance(source, bytes):
        return len(source)
    try:
        return os.stat(source).st_size
    except OSError as exc:
        raise Defect(f"{source!s} cannot be read: {exc}.") from exc
