"""Turnkeep and the official SDKs read the same streams and understand the same, and the SDKs accept our requests."""

import json
from collections.abc import Iterable, Sequence
from random import Random
from typing import Any

import anthropic
import msgspec
import openai
import pytest
from anthropic._constants import ANTHROPIC_API_VERSION
from anthropic.types.message_create_params import MessageCreateParamsStreaming
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.chat.completion_create_params import CompletionCreateParamsStreaming
from openai.types.responses.response_create_params import ResponseCreateParamsStreaming
from pydantic import TypeAdapter, ValidationError

from tests.property_tests import examples
from tests.providers.model_requests import WEATHER, request_for, row
from tests.providers.wire.script import Call, Item, Say, Script, Stop, Think
from tests.providers.wire.sdk import Heard, event_samples, sdk_events, sdk_heard
from tests.providers.wire.server import ByteServer, Request, http_response
from tests.providers.wire.vendors import ANTHROPIC, CHAT, RESPONSES, VENDORS, Vendor, connected
from turnkeep.model.sampling import OutputFormat, Sampling
from turnkeep.providers.anthropic import API_VERSION
from turnkeep.providers.drafts import Draft
from turnkeep.providers.failures import FAILURES
from turnkeep.providers.ports import Delta, ModelRequest, ProviderFailed, Reply
from turnkeep.providers.retry import RetryPolicy
from turnkeep.providers.wire import EventSplitter
from turnkeep_client.wire.blocks import Image, Reasoning, Text, ToolResult, ToolUse, text_of

each_vendor = pytest.mark.parametrize("vendor", VENDORS, ids=lambda vendor: vendor.name)

RICH: Script = (
    Think("Hm, 😀.", "cHJvb2Y="),
    Say('Grüße: "12 °C"\n\u2028 \\ \x7f', pieces=4),
    Call("weather", {"city": "Zürich", "days": [1, 2.5, None]}),
    Call("weather", ""),
)


def frames(vendor: Vendor, script: Script) -> list[bytes]:
    """The events of this reply, as the fake server of the protocol sends them."""
    wire = vendor.wire()
    body = {"model": "m", "stream_options": {"include_usage": True}, "include": ["x"], "messages": []}
    if vendor is RESPONSES:
        from tests.providers.wire.openai_responses import _Stream

        return [frame for frame in _Stream(body).frames(script) if isinstance(frame, bytes)]
    if vendor is CHAT:
        return [frame for frame in wire._frames(body, script) if isinstance(frame, bytes)]
    from tests.providers.wire.anthropic import _frames

    return [frame for frame in _frames(body, script) if isinstance(frame, bytes)]


def drafted(vendor: Vendor, chunks: Iterable[bytes]) -> tuple[Draft[Any], list[Delta]]:
    """These bytes through our reader. Raises what it raises."""
    draft = vendor.provider("http://127.0.0.1:9")._draft()
    splitter, pieces = EventSplitter(), []
    for chunk in chunks:
        for name, data in splitter.split(chunk):
            draft.add(name, data)
            if draft.is_done:
                break
        pieces += draft.pieces()
        if draft.is_done:
            break
    return draft, pieces


def heard(vendor: Vendor, chunks: Iterable[bytes]) -> Heard:
    draft, pieces = drafted(vendor, chunks)
    reply = draft.reply()
    assert "".join(piece.text for piece in pieces if piece.kind == "text") == text_of(reply.blocks)
    thoughts = [block for block in reply.blocks if isinstance(block, Reasoning)]
    proofs = [block.signature or block.data for block in thoughts]
    return Heard(
        text=text_of(reply.blocks),
        reasoning="".join(block.text for block in thoughts),
        proofs=tuple(proof for proof in proofs if proof),
        calls=tuple((block.name, block.input) for block in reply.blocks if isinstance(block, ToolUse)),
        usage=reply.usage,
        is_cut_off=reply.finish == "length",
    )


