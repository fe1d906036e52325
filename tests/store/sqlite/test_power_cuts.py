"""Power cut at every write and sync of a whole tool turn: what was acknowledged is there, and nothing is half there."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.store.factories import (
    Tenant,
    a_claim,
    a_tenant,
    answered,
    asked_for_tool,
    held_of,
    step,
    tool_answered,
    tool_calls,
)
from tests.store.sqlite.disks import Image, RecordingDisk, power_cuts
from tests.store.table_invariants import broken, sqlite_tables
from turnkeep.errors import TurnkeepError
from turnkeep.ids import TurnId, new_call_id, new_turn_id
from turnkeep.model.turns import Held
from turnkeep.store.sqlite import SqliteStore

NAME = "turnkeep.db"


@pytest.fixture
def directory() -> Iterator[Path]:
    """In memory where there is such a place: thousands of images are written, and none of them must last."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        yield Path(name)


PARTS = 6
"""All cuts in one test take minutes on a busy machine."""


class TestPowerCuts:
    @pytest.mark.parametrize("part", range(PARTS))
    async def test_lose_nothing_that_was_acknowledged_and_leave_nothing_half_done(
        self, directory: Path, part: int
    ) -> None:
        disk = await a_tool_turn(directory / "before", synchronous="FULL")
        checked = 0
        for cut, (image, acknowledged) in enumerate(power_cuts(disk.happenings, seed=20, torn=3)):
            if cut % PARTS == part:
                lost = await what_is_lost(directory / "after", image, acknowledged)
                assert lost == [], f"cut {cut}: after {acknowledged}"
                checked += 1
        assert checked > 1_000 // PARTS

    async def test_would_be_noticed_if_commits_were_not_flushed(self, directory: Path) -> None:
        disk = await a_tool_turn(directory / "before", synchronous="NORMAL")
        losses = 0
        for image, acknowledged in power_cuts(disk.happenings[:-1], seed=20, torn=0):
            losses += bool(await what_is_lost(directory / "after", image, acknowledged))
            if losses > 3:
                return
        pytest.fail("a store that does not flush its commits lost nothing: this harness sees nothing")


async def a_tool_turn(directory: Path, *, synchronous: str) -> RecordingDisk:
    """Open, make a tenant, run a whole turn with a tool, close; each step acknowledged once its call returned."""
    disk = RecordingDisk()
    store = await SqliteStore.open(directory / NAME, vfs=disk.name, exclusive=True, synchronous=synchronous)
    tenant = await a_tenant(store)
    disk.acknowledge(("tenant", tenant.org.id))
    turn_id = new_turn_id()
    held = held_of(await store.claim(a_claim(tenant.ann, "What is the weather?", turn_id=turn_id)))
    disk.acknowledge(("events", turn_id, 1, 1))
    await _run(store, tenant, disk, held)
    await store.close()
    disk.acknowledge(("closed",))
    return disk


async def _run(store: SqliteStore, tenant: Tenant, disk: RecordingDisk, held: Held) -> None:
    call = new_call_id()
    calls, began, ended = tool_calls(call), step(call), step(call, "succeeded", result="rain " * 400)
    await store.record(held, after=1, rows=[asked_for_tool(held, 1, call)], events=[calls, began])
    disk.acknowledge(("events", held.turn_id, 3, 2))
    await store.record(held, after=3, rows=[tool_answered(held, 2, call, "rain " * 400)], events=[ended])
    disk.acknowledge(("events", held.turn_id, 4, 3))
    await store.settle(held, after=4, settlement=answered(held, "Rain.", sequence=3))
    disk.acknowledge(("events", held.turn_id, 5, 4))


async def what_is_lost(directory: Path, image: Image, acknowledged: list[tuple[Any, ...]]) -> list[str]:
    """Start again on what the disk has, and compare."""
    directory.mkdir(exist_ok=True)
    for old in directory.iterdir():
        old.unlink()
    for file, content in image.items():
        (directory / file).write_bytes(content)
    try:
        store = await SqliteStore.open(directory / NAME)
    except TurnkeepError as exc:
        return [f"it does not open: {exc}"]
    try:
        lost = [what for said in acknowledged for what in await _missing(store, said)]
    finally:
        await store.close()
    return lost + broken(sqlite_tables(directory / NAME))


async def _missing(store: SqliteStore, said: tuple[Any, ...]) -> list[str]:
    match said:
        case ("tenant", org_id):
            return [] if org_id in [org.id for org in await store.orgs()] else [f"org {org_id}"]
        case ("events", turn_id, last, rows):
            return await _missing_of_turn(store, turn_id, last, rows)
        case _:
            return []


async def _missing_of_turn(store: SqliteStore, turn_id: TurnId, last: int, rows: int) -> list[str]:
    events = len(await store.events(turn_id))
    stored = len(await store.turn_rows(turn_id))
    lost = [f"event {last}"] if events < last else []
    return lost + ([f"row {rows}"] if stored < rows else [])
