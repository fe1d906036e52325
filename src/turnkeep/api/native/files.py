"""Files: uploaded in one request or by a signed PUT, listed, downloaded, saved, deleted."""

import asyncio
from typing import Any

from starlette.responses import Response
from starlette.types import ASGIApp

from turnkeep.api.http.downloads import SAFE_HEADERS, disposition, download
from turnkeep.api.http.endpoints import ApiCall, Endpoints, Nothing, Policy, ResponseSpec, known_id
from turnkeep.api.http.requests import body_chunks
from turnkeep.api.http.responses import address_of, json_response, no_content
from turnkeep.api.native.query_parameters import ListQuery, SavedFilesQuery, page_of
from turnkeep.clock import system_clock
from turnkeep.errors import Conflict, NotFound, Unavailable, UnsupportedMediaType
from turnkeep.fair_queue import owner_of
from turnkeep.files.images import MAX_BYTES, RASTER_TYPES
from turnkeep.files.keys import incoming_key
from turnkeep.files.multipart import file_parts
from turnkeep.ids import ConversationId, FileId
from turnkeep.knowledge.file_texts import kind_of, unit_of
from turnkeep.model.files import File
from turnkeep_client.wire import files as wire

UPLOAD_SECONDS = 3_600
"""How long the address of a PUT is valid."""
TEXT_SECONDS = 20.0
"""How long a request may wait for a file whose text has not been extracted before."""

endpoints = Endpoints("files", feature="files")

FILE = ResponseSpec(status=200, meaning="The file", type=wire.File)
FILES = ResponseSpec(status=200, meaning="Files, in the order in which they came", type=wire.Files)
BYTES = "*/*"
ONE = "/v1/files/{file_id}"


@endpoints.add(
    "POST",
    "/v1/conversations/{conversation_id}/files",
    policy=Policy.MEMBER,
    raw_body="multipart/form-data",
    responses=(ResponseSpec(status=201, meaning="The files, all of them", type=wire.Files),),
    errors=(413, 415, 507),
)
async def upload_files(call: ApiCall[Nothing, Nothing]) -> ASGIApp:
    """Bring files into a conversation's bag: a form with the field `file`, as often as there are files."""
    conversation_id = _conversation_id(call)
    await call.runtime.store.conversation(call.principal, conversation_id)
    parts = file_parts(
        call.headers.get("content-type", ""),
        body_chunks(call.receive),
        max_files=call.runtime.settings.max_files_per_message,
    )
    files = await call.runtime.bag.receive(call.principal, conversation_id, parts)
    return json_response(wire.Files(data=[file.as_wire() for file in files]), status=201)


@endpoints.add(
    "GET",
    "/v1/conversations/{conversation_id}/files",
    policy=Policy.MEMBER,
    query=ListQuery,
    responses=(FILES,),
)
async def list_files(call: ApiCall[Nothing, ListQuery]) -> ASGIApp:
    """The files of a conversation's bag, those of its users and those of its sandbox."""
    files = await call.runtime.store.files(call.principal, _conversation_id(call))
    return json_response(page_of([file.as_wire() for file in files], call.query, name=lambda file: file.id))


@endpoints.add(
    "GET",
    "/v1/files",
    policy=Policy.MEMBER,
    query=SavedFilesQuery,
    responses=(ResponseSpec(status=200, meaning="The workspace's Files, newest first", type=wire.Files),),
)
async def list_saved_files(call: ApiCall[Nothing, SavedFilesQuery]) -> ASGIApp:
    """The workspace's Files: what was saved for everyone in it."""
    query = call.query
    page = await call.runtime.store.saved_files(call.principal, limit=query.limit, cursor=query.cursor or None)
    data = [file.as_wire() for file in page.data]
    return json_response(wire.Files(data=data, next_cursor=page.next_cursor))