class TestTheSameStream:
    @each_vendor
    def test_is_understood_alike_wherever_it_is_split(self, vendor: Vendor) -> None:
        stream = b"".join(frames(vendor, RICH))
        expected = sdk_heard(vendor.name, [stream])
        assert expected.text
        assert len(expected.calls) == 2
        assert heard(vendor, [stream[place : place + 1] for place in range(len(stream))]) == expected
        for place in range(len(stream)):
            assert heard(vendor, [stream[:place], stream[place:]]) == expected

    @each_vendor
    @settings(max_examples=examples(25, at_night=1_000), deadline=None)
    @given(data=st.data())
    def test_is_understood_alike_in_any_form(self, vendor: Vendor, data: st.DataObject) -> None:
        script: list[Item] = list(data.draw(st.lists(SPOKEN, min_size=1, max_size=4)))
        if vendor is not ANTHROPIC and data.draw(st.booleans()):
            script.append(Say(data.draw(WORDS), is_refusal=True))
        if data.draw(st.booleans()):
            script = [Say("So"), *script, Stop(vendor.cut_off)]
        stream = b"".join(reframed(frame, data) for frame in frames(vendor, script))
        assert heard(vendor, split(stream, data)) == sdk_heard(vendor.name, split(stream, data))

    @pytest.mark.parametrize("vendor", [CHAT, RESPONSES], ids=lambda vendor: vendor.name)
    def test_may_be_a_refusal(self, vendor: Vendor) -> None:
        stream = b"".join(frames(vendor, [Say("I cannot help with that.", is_refusal=True)]))
        assert heard(vendor, [stream]) == sdk_heard(vendor.name, [stream])
        assert heard(vendor, [stream]).text == "I cannot help with that."


WORDS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)
ARGUMENTS = st.dictionaries(WORDS, WORDS | st.integers(0, 9), max_size=3)
SPOKEN = st.one_of(
    st.builds(Say, WORDS, st.integers(1, 6)),
    st.builds(Think, WORDS | st.just(""), st.text("abcXYZ019=", min_size=1, max_size=20)),
    st.builds(Call, st.sampled_from(["weather", "search"]), ARGUMENTS),
)


def reframed(frame: bytes, data: st.DataObject) -> bytes:
    """The same event in another form: order of keys, unknown fields, line ends, blanks, comments. It counts other
    tokens."""
    lines = frame.decode().strip("\n").split("\n")
    end = data.draw(st.sampled_from(["\n", "\r\n", "\r"]))
    sent: list[str] = [": a comment"] if data.draw(st.integers(0, 9)) == 0 else []
    for line in lines:
        name, _, value = line.partition(": ")
        if name != "data" or not value.startswith("{"):
            sent.append(line)
            continue
        chance = Random(data.draw(st.integers(0, 2**32)))
        value = json.dumps(shuffled(json.loads(value), chance), ensure_ascii=data.draw(st.booleans()), indent=0)
        blank = data.draw(st.sampled_from(["", " "]))
        is_one_line = data.draw(st.booleans())
        sent += [f"data:{blank}{part}" for part in ([value.replace("\n", "")] if is_one_line else value.split("\n"))]
    return (end.join(sent) + end + end).encode()


def shuffled(value: Any, chance: Random) -> Any:
    """The same at every depth. Arguments of a call may have any names, so none is added there."""
    if isinstance(value, list):
        return [shuffled(each, chance) for each in value]
    if not isinstance(value, dict):
        return value
    fields = [
        (name, chance.choice([0, chance.randint(0, 10**6)]) if name.endswith("_tokens") else shuffled(each, chance))
        for name, each in value.items()
        if name != "input"
    ]
    if chance.randrange(5) == 0:
        fields.append(("zz_unknown", {"deep": {"er": None, "words": ["a"]}}))
    fields += [(name, each) for name, each in value.items() if name == "input"]
    chance.shuffle(fields)
    return dict(fields)


def split(stream: bytes, data: st.DataObject) -> list[bytes]:
    places = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=20)))
    return [stream[start:end] for start, end in zip([0, *places], [*places, len(stream)], strict=True)]


SAMPLES = [
    pytest.param(vendor, event, id=f"{vendor.name}-{number}-{event.get('type', 'chunk')}")
    for vendor in VENDORS
    for number, event in enumerate(event_samples(vendor.name))
]


class TestEveryEvent:
    """A sample of each event that the installed SDK knows, in the middle of a reply."""

    TEXTS = frozenset({"response.output_text.delta", "response.refusal.delta"})
    THOUGHTS = frozenset({"response.reasoning_summary_text.delta", "response.reasoning_text.delta"})

    def test_is_one_of_many(self) -> None:
        assert len(SAMPLES) > 70

    @pytest.mark.parametrize("vendor, event", SAMPLES)
    def test_is_understood_alike(self, vendor: Vendor, event: dict[str, Any]) -> None:
        kind = event.get("type", "")
        name = f"event: {kind}\n".encode() if kind else b""
        sample = name + b"data: " + msgspec.json.encode(event) + b"\n\n"
        sent = frames(vendor, [Say("It is "), Say("sunny.")])
        sent.insert(5 if vendor is RESPONSES else 3, sample)
        stream = [b"".join(sent)]
        expected = self._shown(sdk_events(vendor.name, stream))
        if kind in {"error", "response.failed"}:
            with pytest.raises(FAILURES) as failed:
                drafted(vendor, stream)
            assert "sample" in str(getattr(failed.value, "body", failed.value))
            return
        _, pieces = drafted(vendor, stream)
        text = "".join(piece.text for piece in pieces if piece.kind == "text")
        assert (text, "".join(piece.text for piece in pieces if piece.kind == "reasoning").strip()) == expected

    def _shown(self, events: Iterable[Any]) -> tuple[str, str]:
        """Text and reasoning, read from the objects of the SDK, to the event that ends the reply."""
        text = thought = ""
        for event in events:
            kind = getattr(event, "type", "chunk")
            if kind == "chunk":
                delta = event.choices[0].delta if event.choices else None
                text += ((delta.content or "") + (delta.refusal or "")) if delta else ""
                continue
            if kind == "content_block_start":
                text += getattr(event.content_block, "text", "")
                thought += getattr(event.content_block, "thinking", "")
            elif kind == "content_block_delta":
                text += getattr(event.delta, "text", "")
                thought += getattr(event.delta, "thinking", "")
            elif kind in self.TEXTS:
                text += event.delta
            elif kind in self.THOUGHTS:
                thought += event.delta
            elif kind in {"message_stop", "response.completed", "response.incomplete"}:
                break
        return text, thought


