"""An MCP server of the year 2024 over stdio, without any library, so that it starts quickly.

It initializes, lists its tools one per page, announces changes unasked, and exits on request.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

TOOLS = ["first", "learn", "environment", "call_meta", "hang", "count", "count_and_die", "die_once", "refuse", "blab"]


def say(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def call(name: str, args: dict[str, Any], meta: dict[str, Any]) -> str:
    match name:
        case "learn":
            TOOLS.append(args["name"])
            say({"method": "notifications/tools/list_changed"})
        case "environment":
            return json.dumps({name: value[::-1] for name, value in os.environ.items()})
        case "call_meta":
            return json.dumps(meta)
        case "blab":
            return f"my key is {os.environ['KEY']}, keep it"
        case "hang":
            time.sleep(3_600)
        case "count":
            return str(count(args["file"]))
        case "count_and_die":
            count(args["file"])
            os._exit(1)
        case "die_once":
            if count(args["file"]) == 1:
                os._exit(1)
    return f"{name} {args.get('text', '')}".strip()


def count(file: str) -> int:
    with Path(file).open("a") as handle:
        handle.write("x")
    return len(Path(file).read_text())


def answer(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    if method == "initialize":
        return {
            "protocolVersion": "2024-11-05",
            "capabilities": {"tools": {"listChanged": True}},
            "serverInfo": {"name": "old", "version": "1"},
        }
    if method == "tools/list":
        place = int(params.get("cursor", 0))
        name = TOOLS[place]
        hints = {"idempotentHint": True} if name == "die_once" else {}
        page = {"tools": [{"name": name, "inputSchema": {"type": "object"}, "annotations": hints}]}
        return page | ({"nextCursor": str(place + 1)} if place + 1 < len(TOOLS) else {})
    if method == "tools/call" and params["name"] != "refuse":
        text = call(params["name"], params.get("arguments") or {}, params.get("_meta") or {})
        return {"content": [{"type": "text", "text": text}]}
    return None


def main() -> None:
    for line in sys.stdin:
        request = json.loads(line)
        if "id" not in request:
            continue
        result = answer(request["method"], request.get("params") or {})
        if result is None:
            say({"id": request["id"], "error": {"code": -32601, "message": "there is nothing of that kind"}})
        else:
            say({"id": request["id"], "result": result})


if __name__ == "__main__":
    main()
