"""Runs: one turn of an agent in a sandbox, without a conversation. The response is what the sandbox writes."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from msgspec import UNSET
from starlette.types import ASGIApp, Receive, Scope, Send

from turnkeep.api.http.disconnects import ClientDisconnected, while_connected
from turnkeep.api.http.endpoints import Call, Endpoints, Nothing, Policy, Reply
from turnkeep.api.native.message_blocks import check_attachments
from turnkeep.api.native.turns import TURN_HEADER
from turnkeep.engine import Draining, Options, Question
from turnkeep.errors import NotFound
from turnkeep.ids import AgentId, TurnId
from turnkeep.model.principals import Principal
from turnkeep.runtime import Runtime
from turnkeep.store.commands import NewConversation
from turnkeep_client import wire
from turnkeep_client.wire.blocks import Text
from turnkeep_client.wire.events import Failure, Result
from turnkeep_client.wire.sandbox import Ending, ErrorLine, Line, ResultLine, encode_line

endpoints = Endpoints("agents")

UNSENT_BYTES = 16 * 1024 * 1024
"""A client that has this much unread data is disconnected."""


@endpoints.add(
    "POST",
    "/v1/agents/{agent_id}/runs",
    policy=Policy.MEMBER,
    body=wire.NewRun,
    replies=(Reply(status=200, meaning="The lines of the sandbox", type=str, media_type="application/x-ndjson"),),
    errors=(404, 429, 503, 507),
)
async def run_agent(call: Call[wire.NewRun, Nothing]) -> ASGIApp:
    """Run an agent once. Its lines come as they are written, `log` included; to leave is to stop it.

    `Turnkeep-Turn` names the turn, whose `response` and `files` are what the run came to.
    """
    body = call.body
    question = Question(
        principal=call.principal,
        message=(Text(text=body.prompt),) if body.prompt.strip() else (),
        new=NewConversation(kind="run", agent_id=AgentId(call.id("agent_id", "agent"))),
        attachment_ids=check_attachments(body.attachment_ids, call.runtime.settings),
        options=Options(background=True, source=call.identity.source),
    )
    pipe = LinePipe()
    claimed = await call.runtime.engine.ask(question, take_lines=pipe.take)
    call.notes["turn_id"] = claimed.turn.id
    return RunResponse(call.runtime, call.principal, claimed.turn.id, pipe)


class LinePipe:
    """Lines from the worker, which never waits, to one client."""

    def __init__(self) -> None:
        self._unsent: list[bytes] = []
        self._unsent_bytes = 0
        self.came = asyncio.Event()
        self.is_flooded = False
        self.ending: Ending | None = None
        """The last line of the sandbox. It is not forwarded: the settled turn decides how the run ended."""

    def take(self, lines: Sequence[Line]) -> None:
        match lines:
            case [(ResultLine() | ErrorLine()) as ending]:
                self.ending = ending
                return
        encoded = b"".join(map(encode_line, lines))
        self._unsent_bytes += len(encoded)
        self.is_flooded = self._unsent_bytes > UNSENT_BYTES
        if not self.is_flooded:
            self._unsent.append(encoded)
        self.came.set()

    def empty(self) -> bytes:
        """All lines that wait to be sent, which are then forgotten."""
        self.came.clear()
        body = b"".join(self._unsent)
        self._unsent, self._unsent_bytes = [], 0
        return body


class RunResponse:
    """The response to one run, as an ASGI app. The run is stopped when the client disconnects."""

    def __init__(self, runtime: Runtime, principal: Principal, turn_id: TurnId, pipe: LinePipe) -> None:
        self._runtime = runtime
        self._principal = principal
        self._turn_id = turn_id
        self._pipe = pipe

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [
            (b"content-type", b"application/x-ndjson"),
            (b"cache-control", b"no-store, no-transform"),
            (b"x-accel-buffering", b"no"),
            (TURN_HEADER.encode(), self._turn_id.encode()),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        is_complete = False
        try:
            with suppress(ClientDisconnected):
                is_complete = await while_connected(receive, self._forward(send))
        finally:
            if not is_complete:
                with suppress(NotFound):  # deleted meanwhile, which stopped it
                    await self._runtime.engine.cancel(self._principal, self._turn_id)

    async def _forward(self, send: Send) -> bool:
        """Forward every line as it comes, then the last one. False for a client that does not keep up."""
        settling = asyncio.create_task(self._ending())
        try:
            while not settling.done():
                coming = asyncio.create_task(self._pipe.came.wait())
                await asyncio.wait({settling, coming}, return_when=asyncio.FIRST_COMPLETED)
                coming.cancel()
                if self._pipe.is_flooded:
                    return False
                if body := self._pipe.empty():
                    await send({"type": "http.response.body", "body": body, "more_body": True})
            body = self._pipe.empty() + encode_line(settling.result())
            await send({"type": "http.response.body", "body": body, "more_body": False})
            return True
        finally:
            settling.cancel()

    async def _ending(self) -> Ending:
        """The last line: how the turn ended, whether the sandbox, the server or a user ended it."""
        store = self._runtime.store
        try:
            turn = await self._runtime.engine.wait(self._turn_id)
        except Draining as exc:
            return ErrorLine(code=exc.code, message=exc.detail)
        [last] = await store.events(turn.id, after=turn.last_seq - 1)
        said = self._pipe.ending
        match last.event:
            case Result():
                ts = said.ts if isinstance(said, ResultLine) else UNSET
                return ResultLine(message=last.event.message, ts=ts)
            case Failure():
                ts = said.ts if isinstance(said, ErrorLine) and said.code == last.event.code else UNSET
                return ErrorLine(code=last.event.code, message=last.event.message, ts=ts)
            case other:
                raise AssertionError(f"a settled turn does not end with {type(other).__name__}")
