"""A server for clients that are written in JavaScript. Its model says what the user's message tells it to.

Started as `python -m tests.wires.server FOLDER PORT`. It prints its address, the address of its key and an agent as one
line of JSON, and stops when its standard input ends. A message `{"rounds": [["Hello ", {"call": "weather"}], ["Bye"]]}`
is a script: one list for each time that the model is asked. After that it repeats the last message.
"""

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from turnkeep.api.app import Server, bind, create_app
from turnkeep.config import Settings
from turnkeep.providers.ports import ModelRequest, ProviderFailed
from turnkeep.providers.registry import ProviderRegistry
from turnkeep.providers.scripted import Call, Fail, Line, Pause, Restart, Script, ScriptedProvider, Think
from turnkeep.runtime import Runtime, open_runtime
from turnkeep.tools.functions import tool
from turnkeep.tools.ports import CallContext, Outcome, Tool, ToolSpec
from turnkeep.tools.registry import ToolRegistry
from turnkeep_client import AsyncTurnkeep
from turnkeep_client.wire.blocks import JsonObject
from turnkeep_client.wire.events import Source

KEY = "the-key-of-the-clients-in-javascript"
BEGINNING = '{"rounds"'


@tool
def weather(place: str = "Oslo") -> dict[str, str]:
    """How the sky is in a place."""
    if place == "Nowhere":
        raise ValueError("no such place")
    return {"place": place, "sky": "snow"}


@tool
def pay(amount: int = 1) -> str:
    """Pay this amount."""
    return f"paid {amount}"


class Library:
    """A tool whose results have sources."""

    spec = ToolSpec(name="library", description="Find a book.", input_schema={"type": "object"}, is_idempotent=True)

    async def call(self, args: JsonObject, context: CallContext) -> Outcome:
        book = Source(title="A book", snippet="Its first line.", url="https://example.org/book")
        page = Source(title="A page", snippet="Its words.", page_id="page_01977000000070008000000000000031")
        return Outcome(result="two books", sources=(book, page))


TOOLS: tuple[Tool, ...] = (weather, pay, Library())
AGENT: dict[str, Any] = {
    "name": "Helper",
    "tools": ["weather", "library", {"type": "native", "name": "pay", "approval": "always"}],
}


def answer(request: ModelRequest) -> Script:
    """The next round of the script in the last message that has one."""
    place, script = max(_scripts(request), key=lambda found: found[0], default=(-1, None))
    texts = [_text(message) for message in request.messages if message["role"] == "user"]
    said = sum(message["role"] == "assistant" for message in request.messages[place:])
    if script is None or said >= len(script["rounds"]):
        return ["You said: ", texts[-1] if texts else "nothing"]
    return [_line(item) for item in script["rounds"][said]]


def _scripts(request: ModelRequest) -> Iterator[tuple[int, Any]]:
    for place, message in enumerate(request.messages):
        text = _text(message)
        if message["role"] == "user" and BEGINNING in text:
            yield place, json.JSONDecoder().raw_decode(text[text.index(BEGINNING) :])[0]


def _text(message: JsonObject) -> str:
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "\n".join(part.get("text", "") for part in content)


def _line(item: Any) -> Line:
    match item:
        case str():
            return item
        case {"think": str(text)}:
            return Think(text)
        case {"call": str(name), **more}:
            return Call(name, cast(JsonObject, more.get("args", {})))
        case {"pause": seconds}:
            return Pause(seconds)
        case {"restart": _}:
            return Restart()
        case {"fail": str(text)}:
            return Fail(ProviderFailed(text))
        case _:
            raise ValueError(f"not in a script: {item}")


async def serve(folder: Path, port: int) -> None:
    settings = Settings(
        port=port, data_dir=folder, bootstrap_key=KEY, model="scripted", drain_seconds=0.0, lease_seconds=5.0
    )
    with bind(settings) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        tools = ToolRegistry(TOOLS)
        async with open_runtime(
            settings, providers=ProviderRegistry([ScriptedProvider(answer)]), tools=tools
        ) as runtime:
            await _serve(runtime, listener, url)


async def _serve(runtime: Runtime, listener: Any, url: str) -> None:
    ready = asyncio.Event()
    server = Server(create_app(runtime), runtime, on_ready=ready.set)
    serving = asyncio.create_task(server.serve([listener]))
    await ready.wait()
    async with AsyncTurnkeep(url, KEY) as client:
        agents = [agent async for agent in client.agents.list()]
        agent = agents[0] if agents else await client.agents.create(**AGENT)
    facts = {"url": url, "key": KEY, "agent": agent.id, "pid": os.getpid()}
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()
    commands = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    await commands.read()
    server.stop()
    await serving


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), int(sys.argv[2])))
