"""Providers: what one streamed token costs, beside the official SDK and beside the limit.

A server in a process of its own speaks the vendor's protocol over loopback, one token per event and per HTTP chunk. The
official SDK iterates over its stream. The limit reads the same bytes with aiohttp and decodes each event with msgspec,
without doing anything with it. All send the same request. Counted is the CPU time of this process, which other work on
the machine does not blur, and by the clock. Rounds alternate; medians are reported.

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

import aiohttp
import msgspec
import uvloop

from bench.harness import quiet, target
from tests.providers.wire.script import Say
from tests.providers.wire.server import WireServer
from tests.providers.wire.vendors import VENDORS, Vendor
from turnkeep.providers.http_provider import HttpProvider
from turnkeep.providers.ports import Delta, ModelRequest

Row = dict[str, Any]
Cost = tuple[float, float]
"""Seconds of CPU and seconds by the clock, for one token."""

WORDS = ("quick ", "brown ", "foxes ", "jumps ")
"""Of one length, so that the server cuts its answer into just these."""
SDK_BOUND = 0.2
LIMIT_BOUND = 2.0
packages = ("aiohttp", "anthropic", "openai", "httpx2", "uvloop", "msgspec")
SDK, LIMIT, OURS = "official SDK", "aiohttp and msgspec", "Turnkeep"

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
        to_sdk, to_limit = _ratio(costs, SDK), _ratio(costs, LIMIT)
        rows += [
            _figure(vendor, SDK, "peer", costs[SDK]),
            _figure(vendor, LIMIT, "limit", costs[LIMIT]),
            {**_figure(vendor, OURS, "ours", costs[OURS]), "ratio_to_limit": round(to_limit, 2)},
        ]
        targets.append(target(f"one token against the official SDK, {vendor.name}", to_sdk, SDK_BOUND))
        targets.append(target(f"one token against aiohttp and msgspec alone, {vendor.name}", to_limit, LIMIT_BOUND))
    return [*rows, *targets]


def _ratio(costs: dict[str, list[Cost]], other: str) -> float:
    return statistics.median(ours[0] / theirs[0] for ours, theirs in zip(costs[OURS], costs[other], strict=True))


def main() -> int:
    for row in run(quick="--quick" in sys.argv):
        print("  ".join(f"{key}={value}" for key, value in row.items()))
    return 0


def _figure(vendor: Vendor, contender: str, role: str, costs: list[Cost]) -> Row:
    return {
        "figure": f"one token, {vendor.name}",
        "contender": contender,
        "role": role,
        "cpu_us": round(statistics.median(cost[0] for cost in costs) * 1e6, 1),
        "clock_us": round(statistics.median(cost[1] for cost in costs) * 1e6, 1),
    }


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
    client = _sdk_client(vendor, url)
    request = ModelRequest(model=vendor.model, messages=MESSAGES[vendor.name], may_think=False)
    costs: dict[str, list[Cost]] = {SDK: [], LIMIT: [], OURS: []}
    try:
        body = await provider._body(request)
        async with aiohttp.ClientSession() as session:
            contenders: dict[str, Callable[[], Awaitable[int]]] = {
                SDK: lambda: _iterate(client, vendor, body),
                LIMIT: lambda: _read(session, provider, body),
                OURS: lambda: _speak(provider, request),
            }
            for work in contenders.values():
                assert await work() >= tokens
            with quiet():
                for number in range(rounds):
                    for name in list(contenders) if number % 2 else list(reversed(contenders)):
                        costs[name].append(await _cost(contenders[name], tokens))
                        gc.collect()
    finally:
        await provider.close()
        await client.close()
    return costs


async def _cost(work: Callable[[], Awaitable[int]], tokens: int) -> Cost:
    clock, cpu = time.perf_counter(), time.process_time()
    await work()
    return (time.process_time() - cpu) / tokens, (time.perf_counter() - clock) / tokens


def _sdk_client(vendor: Vendor, url: str) -> Any:
    import anthropic
    import openai

    if vendor.name == "anthropic":
        return anthropic.AsyncAnthropic(api_key="sk-ant-test-key", base_url=url, open_telemetry=False)
    return openai.AsyncOpenAI(api_key="sk-test-key", base_url=f"{url}/v1")


async def _iterate(client: Any, vendor: Vendor, body: dict[str, Any]) -> int:
    """What everybody pays who uses the SDK."""
    resources = {"anthropic": "messages", "openai_chat": "chat.completions", "openai_responses": "responses"}
    resource = client
    for part in resources[vendor.name].split("."):
        resource = getattr(resource, part)
    events = 0
    async with await resource.create(**body) as stream:
        async for _ in stream:
            events += 1
    return events


async def _read(session: aiohttp.ClientSession, provider: HttpProvider, body: dict[str, Any]) -> int:
    """The least that a token can cost with these libraries."""
    events = 0
    decode = msgspec.json.Decoder(_Nothing).decode
    content = msgspec.json.encode(body)
    async with session.post(provider._url, data=content, headers=provider._all_headers) as response:
        rest = b""
        while chunk := await response.content.readany():
            *frames, rest = (rest + chunk).split(b"\n\n")
            for frame in frames:
                data = frame.partition(b"data: ")[2]
                if data.startswith(b"{"):
                    decode(data)
                    events += 1
    return events


class _Nothing(msgspec.Struct):
    """No field of an event."""


async def _speak(provider: HttpProvider, request: ModelRequest) -> int:
    """Characters divided by the length of a word are tokens: those that came in one read are one delta."""
    chars = 0
    async for piece in provider.speak(request):
        if isinstance(piece, Delta):
            chars += len(piece.text)
    return chars // len(WORDS[0])


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
