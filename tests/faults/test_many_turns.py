"""A thousand turns live at once in one process: all settle."""

import asyncio
import logging
import time
from collections.abc import Callable

import pytest

from tests.faults.engines import Watcher, ask
from tests.faults.invariants import examine
from tests.faults.script import question, reply_to
from tests.faults.sites import Site
from turnkeep.engine import Engine, EngineSettings, Services
from turnkeep.providers.ports import ModelRequest
from turnkeep.providers.registry import ProviderRegistry
from turnkeep.providers.scripted import Script, ScriptedProvider, Until
from turnkeep.streaming.hub import LocalHub
from turnkeep.tools.functions import tool
from turnkeep.tools.registry import ToolRegistry

TURNS = 1_000
_log = logging.getLogger(__name__)


class Crowd:
    """A model that stops in the middle of a sentence until everybody is there."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._here: set[str] = set()
        self._everybody = asyncio.Event()

    def speak(self, request: ModelRequest) -> Script:
        if request.messages[-1]["role"] == "tool":
            return reply_to(request)

        async def everybody() -> None:
            self._here.add(request.messages[-1]["content"])
            if len(self._here) == self._size:
                self._everybody.set()
            await self._everybody.wait()

        return ["Wait a moment. ", Until(everybody), *reply_to(request)]


@tool(idempotent=True)
async def look(key: str) -> str:
    return f"looked at {key}"


class TestAThousandTurnsAtOnce:
    @pytest.mark.parametrize("site", ["sqlite", "postgres"], indirect=True)
    async def test_all_settle(self, site: Site, record_property: Callable[[str, object], None]) -> None:
        watcher = Watcher()
        began = time.monotonic()
        # A thousand who wait for one database each get their turn, on a slow machine later than an operator would wait.
        async with site.store(retry_seconds=150) as store, asyncio.timeout(150):
            engine = Engine(
                Services(
                    store=store,
                    hub=LocalHub(),
                    providers=ProviderRegistry([ScriptedProvider(Crowd(TURNS).speak)]),
                    tools=ToolRegistry([look], offered_to_all=["look"]),
                    settings=EngineSettings(model="scripted"),
                    observer=watcher,
                ),
                worker="worker-1",
            )
            await engine.start()
            asked = [ask(engine, site.tenant.ann, question(f"q{n}", "look")) for n in range(TURNS)]
            site.acknowledged = [claimed.turn.id for claimed in await asyncio.gather(*asked)]
            turns = await asyncio.gather(*(engine.wait(each) for each in site.acknowledged))
            seconds = time.monotonic() - began
            await engine.drain(seconds=10)
            await engine.close()
            examined = await examine(store, site.tenant.service, acknowledged=site.acknowledged)
        record_property("turns", TURNS)
        record_property("seconds", round(seconds, 2))
        _log.info("%d turns, live at once, settled in %.1f s", TURNS, seconds)
        assert watcher.defects == []
        assert [turn.status for turn in turns] == ["succeeded"] * TURNS
        assert examined.violations == ()
