"""OpenAI's files: upload, list, read, download, delete.

A file that is uploaded here belongs to no conversation until a message names its id. The list has the caller's own
files that wait for that; those of a conversation are found there, and the workspace's Files in the native API.
"""

from collections.abc import AsyncIterator
from typing import Any

from starlette.types import ASGIApp

from turnkeep.api.http.downloads import download
from turnkeep.api.http.endpoints import ApiCall, Endpoints, Nothing
from turnkeep.api.http.problem_details import InvalidField
from turnkeep.api.http.requests import body_chunks
from turnkeep.api.http.responses import json_response
from turnkeep.api.native.files import ready_file
from turnkeep.api.openai.items import page_of_items, query_of
from turnkeep.api.openai.models import BASE, OK, PAGE_NAMES, ROUTE
from turnkeep.files.multipart import FormFile, file_parts
from turnkeep.ids import FileId
from turnkeep.model.files import File
from turnkeep_client.wire.blocks import JsonObject

endpoints = Endpoints("openai", feature="files")

ONE = f"{BASE}/files/{{file_id}}"
PURPOSE = "user_data"
PURPOSES = ("assistants", "batch", "fine-tune", "vision", "user_data", "evals")
"""What OpenAI knows. Here every file is for messages, whatever its purpose."""
REFUSED_FIELDS = {
    f"expires_after[{name}]": "Files expire as the server's settings say. Leave `expires_after` out."
    for name in ("anchor", "seconds")
}
FILES_AT_ONCE = 100


@endpoints.add(
    "POST",
    f"{BASE}/files",
    responses=(OK,),
    raw_body="multipart/form-data",
    errors=(413, 415, 507),
    **ROUTE,
)
async def upload_openai_file(call: ApiCall[Nothing, Nothing]) -> ASGIApp:
    """Upload a file, for messages."""
    texts = {"purpose": ""}
    parts = _parts(call, texts)
    [file] = await call.runtime.bag.receive(call.principal, None, parts, purpose=lambda: texts["purpose"])
    return json_response(file_object(file))


async def _parts(call: ApiCall[Any, Any], texts: dict[str, str]) -> AsyncIterator[FormFile]:
    """The file of the form. Raises InvalidField at its end if the purpose is missing or unknown: it may come last."""
    content_type = call.headers.get("content-type", "")
    body = body_chunks(call.receive)
    async for part in file_parts(content_type, body, max_files=1, texts=texts, refused=REFUSED_FIELDS):
        yield part
    if texts["purpose"] not in PURPOSES:
        raise InvalidField(f"`purpose` is one of {', '.join(PURPOSES)}.", field="purpose")


@endpoints.add("GET", f"{BASE}/files", responses=(OK,), query_names=(*PAGE_NAMES, "purpose"), **ROUTE)
async def list_openai_files(call: ApiCall[Nothing, Nothing]) -> ASGIApp:
    """The caller's own files that no message has named yet."""
    purpose = query_of(call).get("purpose")
    files = [file_object(file) for file in reversed(await _loose_files(call))]
    wanted = [file for file in files if purpose in {None, "", file["purpose"]}]
    return json_response(await page_of_items(call, wanted, most=10_000))


@endpoints.add("GET", ONE, responses=(OK,), errors=(404,), **ROUTE)
async def read_openai_file(call: ApiCall[Nothing, Nothing]) -> ASGIApp:
    """One file."""
    return json_response(file_object(await call.runtime.store.file(call.principal, _id(call))))


@endpoints.add("GET", f"{ONE}/content", responses=(OK,), errors=(404, 409), **ROUTE)
async def read_openai_content(call: ApiCall[Nothing, Nothing]) -> ASGIApp:
    """The bytes of a file."""
    return await download(call.runtime.bag, await ready_file(call), call.headers)


@endpoints.add("DELETE", ONE, responses=(OK,), errors=(404, 507), **ROUTE)
async def delete_openai_file(call: ApiCall[Nothing, Nothing]) -> ASGIApp:
    """Delete a file."""
    await call.runtime.bag.delete(call.principal, _id(call))
    return json_response({"id": _id(call), "object": "file", "deleted": True})


async def _loose_files(call: ApiCall[Any, Any]) -> list[File]:
    found: list[File] = []
    cursor: str | None = None
    while True:
        page = await call.runtime.store.loose_files(call.principal, limit=FILES_AT_ONCE, cursor=cursor)
        found += page.data
        cursor = page.next_cursor
        if cursor is None:
            return found


def _id(call: ApiCall[Any, Any]) -> FileId:
    return FileId(call.id("file_id", "file"))


def file_object(file: File) -> JsonObject:
    return {
        "id": file.id,
        "object": "file",
        "bytes": file.size,
        "created_at": file.created_at // 1000,
        "expires_at": None,
        "filename": file.name,
        "purpose": file.purpose or PURPOSE,
        "status": "processed" if file.status == "ready" else "uploaded",
        "status_details": None,
    }
