"""Streams: hub → follow → native SSE on uvicorn (uvloop, httptools), beside a bare ASGI app with the same bytes.

Both serve the same words to the same client over loopback, one word at a time: in each turn of the loop every stream
gets one. The bare app takes ready bytes from a queue and sends them; ours is handed the words, as the engine hands them
over. A server is a process of its own and is measured alone on its core by its CPU time (events per CPU second, which
other work on the machine does not blur) and by the clock. Rounds alternate; medians are reported.

The streams of OpenAI's API are measured beside the native one in the same way.

Also: the memory of an idle open stream, from the growth of the server's resident size, and the time from a provider's
first word to its arrival at a client.

    python -m bench.streaming
"""

import asyncio
import gc
import multiprocessing
import os
import selectors
import socket
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

import psutil
import uvicorn
import uvloop

from bench.harness import target
from turnkeep.api.openai.completions import ChatSegment
from turnkeep.api.openai.response_events import ResponseSegment
from turnkeep.api.openai.segments import Segment
from turnkeep.http_server.uvicorn_server import BoundedProtocol
from turnkeep.ids import ConversationId, MessageId, TurnId, WorkspaceId
from turnkeep.model.agents import Snapshot
from turnkeep.model.turns import Turn
from turnkeep.streaming.connection import OpenStreams
from turnkeep.streaming.follow import follow
from turnkeep.streaming.formats import Encoder, NativeEncoder
from turnkeep.streaming.hub import LocalHub, PreviewText
from turnkeep.streaming.ports import PreviewPiece
from turnkeep_client.wire.blocks import Usage
from turnkeep_client.wire.events import Failure, Recorded, TurnBegan

Row = dict[str, Any]

WORDS = ("The ", "quick ", "brown ", "fox ", "jumps ")
READERS = 2_000
packages = ("uvicorn", "uvloop", "httptools", "msgspec")


