"""Turns: ask, follow, wait, stop, rate, and read what happened."""

import secrets
from collections.abc import Sequence
from typing import Any, Literal, TypedDict, Unpack

import msgspec

from turnkeep_client.conversations import Provider
from turnkeep_client.retry import OnTrouble
from turnkeep_client.stream import Answer, TurnRequest, TurnStream
from turnkeep_client.transport import Resource, given, part
from turnkeep_client.wire import Accepted, Feedback, SpanContent, Steering, StreamUrl, Timeline, Turn, TurnReplay
from turnkeep_client.wire.blocks import JsonObject
from turnkeep_client.wire.conversations import ConversationFields, IfBusy, Rating, StreamFormat

Blocks = str | list[JsonObject]
"""A message: text, or blocks such as `{"type": "text", "text": …}` and `{"type": "image", …}`."""


class RepeatOptions(TypedDict, total=False):
    """How a turn is asked for, wherever it stands."""

    agent_id: str | None
    model: str | None
    if_busy: IfBusy
    drop_queue: bool
    background: bool
    metadata: JsonObject
    tools: Sequence[JsonObject]
    """Client tools: `{"type": "client", "name": …, "description": …, "input_schema": …}`."""


class EditOptions(RepeatOptions, total=False):
    """How an edited question is asked. Without `attachment_ids` it keeps the files of the old one."""

    attachment_ids: Sequence[str]


class AskOptions(EditOptions, ConversationFields, total=False):
    """How a question is asked. Without `conversation_id` it opens a conversation."""

    conversation_id: str | None