class TestErrors:
    BODIES = (
        b'{"error":{"message":"Too much","type":"rate_limit_error","code":"rate_limit_exceeded"}}',
        b'{"type":"error","error":{"type":"overloaded_error","message":"Too much"}}',
        b'{"message":"Too much"}',
        b"Too much",
    )

    @each_vendor
    @pytest.mark.parametrize("status", [400, 401, 404, 429, 500, 529])
    @pytest.mark.parametrize("body", BODIES)
    async def test_of_a_response_have_the_same_status_and_words(self, vendor: Vendor, status: int, body: bytes) -> None:
        with pytest.raises((anthropic.APIStatusError, openai.APIStatusError)) as theirs:
            list(sdk_events(vendor.name, [body], status=status))
        async with ByteServer(http_response(body, status=status, content_type="application/json")) as server:
            provider = vendor.provider(server.url, retry_policy=RetryPolicy(tries=1))
            try:
                with pytest.raises(ProviderFailed) as ours:
                    await anext(provider.speak(ModelRequest(model=vendor.model, messages=[])))
            finally:
                await provider.close()
        assert isinstance(theirs.value, anthropic.APIStatusError | openai.APIStatusError)
        assert f"answered {theirs.value.status_code}: Too much" in ours.value.detail
        assert theirs.value.body is None or "Too much" in str(theirs.value.body)

    @pytest.mark.parametrize(
        "vendor, event",
        [
            (ANTHROPIC, b'event: error\ndata: {"type":"error","error":{"type":"api_error","message":"Too much"}}\n\n'),
            (ANTHROPIC, b"event: error\ndata: Too much\n\n"),
            (CHAT, b'data: {"error":{"message":"Too much"}}\n\n'),
            (RESPONSES, b'event: error\ndata: {"error":{"message":"Too much"}}\n\n'),
        ],
    )
    def test_of_a_stream_have_the_same_words(self, vendor: Vendor, event: bytes) -> None:
        stream = [b"".join([*frames(vendor, [Say("It is")])[:3], event])]
        with pytest.raises((anthropic.APIError, openai.APIError), match="Too much"):
            list(sdk_events(vendor.name, stream))
        with pytest.raises(FAILURES) as ours:
            drafted(vendor, stream)
        assert "Too much" in str(getattr(ours.value, "body", ours.value))


PARAMETERS: dict[str, Any] = {
    "anthropic": TypeAdapter(MessageCreateParamsStreaming),
    "openai_chat": TypeAdapter(CompletionCreateParamsStreaming),
    "openai_responses": TypeAdapter(ResponseCreateParamsStreaming),
}


def check_request(vendor: Vendor, body: dict[str, Any]) -> None:
    """Raises ValidationError unless the SDK's own types allow this request, field for field."""
    if vendor is RESPONSES and isinstance(body["input"], list):
        body = {**body, "input": [_with_ids(item) for item in body["input"]]}
    _consume(PARAMETERS[vendor.name].validate_python(body, extra="forbid"))


def _with_ids(item: dict[str, Any]) -> dict[str, Any]:
    """The API takes an earlier answer without its id, which a conversation from elsewhere does not have. The type asks
    for it, and for what a response says about its text."""
    if item.get("role") != "assistant" or item.get("type") != "message":
        return item
    parts = [{"annotations": [], **part} for part in item["content"]]
    return {"id": "msg_1", "status": "completed", **item, "content": parts}


def _consume(value: Any) -> None:
    """Iterables in the SDK's types are validated while they are read."""
    if isinstance(value, dict):
        for each in value.values():
            _consume(each)
    elif isinstance(value, Iterable) and not isinstance(value, str | bytes):
        for each in value:
            _consume(each)


