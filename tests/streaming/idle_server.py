"""A server process for tests that measure it. It prints its port, then what it is asked for, line by line.

`memory` prints the resident bytes, `end` ends the turn and thereby every stream.
"""

import asyncio
import gc
import sys

import psutil
import uvloop

from tests.streaming.http_server import Site, served
from tests.streaming.turns import ListSource, Worker
from turnkeep.ids import TurnId
from turnkeep.streaming.hub import LocalHub


async def main(turn_id: str) -> None:
    source, hub = ListSource(), LocalHub()
    worker = Worker(source, TurnId(turn_id))
    worker.begin()
    async with served(Site(source=source, hub=hub)) as site:
        _say(site.port)
        commands = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
        while command := (await commands.readline()).decode().strip():
            if command == "memory":
                gc.collect()
                _say(psutil.Process().memory_info().rss)
            if command == "end":
                hub.publish(worker.turn_id, [worker.answer()])
                _say("ended")


def _say(line: object) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1]))
