"""The ways to an MCP server: a program that this server starts, or an HTTP address through the guarded client."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from types import TracebackType
from typing import Any, Self

import httpx2
from mcp import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client

from turnkeep.tools.addresses import AddressGuard
from turnkeep.tools.last_words import LastWords
from turnkeep.tools.network import open_client

CONNECT_SECONDS = 10.0
READ_SECONDS = 3_600.0
MAX_ANSWER_BYTES = 8 * 1024 * 1024

Transport = AbstractAsyncContextManager[Any]
OpenTransport = Callable[[], Transport]


def over_http(url: str, headers: Mapping[str, str], guard: AddressGuard) -> OpenTransport:
    """Streamable HTTP through the guarded client: it resolves, pins, and follows no redirect to another origin."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[Any]:
        timeout = httpx2.Timeout(READ_SECONDS, connect=CONNECT_SECONDS, pool=CONNECT_SECONDS)
        async with AsyncExitStack() as stack:
            client = open_client(guard, headers=headers, timeout=timeout, max_bytes=MAX_ANSWER_BYTES)
            await stack.enter_async_context(client)
            yield await stack.enter_async_context(streamable_http_client(str(guard.check_url(url)), http_client=client))

    return opened


def over_stdio(command: str, args: list[str], env: Mapping[str, str], words: LastWords) -> OpenTransport:
    """A program. Of this server's environment it gets PATH, HOME and a few others, and then what `env` says."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[Any]:
        parameters = StdioServerParameters(command=command, args=args, env=dict(env))
        with words.listening() as errors:
            async with stdio_client(parameters, errlog=errors) as streams:
                words.spawned()
                yield streams

    return opened


class Watched:
    """A transport that tells when the other side has ended: the SDK itself only tells those who then call."""

    def __init__(self, transport: Transport, *, on_end: Callable[[], None]) -> None:
        self._transport = transport
        self._on_end = on_end

    async def __aenter__(self) -> Any:
        read, write = await self._transport.__aenter__()
        return _WatchedStream(read, self._on_end), write

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        return await self._transport.__aexit__(kind, error, traceback)


class _WatchedStream:
    def __init__(self, stream: Any, on_end: Callable[[], None]) -> None:
        self._stream = stream
        self._on_end = on_end

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        return await self._stream.__anext__()

    async def __aenter__(self) -> Self:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> Any:
        self._on_end()
        return await self._stream.__aexit__(*error)
