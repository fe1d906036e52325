"""The checker itself: it finds nothing wrong with a sound database, and every kind of damage with a broken one."""

import re

import apsw
import pytest

from tests.faults.engines import ask, running_engine
from tests.faults.invariants import Examined
from tests.faults.journal import Entry
from tests.faults.script import question
from tests.faults.sites import Site
from turnkeep.ids import CallId, new_call_id, new_turn_id

DAMAGES = [
    ("DELETE FROM turn_events WHERE seq = 3", "events are numbered"),
    ("DELETE FROM turn_events WHERE type = 'result'", r"terminal events at \[\]"),
    ("DELETE FROM messages WHERE turn_sequence = 2", "has no result"),
    ("UPDATE messages SET turn_sequence = 9 WHERE display IS NOT NULL", "rows are numbered"),
    ("UPDATE messages SET display = '[]' WHERE display IS NOT NULL", r"displays \(\)"),
    ("UPDATE messages SET internal = 1 WHERE display IS NOT NULL", "shows another transcript|names msg_"),
    ("UPDATE turns SET status = 'running', settled_at = NULL", "is still running"),
    ("UPDATE turns SET status = 'queued', settled_at = NULL", "left .* in the queue"),
    ("UPDATE turns SET status = 'failed'", "is failed"),
    ("UPDATE turns SET attempt = 2", "has attempt 2"),
    ("UPDATE conversations SET message_count = 3", "counts 3 messages of 2"),
    ("UPDATE conversations SET turn_count = 0", "counts 0 turns of 1"),
    ("UPDATE conversations SET head_turn_id = NULL", "as its head"),
    ("UPDATE usage SET api_messages = 2", "says 2 messages for 1 claims"),
    ("UPDATE usage SET input_tokens = 1", "says 1 input tokens"),
]


async def sound(site: Site) -> Site:
    """A site with one turn of a call and an answer."""
    async with site.store() as store, running_engine(store, site.journal) as engine:
        claimed = await ask(engine, site.tenant.ann, question("q", "pay"))
        site.acknowledged.append(claimed.turn.id)
        await engine.wait(claimed.turn.id)
    return site


def damage(site: Site, sql: str) -> None:
    connection = apsw.Connection(site.url.removeprefix("sqlite:///"))
    try:
        connection.execute(sql)
        assert connection.total_changes()
    finally:
        connection.close()


def found(examined: Examined) -> str:
    return "\n".join(examined.violations)


def entry_like(entry: Entry, *, call_id: CallId) -> Entry:
    return Entry(moment="began", tool=entry.tool, key=entry.key, call_id=call_id, turn_id=entry.turn_id, pid=entry.pid)


class TestTheChecker:
    async def test_finds_nothing_wrong_with_what_is_sound(self, sqlite_site: Site) -> None:
        assert (await (await sound(sqlite_site)).examine()).violations == ()

    @pytest.mark.parametrize("sql, sentence", DAMAGES)
    async def test_finds_damage(self, sqlite_site: Site, sql: str, sentence: str) -> None:
        site = await sound(sqlite_site)
        damage(site, sql)
        assert re.search(sentence, found(await site.examine()))

    async def test_misses_a_turn_that_was_acknowledged(self, sqlite_site: Site) -> None:
        site = await sound(sqlite_site)
        site.acknowledged.append(new_turn_id())
        assert "was acknowledged and is there 0 times" in found(await site.examine())

    async def test_notices_a_call_that_ran_twice_under_whatever_id(self, sqlite_site: Site) -> None:
        site = await sound(sqlite_site)
        (began, _) = site.journal.read()
        site.journal.write(entry_like(began, call_id=began.call_id))
        assert f"call {began.call_id} ran 2 times" in found(await site.examine())
        site.journal.write(entry_like(began, call_id=new_call_id()))
        assert "q/0/pay was done 3 times" in found(await site.examine())
        assert "ran before anybody was told" in found(await site.examine())
