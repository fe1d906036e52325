"""A run: one turn of an agent in a sandbox, without a conversation, as the lines that the sandbox writes."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from turnkeep.client.errors import ConnectionLost
from turnkeep.client.stream import TURN_HEADER
from turnkeep.client.transport import Refusal, Transport
from turnkeep.errors import Defect, WorldError
from turnkeep_client.wire.blocks import JsonObject
from turnkeep_client.wire.events import Step

NDJSON = {"accept": "application/x-ndjson"}


class _Line(Struct, frozen=True, kw_only=True, tag_field="type"):
    ts: int | float | UnsetType = UNSET


class RunLog(_Line, frozen=True, kw_only=True, tag="log"):
    level: str
    message: str


class RunDelta(_Line, frozen=True, kw_only=True, tag="delta"):
    text: str


class RunResult(_Line, frozen=True, kw_only=True, tag="result"):
    message: str


class RunError(_Line, frozen=True, kw_only=True, tag="error"):
    code: str
    message: str


RunLine = RunLog | RunDelta | Step | RunResult | RunError

_decode = msgspec.json.Decoder(RunLine).decode


class RunStream:
    """The lines of a run, once. A run is stopped when its stream is left or lost; it is not resumed."""

    def __init__(self, transport: Transport, path: str, body: JsonObject) -> None:
        self._transport = transport
        self._path = path
        self._body = body
        self.turn_id: str | None = None
        """Known once the run has begun; `turns.get` shows what it came to, and its files."""
        self.status: Literal["running", "succeeded", "failed"] = "running"

    async def __aiter__(self) -> AsyncGenerator[RunLine, None]:
        patience = self._transport.patience()
        while True:
            try:
                async with self._transport.stream("POST", self._path, body=self._body, headers=NDJSON) as response:
                    self.turn_id = response.headers.get(TURN_HEADER)
                    async for text in response.aiter_lines():
                        if text.strip():
                            line = _read(text)
                            yield line
                            if isinstance(line, RunResult | RunError):
                                self.status = "succeeded" if isinstance(line, RunResult) else "failed"
                                return
                raise ConnectionLost("The run ended without a last line.", turn_id=self.turn_id)
            except Refusal as refusal:
                await self._transport.after_refusal(refusal.error, refusal.headers, patience)
            except self._transport.transport_errors as exc:
                await self._transport.after(exc, patience, is_safe=False)

    async def result(self) -> str:
        """Run to the end; the words of the result. Raises RunFailed where there is none."""
        message = ""
        async for line in self:
            if isinstance(line, RunError):
                raise RunFailed(line, turn_id=self.turn_id)
            if isinstance(line, RunResult):
                message = line.message
        return message


class RunFailed(WorldError):
    """The run ended without a result; `line` says why."""

    code = "run_failed"

    def __init__(self, line: RunError, *, turn_id: str | None) -> None:
        super().__init__(f"The run failed ({line.code}): {line.message}")
        self.line = line
        self.turn_id = turn_id


def _read(text: str) -> RunLine:
    try:
        line: RunLine = _decode(text)
    except msgspec.MsgspecError as exc:
        raise Defect(f"The run sent a line that this client cannot read: {exc}. Is one of them older?") from exc
    return line
