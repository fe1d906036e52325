"""Objects in an S3-compatible bucket, through obstore (the extra `turnkeep[s3]`)."""

import asyncio
import hashlib
import hmac
import os
from collections.abc import AsyncIterable, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from urllib.parse import parse_qsl, quote, urlsplit, urlunsplit

import obstore
from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import S3Store

from turnkeep.errors import StorageFull, Unavailable
from turnkeep.files.objects import LISTED_AT_ONCE, missing, storage_error, too_short
from turnkeep.files.ports import BLOCK, Missing, StoredObject

PART_BYTES = 5 * BLOCK
"""S3 accepts no smaller parts."""
DELETED_AT_ONCE = 8
CONNECT_SECONDS = 3
SILENT_SECONDS = 15
IDLE_SECONDS = 20
"""A connection that was not used for this long is closed: the network may have forgotten it."""
RETRY_SECONDS = 4


class BucketObjects:
    """A bucket. Credentials, endpoint and region come from the usual `AWS_*` variables."""

    def __init__(self, bucket: str, *, prefix: str) -> None:
        self._store = S3Store(
            bucket,
            prefix=prefix or None,
            client_options={
                "allow_http": _is_plain_http(os.environ),
                "connect_timeout": timedelta(seconds=CONNECT_SECONDS),
                # No limit for a whole request: a reader may be slow. `read_timeout` notices a bucket that falls silent.
                "timeout": timedelta(days=1),
                # The client's sockets have TCP keep-alive and TCP_USER_TIMEOUT, which cannot be set from here.
                "read_timeout": timedelta(seconds=SILENT_SECONDS),
                "pool_idle_timeout": timedelta(seconds=IDLE_SECONDS),
            },
            retry_config={"max_retries": 3, "retry_timeout": timedelta(seconds=RETRY_SECONDS)},
        )

    async def put(self, key: str, blocks: AsyncIterable[bytes]) -> None:
        source = aiter(blocks)
        first: list[bytes] = []
        size = 0
        async for block in source:
            first.append(block)
            size += len(block)
            if size >= PART_BYTES:
                break
        if size < PART_BYTES:  # a small object is one request, which cannot be left half-done
            with _translated():
                await obstore.put_async(self._store, key, b"".join(first), use_multipart=False)
            return
        with _translated():
            await obstore.put_async(
                self._store,
                key,
                _chained(first, source),
                use_multipart=True,
                chunk_size=PART_BYTES,
                max_concurrency=1,  # one part is sent while the next is collected: 10 MB of memory per upload
            )

    async def read(self, key: str, *, start: int, end: int) -> AsyncIterator[bytes]:
        if start >= end:
            return
        with _translated():
            found = await obstore.get_async(self._store, key, options={"range": (start, end)})
            if found.meta["size"] < end:
                raise too_short()
            async for block in found.stream(min_chunk_size=BLOCK):
                yield bytes(block)

    async def size(self, key: str) -> int | None:
        try:
            with _translated():
                return (await obstore.head_async(self._store, key))["size"]
        except Missing:
            return None

    async def copy(self, source: str, target: str) -> None:
        with _translated():
            await obstore.copy_async(self._store, source, target)

    async def delete(self, keys: Sequence[str]) -> None:
        deleting = asyncio.Semaphore(DELETED_AT_ONCE)

        async def delete(key: str) -> None:
            async with deleting:
                with suppress(Missing), _translated():
                    await obstore.delete_async(self._store, key)

        await asyncio.gather(*map(delete, keys))

    async def list(self, prefix: str) -> AsyncIterator[Sequence[StoredObject]]:
        with _translated():
            async for page in obstore.list(self._store, prefix, chunk_size=LISTED_AT_ONCE):
                yield [
                    StoredObject(
                        key=meta["path"],
                        size=meta["size"],
                        modified_at=int(meta["last_modified"].timestamp() * 1000),
                    )
                    for meta in page
                ]

    async def discard_unfinished(self, *, before: int) -> int:
        """A killed multipart upload cannot be listed through obstore; a lifecycle rule of the bucket removes it."""
        return 0

    async def upload_url(self, key: str, *, size: int, seconds: int) -> str | None:
        with _translated():
            url = await obstore.sign_async(self._store, "PUT", key, timedelta(seconds=seconds))
        return _with_signed_length(url, size, os.environ)

    async def upload_origin(self) -> str | None:
        address = urlsplit(await self.upload_url("origin", size=0, seconds=1) or "")
        return f"{address.scheme}://{address.netloc}"


async def _chained(first: list[bytes], rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    while first:  # one by one, so that these bytes are not in memory twice
        yield first.pop(0)
    async for block in rest:
        yield block


@contextmanager
def _translated() -> Iterator[None]:
    """Raise our own error for each error of obstore inside."""
    try:
        yield
    except FileNotFoundError as exc:
        raise missing() from exc
    except (BaseError, OSError) as exc:
        error = storage_error(exc)
        is_denied = isinstance(exc, PermissionDeniedError | UnauthenticatedError)
        if is_denied and not isinstance(error, StorageFull):  # some servers refuse with 403 when a quota is used up
            error = Unavailable("The bucket refuses the server's credentials. An operator must look at them.")
        raise error from exc


def _with_signed_length(url: str, size: int, environ: Mapping[str, str]) -> str:
    """The same signed address of a PUT, valid for a body of this length alone.

    obstore signs the host and no other header, so the signature is made again, with the same parameters (AWS Signature
    Version 4 in the query). That needs the secret key. With credentials that are not in the environment, such as those
    of a machine's role, the address stays as it is: a longer body is then refused when the upload is completed.
    """
    address = urlsplit(url)
    fields = dict(parse_qsl(address.query, strict_parsing=True))
    key_id, *scope = fields["X-Amz-Credential"].split("/")
    secret = environ.get("AWS_SECRET_ACCESS_KEY")
    if not secret or environ.get("AWS_ACCESS_KEY_ID") != key_id:
        return url
    del fields["X-Amz-Signature"]
    fields["X-Amz-SignedHeaders"] = "content-length;host"
    query = "&".join(f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in sorted(fields.items()))
    headers = f"content-length:{size}\nhost:{address.netloc}\n"
    request = f"PUT\n{address.path}\n{query}\n{headers}\ncontent-length;host\nUNSIGNED-PAYLOAD"
    digest = hashlib.sha256(request.encode()).hexdigest()
    signed = f"AWS4-HMAC-SHA256\n{fields['X-Amz-Date']}\n{'/'.join(scope)}\n{digest}"
    key = f"AWS4{secret}".encode()
    for part in (*scope, signed):
        key = hmac.digest(key, part.encode(), "sha256")
    return urlunsplit(address._replace(query=f"{query}&X-Amz-Signature={key.hex()}"))


def _is_plain_http(environ: Mapping[str, str]) -> bool:
    """Whether the endpoint is an `http:` address, as a bucket inside the operator's own network may have."""
    names = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
    return any(environ.get(name, "").startswith("http://") for name in names)
