"""The sandbox: lines through parser and SSE encoder beside a raw copy loop, and boxes beside a bare process."""

import asyncio
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from bench.harness import quiet, target
from tests.sandbox_runner.fake_server import FakeTurn
from tests.sandbox_runner.harness import SMALL, ending, site
from turnkeep.providers.scripted import Call
from turnkeep.sandbox.boxes.bubblewrap import Bubblewrap
from turnkeep.sandbox.boxes.ports import BoxCommand, BoxLimits
from turnkeep.streaming.formats import encode_delta, encode_event
from turnkeep.streaming.frames import DeltaFrame
from turnkeep.streaming.ndjson import LineParser
from turnkeep_client.wire.events import Recorded
from turnkeep_client.wire.sandbox import DeltaLine, StepLine

packages = ("msgspec",)

Row = dict[str, Any]

CHUNK_BYTES = 64 * 1024
TURNS = 20

_STEP = (
    b'{"type":"step","id":"call_%d","name":"shell","status":"succeeded","args":{"command":"ls -la assets"},'
    b'"result":"total 12\\nreport.pdf\\nchart.png","durationMs":412,"ts":1700000000535}\n'
)
_DELTA = b'{"type":"delta","text":"a few words more, "}\n'
_LOG = b'{"type":"log","level":"info","message":"Loaded 3 skills","ts":1700000000000}\n'
_RESULT = b'{"type":"result","message":"Done."}\n'


def run(*, quick: bool = False) -> list[Row]:
    lines, rounds = (20_000, 3) if quick else (200_000, 9)
    ours, raw = _forwarding(lines, rounds)
    boxes = asyncio.run(_boxes(5 if quick else 40))
    seconds, failures = asyncio.run(_many_turns())
    return [
        {"setting": "lines", "value": "half steps, three eighths deltas, the rest logs; read in chunks of 64 KiB"},
        {"setting": "box", "value": "limits as by default; a command is /bin/true"},
        {
            "figure": "lines, parsed and encoded",
            "contender": "Turnkeep",
            "role": "ours",
            "lines_per_second": round(ours),
            "ratio_of_rates": round(ours / raw, 2),
        },
        {
            "figure": "lines, split and framed unread",
            "contender": "raw copy loop",
            "role": "limit",
            "lines_per_second": round(raw),
        },
        *(
            {"figure": figure, "contender": contender, "role": role, "median_us": statistics.median(times) * 1e6}
            for (figure, contender, role), times in boxes.items()
        ),
        {"figure": f"{TURNS} turns at once", "contender": "Turnkeep", "role": "ours", "median_us": seconds * 1e6},
        target("lines/s through parser and SSE encoder", ours, 100_000, at_least=True, unit="lines/s"),
        target("a box starts", statistics.median(boxes[START]) * 1e3, 60, unit="ms"),
        target("a box with 20 processes is dead", max(boxes[KILL]), 1, unit="s"),
        target(f"failures among {TURNS} turns at once", failures, 0, unit="turns"),
    ]


def main() -> int:
    for row in run(quick="--quick" in sys.argv):
        print("  ".join(f"{key}={value}" for key, value in row.items()))
    return 0


# Lines


def _forwarding(count: int, rounds: int) -> tuple[float, float]:
    """LineStream per second, ours and raw: medians of interleaved rounds."""
    kinds = (_STEP, _DELTA, _STEP, _DELTA, _STEP, _LOG, _STEP, _DELTA)
    body = b"".join(line % n if (line := kinds[n % 8]) is _STEP else line for n in range(count - 1)) + _RESULT
    chunks = [body[at : at + CHUNK_BYTES] for at in range(0, len(body), CHUNK_BYTES)]
    rates: dict[Callable[[list[bytes]], int], list[float]] = {_ours: [], _raw: []}
    for _ in range(rounds):
        for forward, found in rates.items():
            with quiet():
                began = time.perf_counter()
                written = forward(chunks)
                found.append(count / (time.perf_counter() - began))
            assert written > len(body) // 2
    return statistics.median(rates[_ours]), statistics.median(rates[_raw])


def _ours(chunks: list[bytes]) -> int:
    parser, seq, offset, written = LineParser(), 1, 0, 0
    for chunk in chunks:
        frames: list[bytes] = []
        for line in parser.feed(chunk):
            if isinstance(line, StepLine):
                seq, offset = seq + 1, 0
                frames.append(encode_event(Recorded(seq=seq, event=line.event())))
            elif isinstance(line, DeltaLine):
                offset += len(line.text)
                frame = DeltaFrame(seq=seq, offset=offset, iteration=1, kind="text", text=line.text)
                frames.append(encode_delta(frame))
        written += len(b"".join(frames))
    assert parser.close().message == "Done."
    return written


def _raw(chunks: list[bytes]) -> int:
    rest, seq, written = b"", 1, 0
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        frames: list[bytes] = []
        for line in lines:
            seq += 1
            frames.append(b"event: step\nid: %d\ndata: %b\n\n" % (seq, line))
        written += len(b"".join(frames))
    return written


# Boxes

START = ("a box, up to its first command's end", "Turnkeep", "ours")
COMMAND = ("one more command in it", "Turnkeep", "ours")
KILL = ("killing 20 processes", "Turnkeep", "ours")
BARE = ("a bare process", "fork and exec", "limit")


async def _boxes(rounds: int) -> dict[tuple[str, str, str], list[float]]:
    driver = Bubblewrap()
    await driver.check()
    seconds: dict[tuple[str, str, str], list[float]] = {START: [], COMMAND: [], KILL: [], BARE: []}
    nothing = BoxCommand(argv=["/bin/true"])
    for _ in range(rounds):
        seconds[BARE].append(await _timed(_bare))
        began = time.perf_counter()
        box = await driver.start(BoxLimits())
        await box.run(nothing)
        seconds[START].append(time.perf_counter() - began)
        seconds[COMMAND].append(await _timed(lambda box=box: box.run(nothing)))  # type: ignore[misc]
        sleeping = asyncio.Event()
        many = BoxCommand(
            argv=["/bin/sh", "-c", "trap '' TERM; for i in $(seq 19); do sleep 99 & done; echo up; wait"],
            on_output=lambda _, sleeping=sleeping: sleeping.set(),  # type: ignore[misc]
        )
        running = asyncio.create_task(box.run(many))
        await sleeping.wait()
        began = time.perf_counter()
        running.cancel()
        await asyncio.wait({running})
        seconds[KILL].append(time.perf_counter() - began)
        await box.close()
    return seconds


async def _bare() -> None:
    process = await asyncio.create_subprocess_exec("/bin/true")
    await process.wait()


async def _timed(work: Callable[[], Awaitable[object]]) -> float:
    began = time.perf_counter()
    await work()
    return time.perf_counter() - began


async def _many_turns() -> tuple[float, int]:
    """Whole turns through a runner, each with a command and a file: how long all of them took, and how many failed."""
    turns = [
        FakeTurn([[Call("shell", {"command": f"echo {number} > assets/n; cat assets/n"})], [f"Number {number}."]])
        for number in range(TURNS)
    ]
    async with site(SMALL) as here:
        began = time.perf_counter()
        lines = await asyncio.gather(*(here.run(turn) for turn in turns))
        seconds = time.perf_counter() - began
    expected = [f"Number {number}." for number in range(TURNS)]
    said = [ending(each).get("message") for each in lines]
    return seconds, sum(one != other for one, other in zip(said, expected, strict=True))


if __name__ == "__main__":
    sys.exit(main())