@endpoints.add(
    "POST",
    "/v1/files",
    policy=Policy.MEMBER,
    body=wire.NewFile,
    responses=(ResponseSpec(status=201, meaning="The pending file, and where its bytes go", type=wire.PendingUpload),),
    errors=(413, 415, 507),
)
async def promise_file(call: ApiCall[wire.NewFile, Nothing]) -> ASGIApp:
    """Announce a file. Then PUT its bytes to `upload.url`, and complete it."""
    body = call.body
    conversation_id = None if body.conversation_id is None else known_id(body.conversation_id, "conv")
    file = await call.runtime.bag.promise(
        call.principal,
        None if conversation_id is None else ConversationId(conversation_id),
        name=body.name,
        size=body.size,
        mime_type=body.mime_type,
    )
    promised = wire.PendingUpload(file=file.as_wire(), upload=await _upload(call, file))
    return json_response(promised, status=201)


@endpoints.add(
    "PUT",
    f"{ONE}/content",
    policy=Policy.SIGNED,
    raw_body="application/octet-stream",
    responses=(ResponseSpec(status=204, meaning="The bytes have arrived; complete the file now"),),
    errors=(409, 413, 422, 503, 507),
)
async def put_content(call: ApiCall[Nothing, Nothing]) -> ASGIApp:
    """The bytes of an announced file, at the address that was handed out for them."""
    method, path = call.target.split(" ", 1)
    grant = call.runtime.addresses.verify(method, path, call.query_string)
    file_id = FileId(call.id("file_id", "file"))
    await call.runtime.bag.accept(file_id, int(grant.facts["size"]), body_chunks(call.receive))
    return no_content()


@endpoints.add(
    "POST",
    f"{ONE}/complete",
    policy=Policy.MEMBER,
    body=wire.Completion,
    is_body_optional=True,
    responses=(FILE,),
    errors=(409, 413, 415, 507),
)
async def complete_file(call: ApiCall[wire.Completion, Nothing]) -> ASGIApp:
    """Complete an upload: its bytes are checked, then the file can be attached. The request can be repeated."""
    body = call.body
    file = await call.runtime.bag.complete(call.principal, _file_id(call), size=body.size, sha256=body.sha256)
    return json_response(file.as_wire())


@endpoints.add("GET", ONE, policy=Policy.MEMBER, responses=(FILE,))
async def read_file(call: ApiCall[Nothing, Nothing]) -> ASGIApp:
    """What is known of one file."""
    file = await call.runtime.store.file(call.principal, _file_id(call))
    return json_response(file.as_wire())


@endpoints.add(
    "GET",
    f"{ONE}/content",
    policy=Policy.MEMBER,
    headers=("Range", "If-Range", "If-None-Match"),
    responses=(
        ResponseSpec(status=200, meaning="The bytes, as an attachment", type=bytes, media_type=BYTES),
        ResponseSpec(status=206, meaning="The range that was asked for", type=bytes, media_type=BYTES),
        ResponseSpec(status=304, meaning="You have them already"),
    ),
    errors=(409, 416),
)
async def read_content(call: ApiCall[Nothing, Nothing]) -> ASGIApp:
    """The bytes of a file, or one range of them. No browser runs what is served here."""
    return await download(call.runtime.bag, await ready_file(call), call.headers)


@endpoints.add(
    "GET",
    f"{ONE}/thumbnail",
    policy=Policy.MEMBER,
    responses=(ResponseSpec(status=200, meaning="A small picture", type=bytes, media_type=BYTES),),
    errors=(409, 415),
)
async def read_thumbnail(call: ApiCall[Nothing, Nothing]) -> ASGIApp:
    """The picture within 320 × 320 pixels, as PNG or JPEG."""
    file = await ready_file(call)
    if file.mime_type not in RASTER_TYPES or file.size > MAX_BYTES:
        raise UnsupportedMediaType("Only PNG, JPEG, GIF and WebP of up to 20 MB are shown small.")
    data = await call.runtime.bag.beginning(file, limit=MAX_BYTES)
    picture = await call.runtime.pictures.thumbnail(data, owner_of(call.principal))
    headers = {
        **SAFE_HEADERS,
        "content-disposition": disposition(file.name),
        "cache-control": "private, max-age=86400, immutable",  # the bytes behind an id never change
    }
    return Response(picture.data, 200, headers, picture.media_type)


