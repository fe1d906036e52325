"""One worker process: an engine over a store, with a model without memory, tools that keep a journal, and a fault.

Started by a test as `python -m tests.faults.worker`, with its orders in the environment. It takes commands on standard
input and reports on standard output (`talk`). SIGTERM makes it hand its turns over and end; so does the end of its
standard input, so that it never outlives the test.
"""

import asyncio
import os
import signal
import sys
from pathlib import Path

import msgspec

from tests.faults.engines import build_engine
from tests.faults.fault_observer import FaultObserver, report
from tests.faults.journal import Journal
from tests.faults.stores import open_store
from tests.faults.worker_protocol import (
    ORDERS,
    Acknowledged,
    Arm,
    Armed,
    Ask,
    Command,
    Go,
    Orders,
    Ready,
    Refused,
)
from turnkeep.engine import Engine, Options, Question
from turnkeep.errors import TurnkeepError
from turnkeep_client.wire.blocks import Text


class Worker:
    """Carries out commands."""

    def __init__(self, orders: Orders, engine: Engine, observer: FaultObserver, gate: asyncio.Event) -> None:
        self._orders = orders
        self._engine = engine
        self._observer = observer
        self._gate = gate
        self._asking: set[asyncio.Task[None]] = set()

    def obey(self, command: Command) -> None:
        match command:
            case Ask():
                task = asyncio.create_task(self._ask(command))
                self._asking.add(task)
                task.add_done_callback(self._asking.discard)
            case Go():
                self._gate.set()
            case Arm():
                self._observer.arm(command.fault)
                report(Armed())

    async def finish(self) -> None:
        """Answer everybody who has asked."""
        if self._asking:
            await asyncio.wait(self._asking)

    async def _ask(self, ask: Ask) -> None:
        key = ask.idempotency_key
        options = Options(if_busy=ask.if_busy, background=True, idempotency_key=key, request_hash=key and ask.text)
        message = (Text(text=ask.text),)
        question = Question(
            principal=self._orders.principal, message=message, conversation_id=ask.conversation_id, options=options
        )
        try:
            turn = (await self._engine.ask(question)).turn
        except TurnkeepError as exc:
            report(Refused(number=ask.number, code=exc.code))
            return
        report(
            Acknowledged(number=ask.number, turn_id=turn.id, conversation_id=turn.conversation_id, status=turn.status)
        )


async def serve(orders: Orders) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    observer = FaultObserver(orders.fault)
    gate = asyncio.Event()
    store = await open_store(orders.url, is_prepared=orders.is_prepared)
    engine = build_engine(
        store,
        Journal(Path(orders.journal)),
        name=orders.name,
        observer=observer,
        running=lambda _: observer.arrive("tool_running"),
        gate=gate.wait if orders.is_gated else None,
        pace=orders.pace,
        lease_seconds=orders.lease_seconds,
    )
    try:
        await engine.start()
        worker = Worker(orders, engine, observer, gate)
        reading = asyncio.create_task(_obey_input(worker, stop))
        report(Ready())
        await stop.wait()
        reading.cancel()
        await engine.drain(seconds=10)
        await worker.finish()
        await engine.close()
    finally:
        await store.close()


async def _obey_input(worker: Worker, stop: asyncio.Event) -> None:
    commands = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    async for text in commands:
        worker.obey(msgspec.json.decode(text, type=Command))
    stop.set()


if __name__ == "__main__":
    asyncio.run(serve(msgspec.json.decode(os.environ[ORDERS], type=Orders)))
