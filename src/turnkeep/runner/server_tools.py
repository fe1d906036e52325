"""The agent's tools that are no work for a box: the server calls them, with credentials that stay there."""

from typing import Any

import aiohttp
import msgspec
from msgspec import Struct

from turnkeep.runner.envelope import GatewayAccess, OfferedTool
from turnkeep.tools.ports import CallContext, Outcome, Passage, ToolSpec
from turnkeep_client.wire.blocks import JsonObject, JsonValue
from turnkeep_client.wire.events import Source

GRACE_SECONDS = 15.0
"""The server keeps the time of a call; so much longer do we wait for what it says about it."""
ANSWER_BYTES = 8 * 1024 * 1024
_UNKNOWN = "outcome_unknown: the call may or may not have taken effect; check before you repeat it."


class _Answer(Struct, frozen=True):
    result: JsonValue = None
    error: str | None = None
    sources: tuple[Source, ...] = ()
    passages: tuple[Passage, ...] = ()
    detail: str = ""


class ServerTool:
    """One tool, called through the gateway."""

    def __init__(self, offered: OfferedTool, access: GatewayAccess, session: aiohttp.ClientSession) -> None:
        self.spec = ToolSpec(
            name=offered.name,
            description=offered.description,
            input_schema=offered.input_schema,
            timeout_seconds=offered.timeout_seconds + 2 * GRACE_SECONDS,
        )
        self._access = access
        self._session = session
        self._timeout = aiohttp.ClientTimeout(total=offered.timeout_seconds + GRACE_SECONDS, connect=10)

    async def call(self, args: JsonObject, context: CallContext) -> Outcome:
        """What the server says that it came to. A call whose answer was lost is not repeated."""
        body = {"call_id": context.call_id, "name": self.spec.name, "arguments": args}
        try:
            async with self._session.post(
                f"{self._access.base_url}/tools",
                data=msgspec.json.encode(body),
                headers={"Authorization": f"Bearer {self._access.token}", "Content-Type": "application/json"},
                allow_redirects=False,
                timeout=self._timeout,
            ) as response:
                return await _outcome(response)
        except aiohttp.ClientConnectorError:
            return Outcome(error="The server that calls this tool cannot be reached now.")
        except (aiohttp.ClientError, TimeoutError, msgspec.DecodeError):
            return Outcome(error=_UNKNOWN)


async def _outcome(response: Any) -> Outcome:
    data = bytearray()
    async for piece in response.content.iter_chunked(64 * 1024):
        data += piece
        if len(data) > ANSWER_BYTES:
            return Outcome(error=f"The answer is longer than {ANSWER_BYTES:,} bytes.")
    answer = msgspec.json.decode(data, type=_Answer)
    if response.status == 200:
        return Outcome(result=answer.result, error=answer.error, sources=answer.sources, passages=answer.passages)
    return Outcome(error=f"The server did not call the tool (status {response.status}). {answer.detail}".rstrip())
