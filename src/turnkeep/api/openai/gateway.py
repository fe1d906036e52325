"""The model gateway: the agent's model for a turn in a sandbox, as OpenAI's Chat Completions.

No provider's key leaves the server. A call is answered only for the token of a turn that runs, only with the model of
that turn, and is broken off when the turn ends; its tokens are counted with the turn's own, on whichever worker.
Errors have OpenAI's shape, since it is OpenAI's clients that read them.
"""

import asyncio
import time
from contextlib import aclosing

from starlette.types import ASGIApp, Receive, Scope, Send

from turnkeep.api.http.disconnects import ClientDisconnected
from turnkeep.api.http.endpoints import Call, Endpoints, Nothing, Policy, Reply
from turnkeep.api.http.problem_details import status_of
from turnkeep.api.http.requests import read_body
from turnkeep.api.http.responses import json_response
from turnkeep.api.identity.turn_tokens import bearer, sandbox_turn_id, turn_has_ended, while_turn_runs
from turnkeep.api.openai import chat_completions as chat
from turnkeep.clock import system_clock
from turnkeep.compiler import compile
from turnkeep.compiler.window import UNLIMITED
from turnkeep.errors import InvalidRequest, TurnkeepError
from turnkeep.ids import new_call_id
from turnkeep.model.turns import Turn
from turnkeep.providers import ports
from turnkeep.providers.ports import Delta, ModelRequest, ProviderFailed, ProviderTimedOut, Restarted, ToolOffer
from turnkeep.runtime import Runtime
from turnkeep_client.wire.blocks import text_of

BODY_BYTES = 32 * 1024 * 1024
"""Large enough for a history with images. Only a sandbox with the token of a turn can send it."""

_HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]


endpoints = Endpoints("sandbox")


@endpoints.add(
    "POST",
    "/v1/sandbox/{turn_id}/chat/completions",
    policy=Policy.TURN,
    replies=(Reply(status=200, meaning="OpenAI's chat completion, or its chunks"),),
    is_described=False,
)
async def complete_chat(call: Call[Nothing, Nothing]) -> ASGIApp:
    """The model of a running turn, for its sandbox."""
    try:
        turn = await call.runtime.gateway_tokens.turn(call.runtime.store, sandbox_turn_id(call), bearer(call))
        request = chat.read_request(await read_body(call.receive, call.headers, limit=BODY_BYTES))
        asked = await _model_request(call.runtime, turn, request)
    except TurnkeepError as exc:
        return _refused(exc)
    return _ModelCall(call.runtime, turn, request, asked)


async def _model_request(runtime: Runtime, turn: Turn, request: chat.ChatRequest) -> ModelRequest:
    """What the provider is sent: the same compilation as for a loop in the server."""
    model = turn.model or runtime.settings.model
    if request.model != model:
        raise InvalidRequest(f"This turn may use only the model {model!r}.")
    provider = runtime.providers.named(model)
    can = await provider.abilities(model)
    compiled = compile(
        chat.rows_of(request, turn.id),
        target=provider.target,
        open_turn=turn.id,
        budget=UNLIMITED,
        system=chat.system_of(request),
        sees_images=can.sees_images,
        thinking=can.thinking,
    )
    offers = {offer.name: offer for offer in chat.offers_of(request)}
    for name in compiled.tool_names:
        gone = ToolOffer(name=name, description="No longer available.", input_schema={"type": "object"})
        offers.setdefault(name, gone)
    return ModelRequest(
        model=model,
        messages=compiled.messages,
        system=compiled.system,
        may_think=compiled.thinking,
        tools=tuple(offers.values()),
        may_call=request.may_call,
        timeout_seconds=runtime.settings.provider_timeout_seconds,
    )


