"""One runner process with real boxes. What a command in a box really did is written to the journal.

Started by a test as `python -m tests.faults.runner`, with its orders in the environment. The end of its standard input
ends it, so that it never outlives the test. A command writes to the journal with its first output. The fault may come
before that (`box_starting`), just after it (`box_running`), or when the command has ended (`box_ended`).
"""

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import structs

from tests.faults.fault_observer import FaultObserver, report
from tests.faults.journal import Entry, Journal
from tests.faults.script import BOX_COMMAND
from tests.faults.worker_protocol import ORDERS, Orders, Serving
from tests.sandbox_runner.harness import SMALL
from turnkeep.ids import CallId, TurnId
from turnkeep.sandbox.boxes.bubblewrap import Bubblewrap
from turnkeep.sandbox.boxes.ports import Box, BoxCommand, BoxLimits, Driver, Ended
from turnkeep.sandbox.server import RunnerServer, bind, open_runner


class JournalBox:
    """A box. It notes the commands of the model in the journal."""

    def __init__(self, box: Box, journal: Journal, observer: FaultObserver) -> None:
        self._box = box
        self._journal = journal
        self._observer = observer

    async def run(self, command: BoxCommand) -> Ended:
        if BOX_COMMAND not in " ".join(command.argv):
            return await self._box.run(command)
        self._observer.arrive("box_starting")
        has_begun = False

        def begin(piece: bytes) -> None:
            nonlocal has_begun
            if not has_begun:
                has_begun = True
                self._note("began")
                self._observer.arrive("box_running")
            if command.on_output is not None:
                command.on_output(piece)

        ended = await self._box.run(structs.replace(command, on_output=begin))
        self._note("ended")
        self._observer.arrive("box_ended")
        return ended

    async def close(self) -> None:
        await self._box.close()

    def _note(self, moment: Literal["began", "ended"]) -> None:
        self._journal.write(
            Entry(moment=moment, tool="shell", key=BOX_COMMAND, call_id=CallId(""), turn_id=TurnId(""), pid=os.getpid())
        )


class JournalDriver:
    """Makes such boxes."""

    name = "bubblewrap"

    def __init__(self, journal: Journal, observer: FaultObserver) -> None:
        self._driver: Driver = Bubblewrap()
        self._journal = journal
        self._observer = observer

    async def check(self) -> None:
        await self._driver.check()

    async def start(self, limits: BoxLimits, *, image: str | None = None) -> Box:
        return JournalBox(await self._driver.start(limits, image=image), self._journal, self._observer)

    @property
    def python(self) -> Sequence[str]:
        return self._driver.python


async def serve(orders: Orders) -> None:
    driver = JournalDriver(Journal(Path(orders.journal)), FaultObserver(orders.fault))
    with bind(SMALL) as listener:
        port = listener.getsockname()[1]
        async with open_runner(driver, SMALL) as app:
            server = RunnerServer(app, on_ready=lambda: report(Serving(port=port)))
            watching = asyncio.create_task(_until_eof(server))
            await server.serve([listener])
            watching.cancel()


async def _until_eof(server: RunnerServer) -> None:
    commands = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    await commands.read()
    server.stop()


if __name__ == "__main__":
    asyncio.run(serve(msgspec.json.decode(os.environ[ORDERS], type=Orders)))
