"""Limits on requests: how large, how many at once, how slow. Real sockets, and clients that write what they like."""

import asyncio
import json
import resource
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import pytest
import uvicorn
from msgspec import structs

from turnkeep.api.http.problem_details import status_of
from turnkeep.http_server.sockets import SharedListener, raise_open_files
from turnkeep.http_server.uvicorn_server import (
    STATUSES,
    BoundedProtocol,
    ConnectionCounts,
    GracefulServer,
    RequestDeadline,
    RequestLimits,
    end_of_piece,
)
from turnkeep.streaming.connection import disconnected

DEADLINE = 60
LIMITS = RequestLimits()
PATIENT = RequestLimits(idle_seconds=DEADLINE, linger_seconds=DEADLINE)
HASTY = RequestLimits(
    head_seconds=0.3,
    body_seconds=0.3,
    body_bytes=1_000,
    grace_seconds=0.5,
    idle_seconds=DEADLINE,
    linger_seconds=DEADLINE,
)
LARGE = 50 << 20
"""Bytes of an answer, more than the buffers of sockets hold."""
LONG = 1.5
"""Longer than a hasty server waits, in seconds."""

GET = b"GET %s HTTP/1.1\r\nhost: test\r\n\r\n"
POST = b"POST %s HTTP/1.1\r\nhost: test\r\ncontent-length: %d\r\n\r\n"
CHUNKED = b"POST %s HTTP/1.1\r\nhost: test\r\ntransfer-encoding: chunked\r\n\r\n"


class ReplyingApp:
    """An ASGI app that answers with what it received, once the body is complete.

    `/later…` waits for `released` before it reads the body. `/stream…` begins its response, and ends it when `released`
    is set. `/early…` answers before the body has come.
    """

    def __init__(self) -> None:
        self.released = asyncio.Event()
        self.asked: list[str] = []
        self.left: list[str] = []
        self.most_waiting = 0
        self.port = 0
        self.server: uvicorn.Server | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        path = scope["path"]
        self.asked.append(path)
        self.most_waiting = max(self.most_waiting, *(len(each.pipeline) for each in self.connections))
        if path.startswith("/stream"):
            await self._stream(path, receive, send)
            return
        if path.startswith("/later"):
            await self.released.wait()
        body = 0
        while not path.startswith("/early"):
            message = await receive()
            if message["type"] == "http.disconnect":
                self.left.append(path)
                return
            body += len(message["body"])
            if not message["more_body"]:
                break
        fields = [name.decode() for name, _ in scope["headers"]]
        said = json.dumps({"path": path, "body": body, "fields": fields}).encode()
        if path == "/large":
            said = bytes(LARGE)
        start = {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(said))]}
        await send(start)
        await send({"type": "http.response.body", "body": said, "more_body": False})

    async def _stream(self, path: str, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"one ", "more_body": True})
        waits = [asyncio.ensure_future(self.released.wait()), asyncio.ensure_future(disconnected(receive))]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        if not self.released.is_set():
            self.left.append(path)
            return
        await send({"type": "http.response.body", "body": b"two", "more_body": False})

    @property
    def connections(self) -> list[Any]:
        assert self.server is not None
        return list(self.server.server_state.connections)


@asynccontextmanager
async def served_app(limits: RequestLimits = PATIENT) -> AsyncIterator[ReplyingApp]:
    app = ReplyingApp()
    protocol = type("Bounded", (BoundedProtocol,), {"limits": limits})
    listening = socket.create_server(("127.0.0.1", 0))
    app.port = listening.getsockname()[1]
    config = uvicorn.Config(app, http=protocol, lifespan="off", log_config=None, timeout_graceful_shutdown=1)
    app.server = uvicorn.Server(config)
    serving = asyncio.create_task(app.server.serve(sockets=[listening]))
    try:
        await until(lambda: app.server is not None and app.server.started)
        async with asyncio.timeout(DEADLINE):
            yield app
    finally:
        app.released.set()
        for connection in app.connections:
            connection.transport.abort()
        app.server.should_exit = True
        await serving
        listening.close()