class TestRequests:
    PICTURE = Image(media_type="image/png", data="iVBORw0KGgo=")
    CALL = ToolUse(id="call_1", name="weather", input={"city": "Bern"})  # type: ignore[arg-type]

    def rows(self, vendor: Vendor) -> Sequence[Any]:
        provider = "anthropic" if vendor is ANTHROPIC else "openai"
        thought = Reasoning(text="Hm.", provider=provider, signature="cHJvb2Y=", data=None)
        if vendor is RESPONSES:
            thought = Reasoning(text="Hm.", provider=provider, data="cHJvb2Y=", item_id="rs_1")
        return [
            row("user", self.PICTURE, Text(text="How is Bern?")),
            row("assistant", thought, Text(text="Let me see."), self.CALL, number=1),
            row("user", ToolResult(call_id=self.CALL.id, content="12 °C"), number=2),
            row("assistant", Text(text="Sunny."), number=3),
            row("user", Text(text="And Basel?"), number=4),
        ]

    async def body(self, vendor: Vendor, **options: Any) -> dict[str, Any]:
        fields = {
            name: options.pop(name) for name in ("tools", "may_call", "sampling", "system", "model") if name in options
        }
        async with connected(vendor, **options) as line:
            request = await request_for(line, *self.rows(vendor), **fields)
            decoded: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(await line.provider._body(request)))
            return decoded

    @each_vendor
    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"may_call": False},
            {"tools": ()},
            {"system": ""},
            {"effort": "high"},
            {"effort": "off"},
            {"tools": (WEATHER, WEATHER)},
            {"sampling": Sampling(temperature=0.5, top_p=0.9, max_tokens=100, parallel_tool_calls=False)},
            {"sampling": Sampling(tool="weather")},
            {"sampling": Sampling(tool_choice="required", parallel_tool_calls=True)},
            {"sampling": Sampling(output=OutputFormat())},
            {"sampling": Sampling(output=OutputFormat(name="a", schema={"type": "object"}, is_strict=True))},
        ],
        ids=str,
    )
    async def test_are_allowed_by_the_types_of_the_sdk(self, vendor: Vendor, options: dict[str, Any]) -> None:
        check_request(vendor, await self.body(vendor, **options))

    @pytest.mark.parametrize("model", ["claude-adaptive", "claude-budget", "claude-plain", "claude-unheard-of"])
    async def test_are_allowed_for_every_kind_of_claude(self, model: str) -> None:
        check_request(ANTHROPIC, await self.body(ANTHROPIC, model=f"anthropic/{model}"))

    @each_vendor
    async def test_that_are_wrong_are_found(self, vendor: Vendor) -> None:
        body = await self.body(vendor)
        field = "input" if vendor is RESPONSES else "messages"
        for wrong in ({**body, "no_such_field": 1}, {**body, field: [{"role": "nobody"}]}, {**body, "model": 7}):
            with pytest.raises(ValidationError):
                check_request(vendor, wrong)

    @each_vendor
    async def test_go_to_the_same_address_with_the_same_headers(self, vendor: Vendor) -> None:
        """Each header that the SDK sends for a reason, ours has too."""
        theirs = await self._request_of_sdk(vendor)
        async with connected(vendor, brain=lambda body: [Say("Hi")]) as line:
            async for piece in line.provider.speak(await request_for(line)):
                assert isinstance(piece, Delta | Reply)
            ours = next(request for request in line.server.requests if request.method == "POST")
        assert ours.path == theirs.path
        ignored = {"host", "content-length", "user-agent", "accept-encoding", "connection"}
        expected = {name for name in theirs.headers if not name.startswith("x-stainless")} - ignored
        for name in expected:
            assert ours.headers.get(name) == theirs.headers[name], name

    async def _request_of_sdk(self, vendor: Vendor) -> Request:
        async with connected(vendor, brain=lambda body: [Say("Hi")]) as line:
            request = await request_for(line)
            body = msgspec.json.decode(msgspec.json.encode(await line.provider._body(request)))
            if vendor is ANTHROPIC:
                claude = anthropic.AsyncAnthropic(api_key="sk-ant-test-key", base_url=line.server.url)
                resource: Any = claude.messages
                async with claude, await resource.create(**body) as stream:
                    assert [event async for event in stream]
            else:
                client = openai.AsyncOpenAI(api_key="sk-test-key", base_url=f"{line.server.url}/v1")
                resource = client.responses if vendor is RESPONSES else client.chat.completions
                async with client, await resource.create(**body) as stream:
                    assert [event async for event in stream]
            return next(request for request in line.server.requests if request.method == "POST")

    def test_name_the_version_of_the_sdk(self) -> None:
        assert API_VERSION == ANTHROPIC_API_VERSION
