"""The client of the bench: many turns over raw sockets, each delta timed and checked.

`python -m bench.e2e.client` reads one `Job` as JSON from its standard input and prints one `Report` as JSON. It is a
process of its own, so that its processor time is not counted with the server's.
"""

import asyncio
import gc
import resource
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, cast

import msgspec
import uvloop

from bench.e2e.dialects import DIALECTS, Dialect, Failed
from bench.e2e.provider import answer, question, read_stamps


class Job(msgspec.Struct, kw_only=True):
    """`clients` ask one turn after the other until `turns` are asked."""

    port: int
    dialect: str
    clients: int
    turns: int
    tokens: int
    per_second: float = 0
    conversations: Sequence[str] = ()
    """Turn n continues conversation n, modulo their number. If there are none, every turn makes a new one."""
    start_seconds: float = 0
    """The clients begin one after the other within this time."""
    patience_seconds: float = 120
    followers: int = 0
    """More readers of the first turn, who come when it has begun."""


class Report(msgspec.Struct, kw_only=True):
    """What the clients saw. `lags_ms` is from the moment when the provider sent a token to its arrival."""

    succeeded: int
    refused: dict[str, int]
    wrong: int
    problem: str
    """The first thing that went wrong, in the server's words if it said something."""
    seconds: float
    """From the first request to the last end."""
    longest_seconds: float
    """Of one turn, from its request to its end."""
    deltas: int
    first_ms: float | None = None
    """From the request to the first delta, the median."""
    first_lag_ms: float | None = None
    lag_p50_ms: float | None = None
    lag_p99_ms: float | None = None


class Refused(Exception):
    """The server answered with another status than 200."""


class _Turn:
    """One answer as it arrives."""

    def __init__(self, dialect: Dialect) -> None:
        self._read = dialect.read
        self._rest = b""
        self.pieces: list[tuple[float, str]] = []
        self.whole: str | None = None
        self.frames = 0
        self.asked = time.monotonic()
        self.first = asyncio.get_running_loop().create_future()
        self.head = b""

    def feed(self, data: bytes) -> None:
        now = time.monotonic()
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n")
        *frames, self._rest = (self._rest + data).split(b"\n\n")
        if not self.head and frames:
            self.head = frames[0]
        for frame in frames:
            piece = self._read(frame)
            if piece is None:
                continue
            if piece.is_whole:
                self.whole = piece.text
            else:
                self.frames += 1
                self.pieces.append((now, piece.text))
                if not self.first.done():
                    self.first.set_result(None)

    @property
    def text(self) -> str:
        return "".join(text for _, text in self.pieces)

    def check(self, tokens: int, *, is_paced: bool) -> None:
        """Raises ValueError unless the deltas are the answer, and equal the whole one at the end."""
        text = self.text
        if self.whole is not None and self.whole != text:
            same = next((n for n, (a, b) in enumerate(zip(text, self.whole, strict=False)) if a != b), len(text))
            raise ValueError(
                f"the deltas ({len(text)} characters) differ from the result ({len(self.whole)}) at {same}: "
                f"{text[same : same + 40]!r}, {self.whole[same : same + 40]!r}"
            )
        if is_paced:
            if len(read_stamps(text)) != tokens:
                raise ValueError(f"{len(read_stamps(text))} tokens instead of {tokens}")
        elif text != answer(tokens):
            raise ValueError(f"{len(text)} characters that are not the answer: {text[:80]!r}…")

    def lags(self) -> Iterator[float]:
        """Of every token of a paced answer, in seconds. A delta may carry several."""
        moments = iter(read_stamps(self.text))
        size = len(self.text) // max(1, len(read_stamps(self.text)))
        counted = 0
        for arrived, text in self.pieces:
            counted += len(text)
            while counted >= size:
                counted -= size
                yield arrived - next(moments)


