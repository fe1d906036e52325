"""The engine: what a turn costs beside its own durable commits, and how late previews are among a thousand turns.

A turn with an instant model and one tool round makes five commits: claim, iteration, step begun, result, settlement.
Everything else (compiling, publishing, reading the window, waking the asker) is overhead. The sum of the commits is
taken inside the same turn, around the store's own verbs.
"""

import asyncio
import statistics
import time
from collections.abc import Sequence
from typing import Any

import uvloop

from bench.harness import Place, place, quiet, target
from turnkeep.engine import Engine, EngineSettings, Options, Question, Services
from turnkeep.model.principals import Principal
from turnkeep.providers.ports import ModelRequest
from turnkeep.providers.registry import ProviderRegistry
from turnkeep.providers.scripted import Call, Pause, Script, ScriptedProvider
from turnkeep.store.postgres import PostgresStore
from turnkeep.store.sqlite import SqliteStore
from turnkeep.streaming.follow import follow
from turnkeep.streaming.frames import DeltaFrame
from turnkeep.streaming.hub import LocalHub
from turnkeep.tools.functions import tool
from turnkeep.tools.registry import ToolRegistry
from turnkeep_client.wire.blocks import Text

COMMITS = ("claim", "record", "settle")
SETTINGS = EngineSettings(model="scripted", lease_seconds=30.0)
packages = ("apsw", "asyncpg", "msgspec", "uvloop")


@tool
async def look(what: str) -> str:
    """Look at something."""
    return f"{what} is there"


class MeteredStore:
    """The store itself, with a clock around the verbs that commit."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.committing = 0.0

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self._store, name)
        if name not in COMMITS:
            return verb

        async def timed(*args: Any, **fields: Any) -> Any:
            began = time.perf_counter()
            try:
                return await verb(*args, **fields)
            finally:
                self.committing += time.perf_counter() - began

        return timed


def run(*, quick: bool = False) -> list[dict[str, Any]]:
    return uvloop.run(_run(turns=40 if quick else 400, live=100 if quick else 1_000))


async def _run(*, turns: int, live: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    async with place() as here:
        for database in ("sqlite", "postgres"):
            store = await _open(here, database)
            try:
                rows += await _overhead(store, database, turns)
            finally:
                await store.close()
        store = await _open(here, "sqlite", name="crowd")
        try:
            rows += await _crowd(store, live)
        finally:
            await store.close()
    return rows


async def _open(here: Place, database: str, *, name: str = "engine") -> Any:
    if database == "sqlite":
        return await SqliteStore.open(here.directory / f"{name}.db")
    return await PostgresStore.open(await here.create_database(name), client_password="bench")


async def _overhead(store: Any, database: str, turns: int) -> list[dict[str, Any]]:
    metered = MeteredStore(store)
    engine, principal = await _engine(metered, _one_round)
    whole: list[float] = []
    ratios: list[float] = []
    with quiet():
        for number in range(turns + 20):
            metered.committing = 0.0
            began = time.perf_counter()
            claimed = await engine.ask(_question(principal))
            await engine.wait(claimed.turn.id)
            elapsed = time.perf_counter() - began
            if number >= 20:
                whole.append(elapsed)
                ratios.append(elapsed / metered.committing)
    await engine.close()
    ratio = statistics.median(ratios)
    return [
        {
            "database": database,
            "figure": "a turn with one tool round",
            "contender": "Turnkeep",
            "role": "ours",
            "median_us": round(statistics.median(whole) * 1e6, 1),
            "times_its_commits": round(ratio, 2),
        },
        target(f"a turn ÷ the sum of its commits, {database}", ratio, 2.0),
    ]


async def _crowd(store: Any, live: int) -> list[dict[str, Any]]:
    """Many live turns in one process, each with a reader; every word carries the moment when it was said."""
    hub = LocalHub()
    engine, principal = await _engine(store, _telling_the_time, hub=hub)
    began = time.perf_counter()
    claims = await asyncio.gather(*(engine.ask(_question(principal)) for _ in range(live)))
    delays: list[float] = []
    await asyncio.gather(*(_listen(store, hub, claimed.turn.id, delays) for claimed in claims))
    settled = await asyncio.gather(*(engine.wait(claimed.turn.id) for claimed in claims))
    elapsed = time.perf_counter() - began
    await engine.close()
    succeeded = sum(turn.status == "succeeded" for turn in settled)
    delays.sort()
    return [
        {
            "database": "sqlite",
            "figure": f"{live:,} live turns at once",
            "contender": "Turnkeep",
            "role": "ours",
            "settled": succeeded,
            "seconds": round(elapsed, 2),
            "preview_delay_p50_ms": round(delays[len(delays) // 2] * 1000, 2),
            "preview_delay_p99_ms": round(delays[int(len(delays) * 0.99)] * 1000, 2),
        },
        target("live turns at once that settle", succeeded, live, at_least=True, unit=""),
    ]


async def _listen(store: Any, hub: LocalHub, turn_id: Any, delays: list[float]) -> None:
    async for frames in follow(store, hub, turn_id):
        now = time.perf_counter()
        for frame in frames:
            if isinstance(frame, DeltaFrame):
                delays += [now - float(said) for said in frame.text.split()]


async def _engine(store: Any, script: Any, *, hub: LocalHub | None = None) -> tuple[Engine, Principal]:
    engine = Engine(
        Services(
            store=store,
            hub=LocalHub() if hub is None else hub,
            providers=ProviderRegistry([ScriptedProvider(script)]),
            tools=ToolRegistry([look], offered_to_all=["look"]),
            settings=SETTINGS,
        ),
        worker="bench",
    )
    await engine.start()
    org, workspace = await store.create_org("Bench")
    member = await store.ensure_member(org.id, workspace.id, "asker")
    return engine, Principal(org_id=org.id, workspace_id=workspace.id, user_id=member.id, role="member")


def _question(principal: Principal) -> Question:
    return Question(principal=principal, message=(Text(text="Is the door there?"),), options=Options())


def _one_round(request: ModelRequest) -> Script:
    if request.messages[-1]["role"] == "tool":
        return ["The door ", "is there."]
    return ["Let me look. ", Call("look", {"what": "the door"})]


class _Now:
    """Words that tell the moment at which they are spoken."""

    def __init__(self, words: int) -> None:
        self._words = words

    def __iter__(self) -> Any:
        for _ in range(self._words):
            yield Pause(0.05)
            yield f"{time.perf_counter()} "


def _telling_the_time(request: ModelRequest) -> Sequence[Any]:
    return _Now(20)  # type: ignore[return-value]