@endpoints.add(
    "GET",
    f"{ONE}/text",
    policy=Policy.MEMBER,
    responses=(ResponseSpec(status=200, meaning="What the file says", type=wire.FileText),),
    errors=(409, 415),
)
async def read_text(call: ApiCall[Nothing, Nothing]) -> ASGIApp:
    """The text of a file, as the tools search it: a document without its layout, a table as its cells."""
    file = await ready_file(call)
    if kind_of(file) is None or file.sha256 is None:
        raise UnsupportedMediaType(
            "Text is read from text files, PDF, Word, Excel and PowerPoint. Other files can be downloaded."
        )
    try:
        async with asyncio.timeout(TEXT_SECONDS):
            texts = await call.runtime.texts.of(call.principal, [file])
    except TimeoutError as exc:
        raise Unavailable("The file is still being read. Ask again in a moment.") from exc
    read = texts[file.id]
    if read.problem is not None:
        raise UnsupportedMediaType(f"{file.name} cannot be read: {read.problem}.")
    unit = unit_of(file) if "\f" in read.text else None
    return json_response(wire.FileText(file_id=file.id, text=read.text, unit=unit))


@endpoints.add(
    "POST",
    f"{ONE}/save",
    policy=Policy.MEMBER,
    body=wire.Copy,
    is_body_optional=True,
    responses=(ResponseSpec(status=201, meaning="The copy", type=wire.File),),
    errors=(409, 507),
)
async def save_file(call: ApiCall[wire.Copy, Nothing]) -> ASGIApp:
    """Copy a file into the workspace's Files, or from there (or another bag) into a conversation's bag."""
    target = call.body.conversation_id
    conversation_id = None if target is None else ConversationId(known_id(target, "conv"))
    if conversation_id is not None:
        await call.runtime.store.conversation(call.principal, conversation_id)
    saved = await call.runtime.bag.save(call.principal, _file_id(call), conversation_id)
    return json_response(saved.as_wire(), status=201)


@endpoints.add(
    "DELETE",
    ONE,
    policy=Policy.MEMBER,
    responses=(ResponseSpec(status=204, meaning="The file is gone"),),
    errors=(507,),
)
async def delete_file(call: ApiCall[Nothing, Nothing]) -> ASGIApp:
    """Delete a file. Its bytes are erased after the retention period, those of an upload that was not completed at
    once."""
    await call.runtime.bag.delete(call.principal, _file_id(call))
    return no_content()


async def _upload(call: ApiCall[Any, Any], file: File) -> wire.UploadTicket:
    """Where the bytes go: straight to the bucket if there is one, else to this server."""
    expires_at = system_clock() + UPLOAD_SECONDS * 1000
    url: str | None = None
    if not call.body.through_server:
        url = await call.runtime.bag.objects.upload_url(incoming_key(file.id), size=file.size, seconds=UPLOAD_SECONDS)
    if url is None:
        path = f"/v1/files/{file.id}/content"
        signed = call.runtime.addresses.sign(
            "PUT", path, org_id=call.principal.org_id, expires_at=expires_at, facts={"size": file.size}
        )
        url = address_of(call.runtime.settings, call.headers.get("host")) + signed
    return wire.UploadTicket(method="PUT", url=url, headers={}, expires_at=expires_at)


async def ready_file(call: ApiCall[Any, Any]) -> File:
    """The file of the path, if its bytes can be read. Raises NotFound or Conflict."""
    file = await call.runtime.store.file(call.principal, _file_id(call))
    if file.status == "ready":
        return file
    if file.storage_key.startswith("imported/"):
        raise NotFound("This file was imported without its bytes.")
    raise Conflict("This file is not complete yet: its bytes have not come, or it was not completed.")


def _file_id(call: ApiCall[Any, Any]) -> FileId:
    file_id = FileId(call.id("file_id", "file"))
    call.notes["file_id"] = file_id
    return file_id


def _conversation_id(call: ApiCall[Any, Any]) -> ConversationId:
    conversation_id = ConversationId(call.id("conversation_id", "conv"))
    call.notes["conversation_id"] = conversation_id
    return conversation_id