class Turns(Resource):
    """Questions and their answers."""

    def stream(
        self,
        /,
        message: Blocks,
        *,
        idempotency_key: str | None = None,
        on_trouble: OnTrouble | None = None,
        **options: Unpack[AskOptions],
    ) -> TurnStream:
        """A stream that asks when it is first read. Without `conversation_id` it opens a conversation.

        With `background` the turn goes on without a reader; otherwise it is stopped after a grace period.
        """
        return self._asking("/v1/turns", question(message, **options), idempotency_key, on_trouble)

    async def ask(
        self,
        /,
        message: Blocks,
        *,
        idempotency_key: str | None = None,
        on_trouble: OnTrouble | None = None,
        timeout_seconds: float | None = None,
        **options: Unpack[AskOptions],
    ) -> Answer:
        """Ask and wait for the answer. Raises TurnFailed where there is none, and WaitTimeout where it takes longer."""
        async with self.stream(message, idempotency_key=idempotency_key, on_trouble=on_trouble, **options) as stream:
            return await stream.result(timeout_seconds=timeout_seconds)

    async def start(
        self, /, message: Blocks, *, idempotency_key: str | None = None, **options: Unpack[AskOptions]
    ) -> Accepted:
        """Ask in the background and return at once; `wait` for it or `follow` it later."""
        body = question(message, **options) | {"background": True}
        headers = {"idempotency-key": idempotency_key or new_key()}
        return await self._transport.call("POST", "/v1/turns", Accepted, body=body, headers=headers, is_safe=True)

    def follow(self, turn_id: str, *, after: str = "", on_trouble: OnTrouble | None = None) -> TurnStream:
        """The stream of a turn that exists, from its beginning or behind a cursor."""
        return TurnStream(self._transport, turn_id=turn_id, after=after, on_trouble=on_trouble)

    async def wait(self, turn_id: str, *, timeout_seconds: float | None = None) -> Answer:
        """Wait until the turn has ended. Raises TurnFailed where there is no answer, WaitTimeout where it takes
        longer."""
        async with self.follow(turn_id) as stream:
            return await stream.result(timeout_seconds=timeout_seconds)

    async def get(self, turn_id: str) -> Turn:
        """A turn as it is now, with its answer if it has ended."""
        return await self._transport.call("GET", f"/v1/turns/{part(turn_id)}", Turn)

    async def cancel(self, turn_id: str) -> Turn:
        """Stop a turn and return it settled. What was said is kept; a settled turn stays as it is."""
        return await self._transport.call("POST", f"/v1/turns/{part(turn_id)}/cancel", Turn, is_safe=True)

    async def approve(
        self,
        turn_id: str,
        call_id: str,
        *,
        args: JsonObject | None = None,
        remember: Literal["conversation"] | None = None,
    ) -> Turn:
        """Allow a call for which the turn waits, perhaps with other arguments. With `remember`, later calls of the same
        tool in this conversation are not asked about. Raises AlreadyDecided if another decision came first."""
        decision = {"call_id": call_id, "decision": "allow", **given(args=args, remember=remember)}
        return await self.decide(turn_id, [decision])

    async def deny(self, turn_id: str, call_id: str, *, reason: str | None = None) -> Turn:
        """Deny a call for which the turn waits. The model is told the reason."""
        return await self.decide(turn_id, [{"call_id": call_id, "decision": "deny", **given(reason=reason)}])

    async def decide(self, turn_id: str, decisions: Sequence[JsonObject]) -> Turn:
        """Decide about several calls at once: `{"call_id", "decision": "allow" | "deny", …}`. A repeat changes
        nothing."""
        path = f"/v1/turns/{part(turn_id)}/approvals"
        body = {"decisions": list(decisions)}
        return await self._transport.call("POST", path, Turn, body=body, is_safe=True)

    async def results(self, turn_id: str, results: Sequence[JsonObject]) -> Turn:
        """Send what the calls of client tools gave: `{"call_id", "result"}` or `{"call_id", "error"}`. A repeat changes
        nothing."""
        path = f"/v1/turns/{part(turn_id)}/results"
        return await self._transport.call("POST", path, Turn, body={"results": list(results)}, is_safe=True)

    async def steer(self, turn_id: str, message: str, *, idempotency_key: str | None = None) -> Steering:
        """Add words to a turn that runs or waits. They reach the model before its next call; if the turn ends before
        that, they become the next turn."""
        path = f"/v1/turns/{part(turn_id)}/steer"
        headers = {"idempotency-key": idempotency_key or new_key()}
        body = {"message": message}
        return await self._transport.call("POST", path, Steering, body=body, headers=headers, is_safe=True)

    async def stream_url(
        self,
        turn_id: str,
        *,
        after: str | None = None,
        format: StreamFormat | None = None,
        ttl_seconds: int | None = None,
    ) -> StreamUrl:
        """A short-lived address of this turn's stream, which needs no key: for `EventSource` in a browser."""
        body = given(after=after, format=format, ttl_seconds=ttl_seconds)
        path = f"/v1/turns/{part(turn_id)}/stream-url"
        return await self._transport.call("POST", path, StreamUrl, body=body, is_safe=True)

    async def rate(self, turn_id: str, rating: Rating, *, comment: str | None = None) -> Feedback:
        """Say what the user thinks of an answer: `up` or `down`. It replaces what they said before."""
        body = {"rating": rating, "comment": comment}
        return await self._transport.call("PUT", f"/v1/turns/{part(turn_id)}/feedback", Feedback, body=body)

    async def unrate(self, turn_id: str) -> None:
        """Take the rating back."""
        await self._transport.fetch("DELETE", f"/v1/turns/{part(turn_id)}/feedback")

    async def timeline(self, turn_id: str) -> Timeline:
        """What happened in the turn: model calls, tools, waits, retries and takeovers, with times, tokens and cost."""
        return await self._transport.call("GET", f"/v1/turns/{part(turn_id)}/timeline", Timeline)

    async def span(self, turn_id: str, span_id: str) -> SpanContent:
        """What one span of the timeline has in it: arguments and result of a tool, or what the model said."""
        path = f"/v1/turns/{part(turn_id)}/timeline/{part(span_id)}"
        return await self._transport.call("GET", path, SpanContent)

    async def replay(
        self, turn_id: str, *, iteration: int | None = None, provider: Provider | None = None
    ) -> TurnReplay:
        """Exactly what one call of the model was sent, by default the last one, with its tools. For service keys, and
        for admins in their own conversations."""
        query = {"iteration": iteration, "provider": provider}
        return await self._transport.call("GET", f"/v1/turns/{part(turn_id)}/replay", TurnReplay, query=query)

    async def trace(self, turn_id: str) -> list[JsonObject]:
        """Every event and log line of a turn, in order (service keys only)."""
        raw = await self._transport.fetch("GET", f"/v1/turns/{part(turn_id)}/trace")
        return [msgspec.json.decode(line, type=dict) for line in raw.splitlines() if line]

    def regenerate(
        self,
        /,
        conversation_id: str,
        turn_id: str,
        *,
        idempotency_key: str | None = None,
        on_trouble: OnTrouble | None = None,
        **options: Unpack[RepeatOptions],
    ) -> TurnStream:
        """Ask the same again: a new turn beside the old one."""
        path = _beside(conversation_id, turn_id, "regenerate")
        return self._asking(path, given(**options), idempotency_key, on_trouble)

    def edit(
        self,
        /,
        conversation_id: str,
        turn_id: str,
        message: Blocks,
        *,
        idempotency_key: str | None = None,
        on_trouble: OnTrouble | None = None,
        **options: Unpack[EditOptions],
    ) -> TurnStream:
        """Ask something else in the same place: a new turn beside the old one."""
        path = _beside(conversation_id, turn_id, "edit")
        return self._asking(path, question(message, **options), idempotency_key, on_trouble)

    def _asking(self, path: str, body: JsonObject, key: str | None, on_trouble: OnTrouble | None) -> TurnStream:
        asking = TurnRequest(path=path, body=body, key=key or new_key())
        return TurnStream(self._transport, asking, on_trouble=on_trouble)


def new_key() -> str:
    """A random idempotency key."""
    return "client-" + secrets.token_hex(16)


def question(message: Blocks, **options: Any) -> JsonObject:
    """The body of a question: only what was given."""
    return {"message": message} | given(**options)


def _beside(conversation_id: str, turn_id: str, verb: str) -> str:
    return f"/v1/conversations/{part(conversation_id)}/turns/{part(turn_id)}/{verb}"