def run(*, quick: bool = False) -> list[Row]:
    """Figures for 1 and 100 streams, memory, first word; and the targets."""
    rounds, events = (3, 20_000) if quick else (9, 60_000)
    rows: list[Row] = []
    ratios = {}
    for streams in (1, 100):
        rates = _race(streams, events // streams, rounds)
        ratios[streams] = statistics.median(ours[0] / bare[0] for ours, bare in zip(*rates.values(), strict=True))
        for contender, role in (("bare ASGI", "limit"), ("Turnkeep", "ours")):
            rows.append(_figures(streams, contender, role, rates[contender], ratios[streams]))
    wires = {}
    for streams in (1, 100):
        rates = _race(streams, events // streams, rounds, {"native": OurSite, **WIRES})
        for name in WIRES:
            pairs = zip(rates["native"], rates[name], strict=True)
            wires[name, streams] = statistics.median(native[0] / wire[0] for native, wire in pairs)
            rows.append(_figures(streams, name, "ours", rates[name], 1 / wires[name, streams]))
    memory = _in_process(_measure_memory, READERS)
    first = _in_process(_measure_first_word, 30 if quick else 200)
    return [
        *rows,
        {
            "figure": f"memory of one of {READERS:,} idle streams",
            "contender": "Turnkeep",
            "role": "ours",
            "KiB": memory,
        },
        {"figure": "first word, hub to client", "contender": "Turnkeep", "role": "ours", "median_us": first * 1e6},
        *(
            target(
                f"events/s against a bare ASGI app, {streams} stream{'s' * (streams > 1)}", ratio, 0.6, at_least=True
            )
            for streams, ratio in ratios.items()
        ),
        *(
            target(f"CPU per token of {name} against native, {streams} stream{'s' * (streams > 1)}", ratio, 1.3)
            for (name, streams), ratio in wires.items()
        ),
        target("memory per idle open stream", memory, 48, unit="KiB"),
        target("first preview after the first token", first * 1e3, 3, unit="ms"),
    ]


def main() -> int:
    for row in run(quick="--quick" in sys.argv):
        print("  ".join(f"{key}={value}" for key, value in row.items()))
    return 0


Rates = list[tuple[float, float]]
"""Events per CPU second and per second, for each round."""


def _race(
    streams: int, count: int, rounds: int, contenders: "dict[str, Callable[[int, int], Site]] | None" = None
) -> dict[str, Rates]:
    contenders = contenders or {"Turnkeep": OurSite, "bare ASGI": BareSite}
    rates: dict[str, Rates] = {name: [] for name in contenders}
    for number in range(rounds):
        order = list(contenders) if number % 2 else list(reversed(contenders))
        for name in order:
            rates[name].append(_in_process(_measure_rate, contenders[name], streams, count))
    return rates


def _figures(streams: int, contender: str, role: str, rates: Rates, ratio: float) -> Row:
    row: Row = {
        "figure": f"events, {streams} stream{'s' * (streams > 1)}",
        "contender": contender,
        "role": role,
        "events_per_cpu_second": round(statistics.median(rate[0] for rate in rates)),
        "events_per_second": round(statistics.median(rate[1] for rate in rates)),
    }
    return {**row, "ratio_of_rates": round(ratio, 2)} if role == "ours" else row


# Servers, each in a process of its own


def _in_process(work: Callable[..., Any], *arguments: Any) -> Any:
    context = multiprocessing.get_context("spawn")
    parent, child = context.Pipe()
    process = context.Process(target=_report, args=(child, work, arguments))
    process.start()
    child.close()
    try:
        return parent.recv()
    finally:
        process.join(30)


def _report(parent: Connection, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    parent.send(work(*arguments))


class Site:
    """An ASGI app with one stream per path, and a speaker that feeds all of them."""

    def __init__(self, streams: int, count: int) -> None:
        self.streams = streams
        self.count = count
        self.paths: list[str] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        raise NotImplementedError

    async def speak(self) -> None:
        """One word to every stream in each turn of the loop, then the end."""
        raise NotImplementedError


class OurSite(Site):
    http: Any = BoundedProtocol

    def __init__(self, streams: int, count: int) -> None:
        super().__init__(streams, count)
        self.events: dict[str, list[Recorded]] = {}
        self.hub = LocalHub()
        self._open = OpenStreams()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        turn_id = TurnId(scope["path"])
        self.events.setdefault(turn_id, [_began(turn_id)])
        self.paths.append(turn_id)
        source = _Source(self.events)
        stream = self._open.respond(lambda take: follow(source, self.hub, turn_id, take=take), self.encoder(turn_id))
        await stream(scope, receive, send)

    def encoder(self, turn_id: TurnId) -> Encoder:
        return NativeEncoder()

    async def speak(self) -> None:
        turns = [TurnId(path) for path in self.paths]
        offset = 0
        for number in range(self.count):
            word = WORDS[number % len(WORDS)]
            for turn_id in turns:
                self.hub.preview(_piece(turn_id, offset, word))
            offset += len(word)
            await asyncio.sleep(0)
        for turn_id in turns:
            self.end(turn_id)

    def end(self, turn_id: TurnId) -> None:
        ended = Recorded(seq=2, event=Failure(code="cancelled", message="Stopped."))
        self.events[turn_id].append(ended)
        self.hub.publish(turn_id, [ended])


class ResponsesSite(OurSite):
    def encoder(self, turn_id: TurnId) -> Encoder:
        return ResponseSegment(_turn(turn_id), Segment(index=0, after=0))


class ChatSite(OurSite):
    def encoder(self, turn_id: TurnId) -> Encoder:
        return ChatSegment(_turn(turn_id), model="demo", index=0)


WIRES: dict[str, Callable[[int, int], Site]] = {"OpenAI Responses": ResponsesSite, "OpenAI chat": ChatSite}


def _turn(turn_id: TurnId) -> Turn:
    return Turn(
        id=turn_id,
        conversation_id=ConversationId("conv"),
        workspace_id=WorkspaceId("ws"),
        user_id=None,
        parent_turn_id=None,
        ordinal=1,
        active=True,
        status="running",
        attempt=1,
        failures=0,
        last_seq=1,
        cancel_requested_at=None,
        background=False,
        source="api",
        model="demo",
        snapshot=Snapshot(),
        usage=Usage(),
        month="2026-11",
        error=None,
        metadata={},
        created_at=1_700_000_000_000,
        started_at=None,
        settled_at=None,
    )


class _Source:
    def __init__(self, events: dict[str, list[Recorded]]) -> None:
        self._events = events

    async def events(self, turn_id: TurnId, *, after: int = 0, limit: int = 1_000) -> list[Recorded]:
        return self._events[turn_id][after : after + limit]

    async def last_seqs(self, turn_ids: Sequence[TurnId]) -> dict[TurnId, int]:
        return {turn_id: len(self._events[turn_id]) for turn_id in turn_ids}


class BareSite(Site):
    http: Any = "httptools"

    def __init__(self, streams: int, count: int) -> None:
        super().__init__(streams, count)
        self._queues: list[asyncio.Queue[bytes | None]] = []
        self._frames = _ready_frames(count)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._queues.append(queue)
        self.paths.append(scope["path"])
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        while (body := await queue.get()) is not None:
            await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def speak(self) -> None:
        for frame in self._frames:
            for queue in self._queues:
                queue.put_nowait(frame)
            await asyncio.sleep(0)
        for queue in self._queues:
            queue.put_nowait(None)


def _ready_frames(count: int) -> list[bytes]:
    preview, encoder, frames, offset = PreviewText(attempt=1, base=1), NativeEncoder(), [], 0
    for number in range(count):
        word = WORDS[number % len(WORDS)]
        preview.add(offset, 1, "text", word)
        frames.append(encoder.encode(preview.after(offset)[0]))
        offset += len(word)
    return frames


def _began(turn_id: TurnId) -> Recorded:
    event = TurnBegan(
        turn_id=turn_id,
        conversation_id=ConversationId("conv"),
        user_message_id=MessageId("msg"),
        status="running",
        attempt=1,
    )
    return Recorded(seq=1, event=event)


def _piece(turn_id: TurnId, offset: int, text: str) -> PreviewPiece:
    return PreviewPiece(turn_id=turn_id, attempt=1, base_seq=1, offset=offset, iteration=1, kind="text", text=text)


# Measuring


def _measure_rate(make: Callable[[int, int], Site], streams: int, count: int) -> tuple[float, float]:
    return uvloop.run(_rate(make(streams, count)))


async def _rate(site: Site) -> tuple[float, float]:
    client = multiprocessing.get_context("fork")
    listening = _listen()
    process = client.Process(target=_drink, args=(listening.getsockname()[1], site.streams))
    process.start()
    server, serving = _serve(site, listening)
    while len(site.paths) < site.streams:  # noqa: ASYNC110 - the client decides when
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
    gc.collect()
    gc.freeze()
    wall, cpu = time.perf_counter(), time.process_time()
    await site.speak()
    while server.server_state.tasks:  # noqa: ASYNC110 - uvicorn has only a set
        await asyncio.sleep(0.001)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    server.should_exit = True
    await serving
    process.join()
    events = site.streams * site.count
    return events / cpu, events / wall


def _measure_memory(readers: int) -> float:
    return uvloop.run(_memory(readers))


async def _memory(readers: int) -> float:
    """KiB of resident memory that each of many idle streams adds, each at a turn of its own."""
    site, listening = OurSite(readers, 0), _listen()
    server, serving = _serve(site, listening)
    clients: list[socket.socket] = []

    async def open_until(count: int) -> int:
        while len(clients) < count:
            clients.append(_connect(listening.getsockname()[1], len(clients)))
            if len(clients) % 50 == 0:
                await asyncio.sleep(0.01)
        while len(site.paths) < count:  # noqa: ASYNC110 - the sockets decide when
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)
        gc.collect()
        return psutil.Process().memory_info().rss

    before = await open_until(100)
    after = await open_until(100 + readers)
    for path in site.paths:
        site.end(TurnId(path))
    for client in clients:
        client.close()
    server.should_exit = True
    await serving
    return round((after - before) / readers / 1024, 1)


def _measure_first_word(rounds: int) -> float:
    return uvloop.run(_first_word(rounds))


async def _first_word(rounds: int) -> float:
    """Seconds from `preview` to the client's bytes, the first word of each turn."""
    site, listening = OurSite(1, 0), _listen()
    server, serving = _serve(site, listening)
    seconds = []
    for number in range(rounds):
        reader, writer = await asyncio.open_connection("127.0.0.1", listening.getsockname()[1])
        writer.write(b"GET /turn%d HTTP/1.1\r\nHost: bench\r\n\r\n" % number)
        await reader.readuntil(b"event: turn\n")
        await reader.readuntil(b"\n\n\r\n")
        began = time.perf_counter()
        site.hub.preview(_piece(TurnId(f"/turn{number}"), 0, "Hello"))
        arrived = await reader.readuntil(b"\n\n")
        seconds.append(time.perf_counter() - began)
        assert b"Hello" in arrived
        site.end(TurnId(f"/turn{number}"))
        writer.close()
    server.should_exit = True
    await serving
    return statistics.median(seconds)


def _listen() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0), backlog=4_096)


def _serve(site: Any, listening: socket.socket) -> tuple[uvicorn.Server, asyncio.Task[None]]:
    config = uvicorn.Config(site, http=site.http, log_config=None, lifespan="off", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    return server, asyncio.create_task(server.serve(sockets=[listening]))


def _connect(port: int, number: int) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", port))
    client.sendall(b"GET /turn%d HTTP/1.1\r\nHost: bench\r\n\r\n" % number)
    return client


def _drink(port: int, streams: int) -> None:
    """Read all streams to their ends."""
    waiting = selectors.DefaultSelector()
    for number in range(streams):
        client = _connect(port, number)
        client.setblocking(False)
        waiting.register(client, selectors.EVENT_READ)
    while waiting.get_map():
        for key, _ in waiting.select():
            sock: Any = key.fileobj
            body = sock.recv(65_536)
            if not body or body.endswith(b"0\r\n\r\n"):
                waiting.unregister(sock)
                sock.close()
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
