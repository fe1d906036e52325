"""Tools that leave a trace on the disk, whatever happens to their process: what really ran, and how often."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from turnkeep.ids import CallId, TurnId
from turnkeep.model.outbox import OutboxEntry
from turnkeep.tools.functions import tool
from turnkeep.tools.ports import CallContext, Tool

IDEMPOTENT = frozenset({"look"})


class Entry(Struct, frozen=True, kw_only=True):
    """A tool began or ended its work, in that process."""

    moment: Literal["began", "ended"]
    tool: str
    key: str
    call_id: CallId
    turn_id: TurnId
    pid: int


class Journal:
    """A file that many processes append to. A line that was written survives a kill of its writer."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, entry: Entry) -> None:
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, msgspec.json.encode(entry) + b"\n")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def read(self) -> list[Entry]:
        if not self.path.exists():
            return []
        return [msgspec.json.decode(line, type=Entry) for line in self.path.read_bytes().splitlines()]


class JournalSink:
    """Takes the entries of the outbox to a file beside the journal."""

    def __init__(self, journal: Journal) -> None:
        self._path = journal.path.with_name("outbox")

    async def send(self, entry: OutboxEntry) -> None:
        with self._path.open("ab") as file:
            file.write(msgspec.json.encode(entry) + b"\n")

    def sent(self) -> list[OutboxEntry]:
        """What all workers have sent, in order."""
        if not self._path.exists():
            return []
        return [msgspec.json.decode(line, type=OutboxEntry) for line in self._path.read_bytes().splitlines()]


def tools(journal: Journal, running: Callable[[TurnId], None] = lambda _: None) -> list[Tool]:
    """`look` may be repeated, the others may not; `left` and `right` are made to be called side by side.

    `running` is called between the two entries of a call, where a crash leaves the most doubt.
    """

    async def act(name: str, key: str, context: CallContext, seconds: float) -> str:
        def note(moment: Literal["began", "ended"]) -> None:
            journal.write(
                Entry(
                    moment=moment,
                    tool=name,
                    key=key,
                    call_id=context.call_id,
                    turn_id=context.turn_id,
                    pid=os.getpid(),
                )
            )

        note("began")
        running(context.turn_id)
        await asyncio.sleep(seconds)
        note("ended")
        return f"{name} did {key}"

    @tool(idempotent=True)
    async def look(key: str, context: CallContext) -> str:
        return await act("look", key, context, 0.01)

    @tool
    async def pay(key: str, context: CallContext) -> str:
        return await act("pay", key, context, 0.01)

    @tool
    async def left(key: str, context: CallContext) -> str:
        return await act("left", key, context, 0.01)

    @tool
    async def right(key: str, context: CallContext) -> str:
        return await act("right", key, context, 0.3)

    return [look, pay, left, right]
