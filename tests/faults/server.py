"""One server process: the worker's model, tools and fault behind the whole HTTP API.

Started by a test as `python -m tests.faults.server`, with its settings in the environment as `turnkeep serve` reads
them. SIGTERM is obeyed as `turnkeep serve` obeys it; the end of its standard input counts as one. `Go` on its standard
input lets a model speak that waits for it.
"""

import asyncio
import os
import sys
from pathlib import Path

import msgspec
from msgspec import structs

from tests.faults.fault_observer import FaultObserver, report
from tests.faults.journal import Journal, tools
from tests.faults.script import model
from tests.faults.worker_protocol import ORDERS, Command, Go, Orders, Serving
from turnkeep.api.app import Server, bind, create_app
from turnkeep.config import Settings, read_settings
from turnkeep.providers.registry import ProviderRegistry
from turnkeep.providers.scripted import ScriptedProvider
from turnkeep.runtime import open_runtime
from turnkeep.tools.registry import ToolRegistry


async def serve(orders: Orders, settings: Settings) -> None:
    observer = FaultObserver(orders.fault)
    gate = asyncio.Event()
    offered = tools(Journal(Path(orders.journal)), lambda _: observer.arrive("tool_running"))
    speaker = model(gate=gate.wait if orders.is_gated else None, pace=orders.pace)
    with bind(settings) as listener:
        port = listener.getsockname()[1]
        if not settings.public_url:
            settings = structs.replace(settings, public_url=f"http://127.0.0.1:{port}")
        async with open_runtime(
            settings,
            providers=ProviderRegistry([ScriptedProvider(speaker)]),
            tools=ToolRegistry(offered, offered_to_all=[each.spec.name for each in offered]),
            observer=observer,
        ) as runtime:
            server = Server(create_app(runtime), runtime, on_ready=lambda: report(Serving(port=port)))
            watching = asyncio.create_task(_obey_input(server, gate))
            await server.serve([listener])
            watching.cancel()


async def _obey_input(server: Server, gate: asyncio.Event) -> None:
    """Until it ends; then stop, so that a server never outlives its test."""
    commands = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    async for text in commands:
        assert isinstance(msgspec.json.decode(text, type=Command), Go)
        gate.set()
    server.stop()


if __name__ == "__main__":
    asyncio.run(serve(msgspec.json.decode(os.environ[ORDERS], type=Orders), read_settings(os.environ)))