class RawConnection:
    """One connection. It writes bytes as they are given, and reads one response after the other."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    @asynccontextmanager
    async def to(cls, port: int) -> AsyncIterator["RawConnection"]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            yield cls(reader, writer)
        finally:
            writer.transport.abort()

    async def write(self, *pieces: bytes) -> None:
        """Each of them alone. A server that has closed the connection is no error: what it said is in `answer`."""
        with suppress(ConnectionError):
            for piece in pieces:
                self._writer.write(piece)
                await self._writer.drain()
                for _ in range(3):  # the server shares the loop: it has read this one before the next is sent
                    await asyncio.sleep(0)

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of the next response."""
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in head[1:-2])}
        status = int(head[0].split()[1])
        if "content-length" in headers:
            return status, headers, await self._reader.readexactly(int(headers["content-length"]))
        body = b""
        while size := int(await self._reader.readuntil(b"\r\n"), 16):
            body += await self._reader.readexactly(size)
            await self._reader.readexactly(2)
        await self._reader.readexactly(2)
        return status, headers, body

    async def is_told_to_continue(self) -> bool:
        return await self._reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"

    async def said(self) -> Any:
        """The next answer of the app."""
        status, _, body = await self.answer()
        assert status == 200, body
        return json.loads(body)

    async def refusal(self) -> tuple[int, str]:
        """Status and code of the next response, which must be a problem and the last thing that is said."""
        status, headers, body = await self.answer()
        problem = json.loads(body)
        assert headers["content-type"] == "application/problem+json"
        assert headers["connection"] == "close"
        assert set(problem) == {"type", "title", "status", "detail", "code"}
        assert problem["type"] == f"urn:turnkeep:error:{problem['code']}"
        assert problem["status"] == status
        assert await self.rest() == b""
        return status, problem["code"]

    async def rest(self) -> bytes:
        """Everything until the server closes."""
        try:
            return await self._reader.read()
        except ConnectionError:
            return b""


async def until(is_so: Callable[[], object]) -> None:
    async with asyncio.timeout(DEADLINE):
        while not is_so():  # noqa: ASYNC110 - the server has no event for it
            await asyncio.sleep(0.005)


def a_head(*, size: int = 0, fields: int = 1, path: bytes = b"/") -> bytes:
    """A whole head of so many fields, the last of them as long as it takes to make so many bytes."""
    short = [b"x-%d: y" % number for number in range(fields - 1)]
    head = b"\r\n".join([b"GET %s HTTP/1.1" % path, *short, b"last: ", b"", b""])
    return head.replace(b"last: ", b"last: " + b"z" * max(0, size - len(head)))


TOO_LARGE = (431, "headers_too_large")
TOO_SLOW = (408, "request_timeout")