class _ModelCall:
    """The response to one model call, as an ASGI app."""

    def __init__(self, runtime: Runtime, turn: Turn, request: chat.ChatRequest, asked: ModelRequest) -> None:
        self._runtime = runtime
        self._turn = turn
        self._request = request
        self._asked = asked
        self._has_begun = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream until the reply is complete, the client disconnects, or the turn ends."""
        last: ASGIApp | TurnkeepError | None
        try:
            last = await while_turn_runs(self._runtime.store, self._turn, receive, self._stream(send))
        except ClientDisconnected:
            return
        except TurnkeepError as exc:
            last = exc
        await self._finish(last, scope, receive, send)

    async def _stream(self, send: Send) -> ASGIApp | None:
        """Send the reply while it comes. If the client wants it whole, return the response instead."""
        completion = chat.Completion(call_id=new_call_id(), model=self._asked.model, created=system_clock() // 1000)
        began, said = time.monotonic(), list[str]()
        reply: ports.Reply | None = None
        try:
            reply = await self._read_reply(completion, send, said)
        finally:
            seconds, usage = time.monotonic() - began, None if reply is None else reply.usage
            self._runtime.observer.model_called(self._asked.model, seconds=seconds, usage=usage)
        return await self._end(completion, send, reply, "".join(said))

    async def _read_reply(self, completion: chat.Completion, send: Send, said: list[str]) -> ports.Reply:
        """The complete reply. Its text is sent while it comes."""
        loop, limit = asyncio.get_running_loop(), self._asked.timeout_seconds
        provider = self._runtime.providers.named(self._asked.model)
        try:
            async with asyncio.timeout(limit) as timer, aclosing(provider.speak(self._asked)) as spoken:
                async for piece in spoken:
                    timer.reschedule(None)  # a slow client must not count against the model
                    match piece:
                        case Delta():
                            await self._send_delta(completion, send, piece, said)
                        case Restarted():
                            if said and self._request.stream:
                                raise ProviderFailed(f"The model broke off and began again: {piece.reason}")
                        case ports.Reply():
                            return piece
                    timer.reschedule(loop.time() + limit)
        except TimeoutError as exc:
            raise ProviderTimedOut(f"The model sent nothing for {limit:g} seconds.") from exc
        raise ProviderFailed("The model's stream ended without an answer.")

    async def _send_delta(self, completion: chat.Completion, send: Send, piece: Delta, said: list[str]) -> None:
        if self._request.stream:
            await self._send(completion, send, completion.said(piece.text, piece.kind))
            if piece.kind == "text":
                said.append(piece.text)

    async def _end(self, completion: chat.Completion, send: Send, reply: ports.Reply, said: str) -> ASGIApp | None:
        """Add the tokens to those of the turn, then send the end of the reply."""
        turn, call_id = self._turn, completion.call_id
        if not await self._runtime.store.count_usage(turn.id, turn.attempt, reply.usage, call_id=call_id):
            raise turn_has_ended()
        if not self._request.stream:
            return json_response(completion.whole(reply))
        text = text_of(reply.blocks)
        unsaid = text.removeprefix(said) if text.startswith(said) else ""
        rest = completion.ended(reply, unsaid=unsaid, wants_usage=self._request.wants_usage)
        await self._send(completion, send, b"".join(rest))
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        return None

    async def _send(self, completion: chat.Completion, send: Send, body: bytes) -> None:
        """The response begins with the first text, so that a refusal of the provider can still become a status."""
        if not self._has_begun:
            self._has_begun = True
            await send({"type": "http.response.start", "status": 200, "headers": list(_HEADERS)})
            body = completion.begun() + body
        await send({"type": "http.response.body", "body": body, "more_body": True})

    async def _finish(self, last: ASGIApp | TurnkeepError | None, scope: Scope, receive: Receive, send: Send) -> None:
        match last:
            case None:
                return
            case TurnkeepError() if self._has_begun:
                frame = chat.error_frame(last.detail, code=last.code)
                await send({"type": "http.response.body", "body": frame, "more_body": False})
            case TurnkeepError():
                await _refused(last)(scope, receive, send)
            case answer:
                await answer(scope, receive, send)


def _refused(error: TurnkeepError) -> ASGIApp:
    """The error in OpenAI's format. The runner decides whether to try again, not its SDK."""
    match error:
        case ProviderTimedOut():
            status = 504
        case ProviderFailed():
            status = 502
        case _:
            status = status_of(type(error))
    kind = "authentication_error" if status == 401 else "invalid_request_error" if status < 500 else "server_error"
    body = chat.error_body(error.detail, kind=kind, code=error.code)
    return json_response(body, status=status, headers={"x-should-retry": "false"})
