"""An MCP server made with the official SDK: `python mcp_server.py stdio`, or `… http PORT`.

Over HTTP it says `listening PORT` on standard error once it can be reached.
"""

import sys
import time
from typing import Any

import uvicorn
from mcp.server.mcpserver import Context, Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations

server = MCPServer("tests")


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def add(a: int, b: int) -> int:
    """Two numbers, added."""
    return a + b


@server.tool(structured_output=False)
def say(text: str) -> str:
    """The same text."""
    return text


@server.tool()
def fail() -> str:
    """Always fails."""
    raise ToolError("it never works")


@server.tool(structured_output=False)
def picture() -> list[Any]:
    """A text and a picture."""
    return ["Look:", Image(data=b"\x89PNG" + b"0" * 100, format="png")]


@server.tool()
def headers(context: Context) -> dict[str, str]:
    """The headers of the request, read backwards."""
    request = context.request_context.request
    return {} if request is None else {name: value[::-1] for name, value in request.headers.items()}


@server.tool()
async def request(context: Context) -> dict[str, Any]:
    """The request of this call: its headers, read backwards, its body, and what else tells who asks."""
    sent = context.request_context.request
    assert sent is not None
    meta = context.request_context.meta or {}
    return {
        "headers": {name: value[::-1] for name, value in sent.headers.items()},
        "body": (await sent.body()).decode(),
        "query": sent.url.query,
        "context": meta.get("turnkeep/context"),
    }


@server.tool()
def hang() -> str:
    """Does not answer for a long time."""
    time.sleep(20)
    return "late"


@server.tool()
async def learn(name: str, context: Context) -> str:
    """Gives the server one more tool."""
    server.add_tool(lambda: name, name=name, description="Learnt.")
    await context.notify_tools_changed()
    return "learnt"


def main() -> None:
    if sys.argv[1] == "stdio":
        server.run("stdio")
        return
    config = uvicorn.Config(server.streamable_http_app(), host="127.0.0.1", port=int(sys.argv[2]), log_level="critical")
    web = uvicorn.Server(config)
    started = web.startup

    async def startup(sockets: Any = None) -> None:
        await started(sockets)
        sys.stderr.write(f"\nlistening {web.servers[0].sockets[0].getsockname()[1]}\n")
        sys.stderr.flush()

    web.startup = startup  # type: ignore[method-assign]
    web.run()


if __name__ == "__main__":
    main()
