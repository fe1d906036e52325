"""Files: upload, list, read, save, delete. Bytes are streamed both ways; neither way holds a whole file in memory.

An upload is promised, sent and completed. Each step can be repeated, so a lost connection never creates a file twice.
`upload_here` sends several small ones in one request instead.
"""

import asyncio
import hashlib
import mimetypes
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import BinaryIO

from turnkeep_client.errors import error_of
from turnkeep_client.transport import Refusal, Resource, part
from turnkeep_client.wire import File, FileText, Page, PendingUpload, UploadTicket
from turnkeep_client.wire.errors import Defect, InvalidRequest, NotFound

CHUNK_BYTES = 256 * 1024
DEFAULT_TYPE = "application/octet-stream"

Source = str | os.PathLike[str] | bytes
"""A path, or the bytes themselves (which need a `name`)."""
OnSent = Callable[[int], None]
"""Called with the number of bytes that have been sent, or received."""


class FileResource(Resource):
    """The bags of conversations, and the workspace's Files."""

    async def upload(
        self,
        source: Source,
        *,
        name: str | None = None,
        mime_type: str | None = None,
        conversation_id: str | None = None,
        on_sent: OnSent | None = None,
    ) -> File:
        """Upload one file of any size. Without a conversation it joins the bag of the first turn that attaches it.

        `on_sent` is called with the number of bytes that have been sent.
        """
        size, name, mime_type = await asyncio.to_thread(described, source, name, mime_type)
        body = {"name": name, "size": size, "mime_type": mime_type}
        if conversation_id is not None:
            body["conversation_id"] = conversation_id
        # The server forgets a file whose bytes never come, so a request whose answer was lost is sent again.
        promised = await self._transport.call("POST", "/v1/files", PendingUpload, body=body, is_safe=True)
        await self._send(promised.upload, source, size, on_sent)
        path = f"/v1/files/{part(promised.file.id)}/complete"
        return await self._transport.call("POST", path, File, is_safe=True)

    async def upload_here(self, conversation_id: str, sources: Sequence[Source | tuple[str, bytes]]) -> list[File]:
        """Upload several small files into a conversation, in one request that is not repeated if its answer is lost."""
        parts = []
        for source in sources:
            wanted, given = source if isinstance(source, tuple) else (None, source)
            _, name, mime_type = await asyncio.to_thread(described, given, wanted, None)
            content = given if isinstance(given, bytes) else await asyncio.to_thread(Path(given).read_bytes)
            parts.append(("file", (name, content, mime_type)))
        path = f"/v1/conversations/{part(conversation_id)}/files"
        page = await self._transport.send_parts(path, Page[File], parts)
        return list(page.data)

    def list(self, conversation_id: str | None = None, *, limit: int | None = None) -> AsyncGenerator[File, None]:
        """The files of a conversation; without one, the workspace's Files."""
        if conversation_id is None:
            return self._pages("/v1/files", File, limit=limit, scope="workspace")
        return self._pages(f"/v1/conversations/{part(conversation_id)}/files", File, limit=limit)

    async def get(self, file_id: str) -> File:
        """Name, type, size and checksum of a file."""
        return await self._transport.call("GET", f"/v1/files/{part(file_id)}", File)

    async def delete(self, file_id: str) -> None:
        """Delete a file. Its bytes are erased after the retention period."""
        await self._transport.fetch("DELETE", f"/v1/files/{part(file_id)}")

    async def save(self, file_id: str, *, conversation_id: str | None = None) -> File:
        """A copy in the workspace's Files, or in the bag of a conversation."""
        body = {} if conversation_id is None else {"conversation_id": conversation_id}
        return await self._transport.call("POST", f"/v1/files/{part(file_id)}/save", File, body=body)

    async def text(self, file_id: str) -> FileText:
        """What the file says, as the tools search it: a document without its layout, a spreadsheet as its cells."""
        return await self._transport.call("GET", f"/v1/files/{part(file_id)}/text", FileText)

    async def thumbnail(self, file_id: str) -> bytes:
        """A small picture of an image, as PNG or JPEG."""
        return await self._transport.fetch("GET", f"/v1/files/{part(file_id)}/thumbnail", headers={"accept": "*/*"})

    async def read(self, file_id: str) -> bytes:
        """The whole content, in memory."""
        return b"".join([chunk async for chunk in self.chunks(file_id)])

    async def chunks(self, file_id: str, *, start: int = 0) -> AsyncGenerator[bytes, None]:
        """The content as it comes, from that byte on. After a lost connection it continues at the next byte."""
        retry = self._transport.retry()
        path, place, end = f"/v1/files/{part(file_id)}/content", start, -1
        while place != end:
            try:
                headers = {"accept": "*/*"} | ({"range": f"bytes={place}-"} if place else {})
                async with self._transport.stream("GET", path, headers=headers) as response:
                    if place and response.status_code != 206:
                        raise Defect("The server does not send parts of files, so the download cannot be resumed.")
                    end = place + int(response.headers["content-length"])
                    async for chunk in response.aiter_raw():
                        retry.progress()
                        place += len(chunk)
                        yield chunk
                    return
            except Refusal as refusal:
                await self._transport.after_refusal(refusal.error, refusal.headers, retry)
            except self._transport.transport_errors as exc:
                await self._transport.after(exc, retry, is_safe=True)

    async def download(
        self, file_id: str, to: str | os.PathLike[str] | None = None, *, on_received: OnSent | None = None
    ) -> Path:
        """Write the content to a path (by default the file's own name, here); it appears there whole, or not at all.

        A directory takes the file under its own name. What arrived is compared with the server's checksum.
        `on_received` is called with the number of bytes that have been received.
        """
        file = await self.get(file_id)
        target = await asyncio.to_thread(_target, file.name, to)
        draft = target.with_name(f".{target.name}.part")
        digest, received = hashlib.sha256(), 0
        try:
            with await asyncio.to_thread(draft.open, "wb") as sink:
                async for chunk in self.chunks(file_id):
                    digest.update(chunk)
                    await asyncio.to_thread(sink.write, chunk)
                    received += len(chunk)
                    if on_received is not None:
                        on_received(received)
            if file.sha256 and digest.hexdigest() != file.sha256:
                raise Defect(f"{file.name} arrived damaged: its checksum is another. Download it again.")
            await asyncio.to_thread(draft.replace, target)
        except OSError as exc:
            raise InvalidRequest(f"{target} cannot be written: {exc.strerror or exc}.") from exc
        finally:
            await asyncio.to_thread(draft.unlink, missing_ok=True)
        return target

    async def _send(self, ticket: UploadTicket, source: Source, size: int, on_sent: OnSent | None) -> None:
        """Put the bytes where the ticket says: at the server itself, or in a bucket that knows nothing of our key."""
        retry = self._transport.retry()
        url = ticket.url if "://" in ticket.url else f"{self._transport.place.url}{ticket.url}"
        headers = {"content-length": str(size), **{name.lower(): value for name, value in ticket.headers.items()}}
        async with self._transport.foreign(url) as http:
            while True:
                try:
                    response = await http.request(
                        ticket.method, url, content=chunks_of(source, on_sent), headers=headers
                    )
                except self._transport.transport_errors as exc:
                    await self._transport.after(exc, retry, is_safe=True)
                    continue
                if response.status_code < 400:
                    return
                error = error_of(response.status_code, response.headers, response.content)
                await self._transport.after_refusal(error, response.headers, retry)


