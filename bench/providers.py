"""Providers: what one streamed token costs through our layer, beside iterating the official SDK's stream alone.

A server in a process of its own speaks the vendor's protocol over loopback, one token per event and per HTTP chunk.
Both contenders use the same client of the same SDK, with the same request. Counted is the CPU time of this process,
which other work on the machine does not blur, and by the clock. Rounds alternate; medians are reported.

    python -m bench.providers
"""

import asyncio
import gc
import multiprocessing
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection
from typing import Any

import uvloop

from bench.harness import quiet, target
from tests.providers.wire.script import Say
from tests.providers.wire.server import WireServer
from tests.providers.wire.vendors import VENDORS, Vendor
from turnkeep.providers.ports import ModelRequest
from turnkeep.providers.sdk_provider import SdkProvider

Row = dict[str, Any]
Cost = tuple[float, float]
"""Seconds of CPU and seconds by the clock, for one token."""

WORDS = ("quick ", "brown ", "foxes ", "jumps ")
"""Of one length, so that the server cuts its answer into just these."""
BOUND = 2.0
packages = ("anthropic", "openai", "httpx2", "uvloop", "msgspec")

MESSAGES: dict[str, Any] = {
    "anthropic": [{"role": "user", "content": [{"type": "text", "text": "Speak."}]}],
    "openai_chat": [{"role": "user", "content": "Speak."}],
    "openai_responses": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Speak."}]}],
}


def run(*, quick: bool = False) -> list[Row]:
    tokens, rounds = (1_000, 5) if quick else (4_000, 21)
    rows: list[Row] = [{"setting": "tokens per answer", "value": tokens}]
    targets: list[Row] = []
    for vendor in VENDORS:
        costs = _measured(vendor, tokens, rounds)
        ratio = statistics.median(
            ours[0] / bare[0] for ours, bare in zip(costs["Turnkeep"], costs["SDK alone"], strict=True)
        )
        for contender, role in (("SDK alone", "limit"), ("Turnkeep", "ours")):
            rows.append(_figure(vendor, contender, role, costs[contender], ratio))
        targets.append(target(f"provider layer per token against the SDK alone, {vendor.name}", ratio, BOUND))
    return [*rows, *targets]


def main() -> int:
    for row in run(quick="--quick" in sys.argv):
        print("  ".join(f"{key}={value}" for key, value in row.items()))
    return 0


def _figure(vendor: Vendor, contender: str, role: str, costs: list[Cost], ratio: float) -> Row:
    row: Row = {
        "figure": f"one token, {vendor.name}",
        "contender": contender,
        "role": role,
        "cpu_us": round(statistics.median(cost[0] for cost in costs) * 1e6, 1),
        "clock_us": round(statistics.median(cost[1] for cost in costs) * 1e6, 1),
    }
    return {**row, "ratio_to_limit": round(ratio, 2)} if role == "ours" else row


def _measured(vendor: Vendor, tokens: int, rounds: int) -> dict[str, list[Cost]]:
    context = multiprocessing.get_context("spawn")
    parent, child = context.Pipe()
    process = context.Process(target=_serve, args=(child, vendor.name, tokens))
    process.start()
    child.close()
    try:
        return uvloop.run(_race(vendor, parent.recv(), tokens, rounds))
    finally:
        parent.send("enough")
        process.join(30)


async def _race(vendor: Vendor, url: str, tokens: int, rounds: int) -> dict[str, list[Cost]]:
    provider = vendor.provider(url)
    request = ModelRequest(model=vendor.model, messages=MESSAGES[vendor.name], may_think=False)
    contenders: dict[str, Callable[[], Awaitable[int]]] = {
        "SDK alone": lambda: _iterate(provider, body),
        "Turnkeep": lambda: _events(provider, request),
    }
    costs: dict[str, list[Cost]] = {name: [] for name in contenders}
    try:
        body = await provider._body(request)
        for work in contenders.values():
            assert await work() >= tokens
        with quiet():
            for number in range(rounds):
                for name in list(contenders) if number % 2 else list(reversed(contenders)):
                    costs[name].append(await _cost(contenders[name], tokens))
                    gc.collect()
    finally:
        await provider.close()
    return costs


async def _cost(work: Callable[[], Awaitable[int]], tokens: int) -> Cost:
    clock, cpu = time.perf_counter(), time.process_time()
    await work()
    return (time.process_time() - cpu) / tokens, (time.perf_counter() - clock) / tokens


async def _iterate(provider: SdkProvider, body: dict[str, Any]) -> int:
    """What everybody pays who uses the SDK."""
    events = 0
    async with await provider._open(body, 60.0) as stream:
        async for _ in stream:
            events += 1
    return events


async def _events(provider: SdkProvider, request: ModelRequest) -> int:
    pieces = 0
    async for _ in provider.speak(request):
        pieces += 1
    return pieces


# The server, in a process of its own


def _serve(parent: Connection, name: str, tokens: int) -> None:
    uvloop.run(_serving(parent, next(vendor for vendor in VENDORS if vendor.name == name), tokens))


async def _serving(parent: Connection, vendor: Vendor, tokens: int) -> None:
    answer = Say("".join(WORDS[number % len(WORDS)] for number in range(tokens)), pieces=tokens)
    async with WireServer(vendor.wire(), brain=lambda body: [answer], seed=None) as server:
        parent.send(server.url)
        await asyncio.to_thread(parent.recv)


if __name__ == "__main__":
    sys.exit(main())