class TestALargeHead:
    async def test_one_of_exactly_the_limits_is_served(self) -> None:
        head = a_head(size=LIMITS.head_bytes, fields=LIMITS.fields)
        assert (len(head), head.count(b": ")) == (32_768, 100)
        async with served_app() as app, RawConnection.to(app.port) as connection:
            for _ in range(3):
                await connection.write(head)
                assert len((await connection.said())["fields"]) == 100

    async def test_one_that_is_cut_anywhere_is_served_as_well(self) -> None:
        head = a_head(size=LIMITS.head_bytes, fields=LIMITS.fields)
        async with served_app() as app, RawConnection.to(app.port) as connection:
            for cut in (1, 2, 16_384, *range(len(head) - 4, len(head))):
                await connection.write(head[:cut], head[cut:])
                assert len((await connection.said())["fields"]) == 100

    @pytest.mark.parametrize(
        "head",
        [
            a_head(fields=LIMITS.fields + 1),
            a_head(size=LIMITS.head_bytes + 1),
            a_head(path=b"/" + b"u" * LIMITS.head_bytes),
            b"GET / HTTP/1.1\r\npadded:" + b" " * LIMITS.head_bytes + b"x\r\n\r\n",
            b"\r\n" * (LIMITS.head_bytes // 2) + a_head(),
            b"GET / HTTP/1.1\r\n" + b"a:\r\n" * 5_000 + b"\r\n",
        ],
        ids=["fields", "bytes", "address", "padding", "blank lines", "many tiny fields"],
    )
    @pytest.mark.parametrize("packet", [1_000_000, 1_000], ids=["at once", "in packets"])
    async def test_one_over_a_limit_is_refused_and_its_connection_closed(self, head: bytes, packet: int) -> None:
        async with served_app() as app, RawConnection.to(app.port) as connection:
            await connection.write(*(head[start : start + packet] for start in range(0, len(head), packet)))
            assert await connection.refusal() == TOO_LARGE
            assert app.asked == []

    async def test_a_client_that_does_not_leave_is_cut(self) -> None:
        async with served_app(RequestLimits(linger_seconds=0.1)) as app, RawConnection.to(app.port) as connection:
            await connection.write(a_head(fields=LIMITS.fields + 1))
            assert await connection.refusal() == TOO_LARGE
            await until(lambda: not app.connections)

    async def test_one_that_never_ends_is_refused_at_the_limit_and_not_read_any_further(self) -> None:
        async with served_app() as app, RawConnection.to(app.port) as connection:
            await connection.write(*[b"GET / HTTP/1.1\r\nendless: "], *[b"x" * 64] * (LIMITS.head_bytes // 64))
            assert await connection.refusal() == TOO_LARGE

    async def test_a_client_that_writes_all_before_it_reads_gets_the_refusal(self) -> None:
        loop = asyncio.get_running_loop()
        async with served_app() as app:
            with socket.create_connection(("127.0.0.1", app.port)) as client:
                client.setblocking(False)
                await loop.sock_sendall(client, a_head(size=20_000_000))
                assert (await loop.sock_recv(client, 1_000)).startswith(b"HTTP/1.1 431 ")

    async def test_a_later_request_of_the_connection_has_the_same_limits(self) -> None:
        async with served_app() as app, RawConnection.to(app.port) as connection:
            for _ in range(3):
                await connection.write(a_head(size=LIMITS.head_bytes))
                await connection.said()
            await connection.write(POST % (b"/", 100_000) + b"x" * 100_000)
            assert (await connection.said())["body"] == 100_000
            await connection.write(a_head(size=LIMITS.head_bytes + 1))
            assert await connection.refusal() == TOO_LARGE

    async def test_the_servers_of_turnkeep_have_these_limits(self) -> None:
        async def leave() -> None:
            pass

        ready, listening = asyncio.Event(), socket.create_server(("127.0.0.1", 0))
        server = GracefulServer(ReplyingApp(), leave=leave, backlog=8, close_seconds=1, on_ready=ready.set)
        serving = asyncio.create_task(server.serve([listening]))
        await ready.wait()
        try:
            async with asyncio.timeout(DEADLINE), RawConnection.to(listening.getsockname()[1]) as connection:
                await connection.write(a_head(fields=LIMITS.fields + 1))
                assert await connection.refusal() == TOO_LARGE
        finally:
            server.stop()
            await serving
            listening.close()

    def test_the_statuses_are_those_of_the_api(self) -> None:
        assert {error: status_of(error) for error in STATUSES} == STATUSES


class TestManyConnections:
    async def test_one_address_has_half_of_them_and_further_ones_are_refused(self) -> None:
        counts = ConnectionCounts(total=16)
        assert counts.per_address == 8
        async with asyncio.timeout(DEADLINE), self.serving(counts) as port, AsyncExitStack() as stack:
            held = [await stack.enter_async_context(RawConnection.to(port)) for _ in range(8)]
            await held[-1].write(GET % b"/a")
            assert (await held[-1].said())["path"] == "/a"
            async with RawConnection.to(port) as another:
                assert await another.refusal() == (503, "unavailable")
            assert not counts.add("127.0.0.1")
            assert all(counts.add("10.0.0.1") for _ in range(8))
            assert not counts.add("10.0.0.2"), "the total is reached"

    async def test_a_connection_that_ended_makes_room(self) -> None:
        counts = ConnectionCounts(total=16, per_address=1)
        async with asyncio.timeout(DEADLINE), self.serving(counts) as port:
            for _ in range(5):
                async with RawConnection.to(port) as connection:
                    await connection.write(GET % b"/a")
                    assert (await connection.said())["path"] == "/a"
                await until(lambda: not counts._open)

    def test_the_process_may_open_as_many_files_as_it_can(self) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(1_024, soft), hard))
        try:
            assert raise_open_files() > 1_024
            assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == min(hard, 1 << 20)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    def test_there_are_no_more_than_files_that_it_may_open(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("turnkeep.http_server.uvicorn_server.raise_open_files", lambda: 1_000)
        assert ConnectionCounts(total=10_000).total == 1_000 - 256

    @asynccontextmanager
    async def serving(self, counts: ConnectionCounts) -> AsyncIterator[int]:
        async def leave() -> None:
            pass

        app, ready, listening = ReplyingApp(), asyncio.Event(), socket.create_server(("127.0.0.1", 0))
        app.server = server = GracefulServer(
            app, leave=leave, backlog=8, close_seconds=1, connections=counts, on_ready=ready.set
        )
        serving = asyncio.create_task(server.serve([listening]))
        await ready.wait()
        try:
            yield listening.getsockname()[1]
        finally:
            server.stop()
            await serving
            listening.close()


class TestAnAnswerThatNobodyReads:
    async def test_its_connection_is_cut(self) -> None:
        limits = structs.replace(PATIENT, write_seconds=0.3, write_bytes=1_000)
        async with served_app(limits) as app, RawConnection.to(app.port) as connection:
            await connection.write(GET % b"/large")
            await until(lambda: app.connections)
            await until(lambda: not app.connections)
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await connection.answer()

    async def test_a_slow_reader_gets_all_of_it(self) -> None:
        limits = structs.replace(PATIENT, write_seconds=0.2, write_bytes=1)
        async with served_app(limits) as app, RawConnection.to(app.port) as connection:
            await connection.write(GET % b"/large")
            _, _, body = await connection.answer()
            assert len(body) == LARGE


class TestSmallChunks:
    async def test_a_few_thousand_are_read_as_one_body(self) -> None:
        async with served_app() as app, RawConnection.to(app.port) as connection:
            await connection.write(CHUNKED % b"/a" + b"1\r\nx\r\n" * 4_000 + b"0\r\n\r\n" + GET % b"/b")
            assert (await connection.said())["body"] == 4_000
            assert (await connection.said())["path"] == "/b"

    async def test_very_many_are_refused(self) -> None:
        async with served_app() as app, RawConnection.to(app.port) as connection:
            await connection.write(CHUNKED % b"/a" + b"1\r\nx\r\n" * 5_000)
            assert await connection.refusal() == (400, "invalid_request")

    async def test_of_a_body_that_was_answered_only_a_part_is_read(self) -> None:
        limits = structs.replace(PATIENT, rest_bytes=1_000_000, linger_seconds=0.1)
        async with served_app(limits) as app, RawConnection.to(app.port) as connection:
            await connection.write(POST % (b"/early", 100_000_000))
            assert (await connection.said())["path"] == "/early"
            await connection.write(*[bytes(100_000)] * 20)
            await until(lambda: not app.connections)


class TestTrailers:
    async def test_a_few_are_read_and_do_not_become_headers(self) -> None:
        async with served_app() as app, RawConnection.to(app.port) as connection:
            await connection.write(CHUNKED % b"/" + b"2\r\nab\r\n0\r\nTurnkeep-User: eve\r\n\r\n" + GET % b"/next")
            assert await connection.said() == {"path": "/", "body": 2, "fields": ["host", "transfer-encoding"]}
            assert (await connection.said())["path"] == "/next"

    @pytest.mark.parametrize(
        "trailer",
        [b"".join(b"x-%d: y\r\n" % number for number in range(LIMITS.fields + 1)) + b"\r\n", b"x: " + b"y" * 70_000],
        ids=["many", "endless"],
    )
    async def test_too_many_are_refused_as_headers_are(self, trailer: bytes) -> None:
        async with served_app() as app, RawConnection.to(app.port) as connection:
            await connection.write(CHUNKED % b"/" + b"2\r\nab\r\n0\r\n", trailer)
            assert await connection.refusal() == TOO_LARGE
            await until(lambda: app.left == app.asked)

    async def test_chunk_extensions_are_limited_in_the_same_way(self) -> None:
        async with served_app() as app, RawConnection.to(app.port) as connection:
            await connection.write(CHUNKED % b"/" + b"2;", b"x" * 70_000)
            assert await connection.refusal() == TOO_LARGE


class TestWhatIsNotHttp:
    async def test_it_is_refused_with_a_problem(self) -> None:
        async with served_app() as app, RawConnection.to(app.port) as connection:
            await connection.write(b"EHLO there\r\n\r\n")
            assert await connection.refusal() == (400, "invalid_request")

    async def test_a_body_that_turns_into_nonsense_ends_its_request(self) -> None:
        async with served_app() as app, RawConnection.to(app.port) as connection:
            await connection.write(CHUNKED % b"/" + b"2\r\nab\r\n", b"nonsense\r\n")
            assert await connection.refusal() == (400, "invalid_request")
            await until(lambda: app.left == ["/"])

    async def test_a_request_for_a_websocket_is_an_ordinary_request(self) -> None:
        asks = b"GET /socket HTTP/1.1\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n"
        async with served_app() as app, RawConnection.to(app.port) as connection:
            await connection.write(asks + GET % b"/next")
            assert (await connection.said())["path"] == "/socket"
            assert (await connection.said())["path"] == "/next"

    @pytest.mark.parametrize("asked", [POST, CHUNKED], ids=["sized", "chunked"])
    async def test_a_request_with_a_body_that_asks_for_an_upgrade_is_refused_whole(self, asked: bytes) -> None:
        smuggled = GET % b"/smuggled"
        asks = asked.replace(b"host: test", b"connection: upgrade\r\nupgrade: h2c")
        asks %= (b"/", len(smuggled)) if asked is POST else b"/"
        async with served_app() as app, RawConnection.to(app.port) as connection:
            await connection.write(asks + smuggled, smuggled)
            assert await connection.refusal() == (400, "invalid_request")
            assert app.asked == []


class TestARefusalBehindAResponse:
    @pytest.mark.parametrize("bad", [a_head(fields=LIMITS.fields + 1), b"nonsense\r\n\r\n"], ids=["large", "nonsense"])
    async def test_the_response_is_completed_and_nothing_is_written_into_it(self, bad: bytes) -> None:
        async with served_app() as app, RawConnection.to(app.port) as connection:
            await connection.write(GET % b"/stream")
            await until(lambda: app.asked)
            await connection.write(bad)
            app.released.set()
            status, _, body = await connection.answer()
            assert (status, body) == (200, b"one two")
            assert await connection.rest() == b""

    async def test_all_earlier_requests_are_answered(self) -> None:
        async with served_app() as app, RawConnection.to(app.port) as connection:
            bad = a_head(size=LIMITS.head_bytes + 100)
            await connection.write(GET % b"/later/1" + GET % b"/later/2" + POST % (b"/later/3", 2) + b"ab" + bad)
            await until(lambda: app.asked)
            app.released.set()
            assert [(await connection.said())["path"] for _ in range(3)] == ["/later/1", "/later/2", "/later/3"]
            assert await connection.rest() == b""
            assert len(app.asked) == 3

    @pytest.mark.parametrize("waiting", [1, 2])
    async def test_a_request_that_waits_for_its_turn_is_dropped_when_its_own_body_is_bad(self, waiting: int) -> None:
        async with served_app() as app, RawConnection.to(app.port) as connection:
            await connection.write((GET % b"/later") * waiting + CHUNKED % b"/bad" + b"nonsense\r\n")
            await until(lambda: app.asked)
            app.released.set()
            for _ in range(waiting):
                await connection.said()
            assert await connection.rest() == b""
            assert app.asked == ["/later"] * waiting

    async def test_a_response_that_began_before_its_body_went_bad_is_cut(self) -> None:
        async with served_app() as app, RawConnection.to(app.port) as connection:
            await connection.write(CHUNKED % b"/stream")
            await until(lambda: app.asked)
            await connection.write(b"nonsense\r\n")
            assert (await connection.rest()).endswith(b"one \r\n")
            await until(lambda: app.left == ["/stream"])


class TestPipelining:
    async def test_a_few_requests_are_answered_in_order(self) -> None:
        async with served_app() as app, RawConnection.to(app.port) as connection:
            await connection.write(
                GET % b"/1" + POST % (b"/2", 3) + b"abc" + CHUNKED % b"/3" + b"1\r\na\r\n0\r\n\r\n" + GET % b"/4"
            )
            answers = [await connection.said() for _ in range(4)]
            assert [(each["path"], each["body"]) for each in answers] == [("/1", 0), ("/2", 3), ("/3", 1), ("/4", 0)]

    async def test_many_at_once_are_answered_in_order_and_only_a_handful_waits(self) -> None:
        paths = [f"/{number}" for number in range(500)]
        async with served_app() as app, RawConnection.to(app.port) as connection:
            many = b"".join(a_head(path=path.encode(), size=2_000) for path in paths)
            writing = asyncio.create_task(connection.write(many))
            assert [(await connection.said())["path"] for _ in paths] == paths
            await writing
            assert app.most_waiting == LIMITS.pipelined

    @pytest.mark.parametrize("packet", [1, 2, 3, 5, 36])
    async def test_it_does_not_matter_where_packets_cut_them(self, packet: int) -> None:
        sent = (GET % b"/") * 40
        async with served_app() as app, RawConnection.to(app.port) as connection:
            await connection.write(*(sent[start : start + packet] for start in range(0, len(sent), packet)))
            assert [(await connection.said())["path"] for _ in range(40)] == ["/"] * 40
            assert app.most_waiting <= LIMITS.pipelined + 1

    async def test_nothing_more_is_read_while_a_handful_waits_whatever_the_app_does(self) -> None:
        async with served_app() as app, RawConnection.to(app.port) as connection:
            # The stream listens all the time for its client, and thereby asks uvicorn to read on.
            flood = asyncio.create_task(connection.write(GET % b"/stream", *[(GET % b"/") * 2_000] * 200))
            await until(lambda: app.connections and app.connections[0].flow.is_held)
            (protocol,) = app.connections
            protocol.flow.resume_reading()
            assert not protocol.transport.is_reading()
            await asyncio.sleep(0.2)
            assert not protocol.transport.is_reading()
            assert len(protocol.pipeline) == LIMITS.pipelined
            flood.cancel()

    async def test_a_packet_that_comes_all_the_same_is_kept_in_its_place(self) -> None:
        async with served_app() as app, RawConnection.to(app.port) as connection:
            await connection.write((GET % b"/later") * 20)
            await until(lambda: app.connections and app.connections[0].flow.is_held)
            app.connections[0].data_received(GET % b"/last")
            app.released.set()
            assert [(await connection.said())["path"] for _ in range(21)] == ["/later"] * 20 + ["/last"]

    async def test_a_flood_behind_a_body_ends_with_what_waited(self) -> None:
        async with served_app() as app, RawConnection.to(app.port) as connection:
            await connection.write(CHUNKED % b"/first" + b"0\r\n\r\n" + (GET % b"/") * 500)
            assert (await connection.said())["path"] == "/first"
            assert (await connection.rest()).count(b"HTTP/1.1 200") == len(app.asked) - 1 == 2 * LIMITS.pipelined

    async def test_the_request_that_runs_hears_that_its_client_left_though_others_wait(self) -> None:
        async with served_app() as app:
            async with RawConnection.to(app.port) as connection:
                await connection.write(GET % b"/stream" + GET % b"/next")
                await until(lambda: app.connections and app.connections[0].pipeline)
                app.connections[0].flow.resume_reading()  # it would find out when it writes, which it does not
            await until(lambda: app.left == ["/stream"])


class TestASlowHead:
    async def test_a_connection_that_says_nothing_is_closed_without_a_word(self) -> None:
        async with served_app(HASTY) as app, RawConnection.to(app.port) as connection:
            assert await connection.rest() == b""

    async def test_a_head_that_is_not_finished_in_time_is_refused(self) -> None:
        async with served_app(HASTY) as app, RawConnection.to(app.port) as connection:
            await connection.write(b"GET / HTTP/1.1\r\nhost: te")
            assert await connection.refusal() == TOO_SLOW

    async def test_it_is_no_help_to_send_a_byte_now_and_then(self) -> None:
        async with served_app(HASTY) as app, RawConnection.to(app.port) as connection:
            await connection.write(b"GET / HTTP/1.1\r\nendless: ")
            trickling = asyncio.create_task(trickle(connection, b"x"))
            assert await connection.refusal() == TOO_SLOW
            trickling.cancel()

    async def test_it_is_not_late_if_the_server_stood_still_meanwhile(self) -> None:
        async with served_app(HASTY) as app, RawConnection.to(app.port) as connection:
            await connection.write(b"GET / HTTP/1.1\r\n")
            await until(lambda: app.connections)
            time.sleep(LONG)
            await asyncio.sleep(0.01)
            await connection.write(b"\r\n")
            assert (await connection.said())["path"] == "/"

    @pytest.mark.parametrize("begun", [b"G", b"\r\n"])
    async def test_the_second_request_of_a_connection_has_no_longer(self, begun: bytes) -> None:
        async with served_app(HASTY) as app, RawConnection.to(app.port) as connection:
            await connection.write(GET % b"/")
            await connection.said()
            await connection.write(begun)
            assert await connection.refusal() == TOO_SLOW

    async def test_the_time_counts_from_its_first_byte(self) -> None:
        limits = RequestLimits(head_seconds=2.0, idle_seconds=DEADLINE)
        async with served_app(limits) as app, RawConnection.to(app.port) as connection:
            for _ in range(3):
                await asyncio.sleep(1.0)
                await connection.write(b"GET / HTT", b"P/1.1\r\n\r\n")
                await connection.said()


class TestIdleConnections:
    async def test_one_is_closed_without_a_word_after_its_time(self) -> None:
        async with served_app(RequestLimits(idle_seconds=1)) as app, RawConnection.to(app.port) as connection:
            await connection.write(GET % b"/")
            await connection.said()
            assert await connection.rest() == b""

    async def test_until_then_it_can_be_used_again(self) -> None:
        async with served_app(HASTY) as app, RawConnection.to(app.port) as connection:
            for _ in range(3):
                await connection.write(POST % (b"/", 2) + b"ab")
                assert (await connection.said())["body"] == 2
                await asyncio.sleep(LONG)
            assert len(app.connections) == 1

    async def test_a_longer_request_after_it_is_not_cut(self) -> None:
        async with served_app(RequestLimits(idle_seconds=1)) as app, RawConnection.to(app.port) as connection:
            await connection.write(GET % b"/")
            await connection.said()
            await connection.write(GET % b"/later")
            await asyncio.sleep(LONG)
            app.released.set()
            assert (await connection.said())["path"] == "/later"


class TestASlowBody:
    async def test_one_that_stops_coming_is_refused_and_the_app_hears_of_it(self) -> None:
        async with served_app(HASTY) as app, RawConnection.to(app.port) as connection:
            await connection.write(POST % (b"/", 100_000) + b"x" * 50_000)
            assert await connection.refusal() == TOO_SLOW
            await until(lambda: app.left == ["/"])

    async def test_one_that_comes_byte_by_byte_is_refused(self) -> None:
        async with served_app(HASTY) as app, RawConnection.to(app.port) as connection:
            await connection.write(POST % (b"/", 100_000))
            trickling = asyncio.create_task(trickle(connection, b"x"))
            assert await connection.refusal() == TOO_SLOW
            trickling.cancel()

    async def test_what_is_not_body_is_no_progress(self) -> None:
        async with served_app(HASTY) as app, RawConnection.to(app.port) as connection:
            await connection.write(CHUNKED % b"/" + b"2;")
            trickling = asyncio.create_task(trickle(connection, b"x" * 100))
            assert await connection.refusal() == TOO_SLOW
            trickling.cancel()

    async def test_one_that_is_slow_but_comes_is_served(self) -> None:
        limits = RequestLimits(head_seconds=0.5, body_seconds=1.5, body_bytes=10)
        async with served_app(limits) as app, RawConnection.to(app.port) as connection:
            await connection.write(POST % (b"/", 400))
            for _ in range(40):
                await connection.write(b"x" * 10)
                await asyncio.sleep(0.1)
            assert (await connection.said())["body"] == 400

    async def test_the_time_does_not_count_while_the_server_does_not_read(self) -> None:
        async with served_app(HASTY) as app, RawConnection.to(app.port) as connection:
            writing = asyncio.create_task(connection.write(POST % (b"/later", 8_000_000), b"x" * 8_000_000))
            await until(lambda: app.connections and app.connections[0].flow.read_paused)
            await asyncio.sleep(LONG)
            app.released.set()
            assert (await connection.said())["body"] == 8_000_000
            await writing

    async def test_nor_while_the_client_waits_to_be_told_to_send_it(self) -> None:
        async with served_app(HASTY) as app, RawConnection.to(app.port) as connection:
            await connection.write(POST.replace(b"host: test", b"expect: 100-continue") % (b"/later", 2))
            await asyncio.sleep(LONG)
            app.released.set()
            assert await connection.is_told_to_continue()
            await connection.write(b"ab")
            assert (await connection.said())["body"] == 2

    async def test_nor_while_earlier_requests_are_answered(self) -> None:
        async with served_app(HASTY) as app, RawConnection.to(app.port) as connection:
            await connection.write(GET % b"/stream" + POST % (b"/next", 2) + b"a")
            await asyncio.sleep(LONG)
            app.released.set()
            assert (await connection.answer())[2] == b"one two"
            await connection.write(b"b")
            assert (await connection.said())["path"] == "/next"

    async def test_the_rest_of_a_body_that_was_answered_early_does_not_come_for_ever(self) -> None:
        async with served_app(HASTY) as app, RawConnection.to(app.port) as connection:
            await connection.write(POST % (b"/early", 100_000_000))
            await connection.said()
            trickling = asyncio.create_task(trickle(connection, b"x" * 1_000))
            assert await connection.rest() == b""
            trickling.cancel()

    async def test_after_the_end_of_such_a_body_the_connection_is_idle(self) -> None:
        async with served_app(RequestLimits(idle_seconds=1)) as app, RawConnection.to(app.port) as connection:
            await connection.write(POST % (b"/early", 4) + b"ab")
            await connection.said()
            await connection.write(b"cd")
            assert await connection.rest() == b""

    async def test_and_takes_the_next_request(self) -> None:
        async with served_app() as app, RawConnection.to(app.port) as connection:
            await connection.write(POST % (b"/early", 4) + b"ab")
            await connection.said()
            await connection.write(b"cd", GET % b"/next")
            assert (await connection.said())["path"] == "/next"


class TestASilentClient:
    """It has said all, and waits. No time limit is on that."""

    async def test_its_stream_lives_as_long_as_there_is_something_to_come(self) -> None:
        async with served_app(HASTY) as app, RawConnection.to(app.port) as connection:
            await connection.write(POST % (b"/stream", 2) + b"ab")
            await asyncio.sleep(LONG)
            assert app.left == []
            app.released.set()
            assert (await connection.answer())[2] == b"one two"

    async def test_so_does_a_request_that_takes_long_to_answer(self) -> None:
        async with served_app(HASTY) as app, RawConnection.to(app.port) as connection:
            await connection.write(GET % b"/later")
            await asyncio.sleep(LONG)
            app.released.set()
            assert (await connection.said())["path"] == "/later"

    async def test_its_stream_lives_though_it_never_finished_its_request(self) -> None:
        async with served_app(HASTY) as app, RawConnection.to(app.port) as connection:
            await connection.write(CHUNKED % b"/stream" + b"2\r\nab")
            await asyncio.sleep(LONG)
            assert app.left == []
            app.released.set()
            assert (await connection.answer())[2] == b"one two"

    @pytest.mark.parametrize("asked", [GET % b"/stream", POST % (b"/stream", 2) + b"ab"], ids=["head", "body"])
    async def test_a_stream_is_not_cut_by_the_next_request_that_was_only_begun(self, asked: bytes) -> None:
        async with served_app(HASTY) as app, RawConnection.to(app.port) as connection:
            await connection.write(asked + b"GET /next HTT")
            await asyncio.sleep(LONG)
            app.released.set()
            assert (await connection.answer())[2] == b"one two"
            assert await connection.refusal() == TOO_SLOW


async def trickle(connection: RawConnection, piece: bytes) -> None:
    while True:
        await connection.write(piece)
        await asyncio.sleep(0.05)


class TestRequestDeadline:
    limits = RequestLimits(head_seconds=10, body_seconds=20, body_bytes=100)

    def test_nothing_is_owed_for_ever(self) -> None:
        assert RequestDeadline(self.limits).left(1e9) > 1e9

    def test_the_time_of_a_head_is_not_longer_when_asked_again(self) -> None:
        deadline = RequestDeadline(self.limits)
        deadline.expect("head", 100.0)
        deadline.expect("head", 109.0)
        assert (deadline.left(109.0), deadline.left(110.0)) == (1.0, 0.0)

    def test_a_body_has_a_new_time_for_as_long_as_enough_of_it_comes(self) -> None:
        deadline = RequestDeadline(self.limits)
        deadline.expect("body", 100.0)
        for second in range(100, 1_000):
            deadline.received += 5
            assert deadline.left(float(second)) > 0
        assert next(second for second in range(1_000, 1_100) if deadline.left(float(second)) <= 0) <= 1_020

    def test_what_came_in_one_window_does_not_count_for_the_next(self) -> None:
        deadline = RequestDeadline(self.limits)
        deadline.expect("body", 100.0)
        deadline.received += 1_000_000
        assert deadline.left(120.0) == 20
        deadline.received += 99
        assert deadline.left(140.0) <= 0

    def test_whatever_comes_does_not_lengthen_the_time_of_the_rest(self) -> None:
        deadline = RequestDeadline(self.limits)
        deadline.expect("rest", 100.0)
        deadline.received += 1_000_000
        assert deadline.left(120.0) <= 0

    def test_an_interruption_starts_it_anew(self) -> None:
        deadline = RequestDeadline(self.limits)
        deadline.expect("body", 100.0)
        deadline.expect("nothing", 119.0)
        deadline.expect("body", 500.0)
        assert deadline.left(501.0) == 19


class TestPieces:
    def test_one_ends_with_its_head_with_the_room_or_with_the_data(self) -> None:
        data = b"GET / HTTP/1.1\r\n\r\nGET /"
        assert end_of_piece(data, 0, 100, is_head=True) == 18
        assert end_of_piece(data, 18, 100, is_head=True) == len(data)
        assert end_of_piece(data, 0, 10, is_head=True) == 10
        assert end_of_piece(data, 0, 100, is_head=False) == len(data)


class TestWorkersThatShareASocket:
    async def test_take_connections_in_turn(self) -> None:
        taken: list[str] = []

        def make(name: str) -> Callable[[], asyncio.Protocol]:
            class Taking(asyncio.Protocol):
                def connection_made(self, transport: asyncio.BaseTransport) -> None:
                    taken.append(name)
                    transport.close()

            return Taking

        with socket.create_server(("127.0.0.1", 0), backlog=100) as listening, listening.dup() as other:
            clients = [socket.create_connection(listening.getsockname()) for _ in range(40)]
            listening.setblocking(False)
            listeners = [SharedListener(each, make(name)) for name, each in (("a", listening), ("b", other))]
            async with asyncio.timeout(DEADLINE):
                while len(taken) < 40:  # noqa: ASYNC110 - the system has no event for it
                    await asyncio.sleep(0.01)
            for listener in listeners:
                listener.close()
            for client in clients:
                client.close()
        assert min(taken.count("a"), taken.count("b")) >= 10

    async def test_accept_nothing_after_they_were_closed(self) -> None:
        taken: list[asyncio.BaseTransport] = []

        class Taking(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                taken.append(transport)

        with socket.create_server(("127.0.0.1", 0)) as listening:
            listening.setblocking(False)
            listener = SharedListener(listening, Taking)
            with socket.create_connection(listening.getsockname()):
                async with asyncio.timeout(DEADLINE):
                    while not taken:  # noqa: ASYNC110 - the same
                        await asyncio.sleep(0.01)
            listener.close()
            with socket.create_connection(listening.getsockname()):
                await asyncio.sleep(0.05)
            assert len(taken) == 1
            taken[0].close()