def described(source: Source, name: str | None, mime_type: str | None) -> tuple[int, str, str]:
    if isinstance(source, bytes):
        if not name:
            raise InvalidRequest("Bytes have no name of their own: give one.")
        size = len(source)
    else:
        path = Path(source)
        if not path.exists():
            raise NotFound(f"There is no file {path}.")
        if not path.is_file():
            raise InvalidRequest(f"{path} is not a file.")
        size, name = path.stat().st_size, name or path.name
    return size, name, mime_type or mimetypes.guess_type(name)[0] or DEFAULT_TYPE


async def chunks_of(source: Source, on_sent: OnSent | None = None) -> AsyncIterator[bytes]:
    """The bytes of the source. `on_sent` learns how many have been taken."""
    sent = 0
    async for chunk in _chunks(source):
        yield chunk
        sent += len(chunk)
        if on_sent is not None:
            on_sent(sent)


async def _chunks(source: Source) -> AsyncIterator[bytes]:
    if isinstance(source, bytes):
        for start in range(0, len(source), CHUNK_BYTES):
            yield source[start : start + CHUNK_BYTES]
        return
    file: BinaryIO = await asyncio.to_thread(Path(source).open, "rb")
    try:
        while chunk := await asyncio.to_thread(file.read, CHUNK_BYTES):
            yield chunk
    finally:
        await asyncio.to_thread(file.close)


def _target(name: str, to: str | os.PathLike[str] | None) -> Path:
    """The server sends a name, never a path: whatever it contains, the file is written where the caller said."""
    own = Path(name.replace("\\", "/")).name.lstrip(".") or "file"
    if to is None:
        return Path(own)
    path = Path(to)
    return path / own if path.is_dir() else path