class _Connection(asyncio.Protocol):
    """One keep-alive connection, and the answer that is being read from it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._turn: _Turn | None = None
        self.is_open = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own class derives from nothing
        self.is_open = True

    async def ask(self, request: bytes, turn: _Turn) -> None:
        """Send it and read to the end of the response. Raises Refused, Failed or ConnectionError."""
        self._received = b""
        self._status: str | None = None
        self._left: int | None = None
        self._body: list[bytes] = []
        self._turn = turn
        self._done: asyncio.Future[None] = self._loop.create_future()
        self._transport.write(request)
        try:
            await self._done
        finally:
            self._turn = None

    def data_received(self, data: bytes) -> None:
        if self._turn is None or self._done.done():
            return
        try:
            self._received += data
            if self._status is None and not self._read_head():
                return
            is_at_end = self._read_body()
        except Exception as exc:
            self._done.set_exception(exc)
            self.close()
            return
        if is_at_end:
            if self._status == "200":
                self._done.set_result(None)
            else:
                self._done.set_exception(Refused(f"{self._status} {b''.join(self._body)[:300].decode()}"))

    def _read_head(self) -> bool:
        end = self._received.find(b"\r\n\r\n")
        if end < 0:
            return False
        head = self._received[:end].lower()
        self._received = self._received[end + 4 :]
        self._status = head[9:12].decode()
        at = head.find(b"\r\ncontent-length:")
        self._left = None if at < 0 else int(head[at + 17 :].split(b"\r\n", 1)[0])
        return True

    def _read_body(self) -> bool:
        if self._left is not None:
            self._body.append(self._received)
            self._left -= len(self._received)
            self._received = b""
            return self._left <= 0
        received, at = self._received, 0
        texts = []
        is_at_end = False
        while (line := received.find(b"\r\n", at)) >= 0:
            size = int(received[at:line], 16)
            end = line + 2 + size
            if len(received) < end + 2:
                break
            at = end + 2
            if size == 0:
                is_at_end = True
                break
            texts.append(received[line + 2 : end])
        self._received = received[at:]
        if texts:
            assert self._turn is not None
            if self._status == "200":
                self._turn.feed(b"".join(texts))
            else:
                self._body += texts
        return is_at_end

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        if self._turn is not None and not self._done.done():
            self._done.set_exception(ConnectionResetError("the server closed the connection"))

    def close(self) -> None:
        self.is_open = False
        self._transport.abort()


class _Crowd:
    """The clients of one job."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._dialect = DIALECTS[job.dialect]
        self._words = question(job.tokens, job.per_second)
        self._next = 0
        self._turns: list[_Turn] = []
        self._refused: Counter[str] = Counter()
        self._problem = ""
        self._longest = 0.0

    async def run(self) -> Report:
        began = time.monotonic()
        clients = [self._client(number) for number in range(self._job.clients)]
        await asyncio.gather(*clients)
        seconds = time.monotonic() - began
        good = [turn for turn in self._turns if self._is_right(turn)]
        report = Report(
            succeeded=len(good),
            refused=dict(self._refused),
            wrong=len(self._turns) - len(good),
            problem=self._problem,
            seconds=seconds,
            longest_seconds=self._longest,
            deltas=sum(turn.frames for turn in good),
        )
        if self._job.per_second and good:
            lags = [list(turn.lags()) for turn in good]
            every = sorted(lag for of_turn in lags for lag in of_turn)
            firsts = sorted(of_turn[0] for of_turn in lags)
            waits = sorted(turn.pieces[0][0] - turn.asked for turn in good)
            report.first_ms = round(waits[len(waits) // 2] * 1e3, 2)
            report.first_lag_ms = round(firsts[len(firsts) // 2] * 1e3, 2)
            report.lag_p50_ms = round(every[len(every) // 2] * 1e3, 2)
            report.lag_p99_ms = round(every[int(len(every) * 0.99)] * 1e3, 2)
        return report

    def _is_right(self, turn: _Turn) -> bool:
        try:
            turn.check(self._job.tokens, is_paced=self._job.per_second > 0)
        except ValueError as exc:
            self._problem = self._problem or str(exc)
            return False
        return True

    async def _client(self, number: int) -> None:
        await asyncio.sleep(self._job.start_seconds * number / self._job.clients)
        connection: _Connection | None = None
        while self._next < self._job.turns:
            place = self._next
            self._next += 1
            if connection is None or not connection.is_open:
                connection = await _connect(self._job.port)
            conversations = self._job.conversations
            conversation = conversations[place % len(conversations)] if conversations else None
            await self._ask(connection, self._dialect.request(conversation, self._words), is_first=place == 0)
        if connection is not None and connection.is_open:
            connection.close()

    async def _ask(self, connection: _Connection, request: bytes, *, is_first: bool = False) -> None:
        turn = _Turn(self._dialect)
        followers = asyncio.create_task(self._follow(turn)) if is_first and self._job.followers else None
        try:
            async with asyncio.timeout(self._job.patience_seconds):
                await connection.ask(request, turn)
                if followers is not None:
                    await followers
        except (Refused, Failed, OSError, TimeoutError) as exc:
            self._refused[str(exc)[:3] if isinstance(exc, Refused) else type(exc).__name__] += 1
            self._problem = self._problem or str(exc) or type(exc).__name__
            connection.close()
            return
        self._longest = max(self._longest, time.monotonic() - turn.asked)
        self._turns.append(turn)

    async def _follow(self, turn: _Turn) -> None:
        """More readers of that turn, each with a connection of its own."""
        await turn.first
        found = msgspec.json.decode(turn.head[turn.head.index(b"data: ") + 6 :])
        assert self._dialect.resume is not None
        request = self._dialect.resume(found["turn_id"])
        connections = [await _connect(self._job.port) for _ in range(self._job.followers)]
        await asyncio.gather(*(self._ask(connection, request) for connection in connections))


async def _connect(port: int) -> _Connection:
    for attempt in range(20):
        try:
            _, connection = await asyncio.get_running_loop().create_connection(_Connection, "127.0.0.1", port)
        except OSError:
            if attempt == 19:
                raise
            await asyncio.sleep(0.1)
        else:
            return connection
    raise AssertionError("not reached")


def allow_many_connections() -> None:
    """As many open files as this user may have."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def main() -> Any:
    allow_many_connections()
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=Job)
    gc.disable()

    async def run() -> Report:
        return await _Crowd(job).run()

    sys.stdout.buffer.write(msgspec.json.encode(uvloop.run(run())))


if __name__ == "__main__":
    main()
