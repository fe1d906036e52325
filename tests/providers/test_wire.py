"""HTTP to the providers: addresses, headers, proxies, certificates, connections, and the bytes of a stream."""

import asyncio
import gc
import gzip
import zlib
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp.client_proto import ResponseHandler
from yarl import URL

from tests.providers.model_requests import request_for
from tests.providers.test_bad_replies import FakeTime
from tests.providers.wire.script import Cut, Say, Wait
from tests.providers.wire.server import ByteServer, Close, Endless, Kept, Later, http_response
from tests.providers.wire.vendors import CHAT, connected
from tests.tools.certificates import make_certificate
from turnkeep.errors import InvalidRequest
from turnkeep.providers import wire
from turnkeep.providers.anthropic import AnthropicDraft
from turnkeep.providers.drafts import Draft
from turnkeep.providers.failures import StreamFailed
from turnkeep.providers.http_provider import OFFERS_REMEMBERED, EncodedOffers, HttpProvider, ReplyStream
from turnkeep.providers.openai import OpenAIChatDraft, OpenAIProvider, OpenAIResponsesDraft, is_azure
from turnkeep.providers.ports import (
    BETWEEN_THOUGHTS,
    Delta,
    ModelRequest,
    ProviderFailed,
    ProviderTimedOut,
    Reply,
    ToolOffer,
)
from turnkeep.providers.registry import configured_providers
from turnkeep.providers.retry import RetryPolicy
from turnkeep.providers.wire import Account, EventSplitter
from turnkeep.tls import trusted_tls
from turnkeep_client.wire.blocks import Reasoning, Text, ToolUse

END = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
SUNNY = b'data: {"choices":[{"index":0,"delta":{"content":"Sunny."}}]}\n\n' + END
GOOD = http_response(SUNNY)
ONCE = RetryPolicy(tries=1)


def _anthropic_thought(index: int, words: str) -> list[Any]:
    empty = {"type": "thinking", "thinking": "", "signature": ""}
    pieces = [{"type": "thinking_delta", "thinking": piece} for piece in (words[:2], words[2:])]
    signed = {"type": "signature_delta", "signature": "s"}
    return [
        {"type": "content_block_start", "index": index, "content_block": empty},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in (*pieces, signed)),
        {"type": "content_block_stop", "index": index},
    ]


def _responses_thought(index: int, words: str) -> list[Any]:
    item = {"type": "reasoning", "id": f"rs_{index}", "summary": [{"type": "summary_text", "text": words}]}
    place = {"output_index": index, "summary_index": 0}
    return [
        {"type": "response.output_item.added", "output_index": index, "item": item},
        {"type": "response.reasoning_summary_part.added", **place},
        *(
            {"type": "response.reasoning_summary_text.delta", **place, "delta": piece}
            for piece in (words[:2], words[2:])
        ),
        {"type": "response.output_item.done", "output_index": index, "item": item},
    ]


THOUGHTS: list[Any] = [
    (
        AnthropicDraft,
        [
            {"type": "message_start", "message": {"usage": {"input_tokens": 1}}},
            *_anthropic_thought(0, "One."),
            *_anthropic_thought(1, "Two."),
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}},
            {"type": "message_stop"},
        ],
    ),
    (
        OpenAIResponsesDraft,
        [
            *_responses_thought(0, "One."),
            *_responses_thought(1, "Two."),
            {"type": "response.completed", "response": {"status": "completed", "output": []}},
        ],
    ),
]
"""Two blocks of reasoning on a wire, each in two pieces."""


def text(words: str) -> bytes:
    return b'data: {"choices":[{"index":0,"delta":{"content":%b}}]}\n\n' % msgspec.json.encode(words)


@asynccontextmanager
async def provider_at(url: str, key: str = "sk-secret-key", **options: Any) -> AsyncIterator[HttpProvider]:
    options.setdefault("retry_policy", ONCE)
    headers: dict[str, str] = options.pop("headers", {})
    provider = OpenAIProvider(Account(api_key=key, base_url=url, headers=headers), api="chat", **options)
    try:
        yield provider
    finally:
        await provider.close()


async def spoken(provider: HttpProvider, **fields: Any) -> list[Any]:
    usual: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "timeout_seconds": 20.0}
    return [piece async for piece in provider.speak(ModelRequest(model="openai/m", **(usual | fields)))]


async def said(url: str, **options: Any) -> str:
    """What a server at this address says."""
    async with provider_at(url, **options) as provider:
        reply = (await spoken(provider))[-1]
    assert isinstance(reply, Reply)
    return "".join(block.text for block in reply.blocks if isinstance(block, Text))


async def failure(url: str, **options: Any) -> str:
    with pytest.raises(ProviderFailed) as failed:
        await said(url, **options)
    return failed.value.detail


def header(head: str, name: str) -> str | None:
    lines = [line.partition(":") for line in head.split("\r\n")[1:]]
    return next((value.strip() for key, _, value in lines if key.lower() == name.lower()), None)


class TestSplittingEvents:
    STREAM = (
        b"\xef\xbb\xbfevent: first\n"
        b": a comment\ndata: {1}\n\n"
        b"data:without a space\r\n\r\n"
        b"data: two\rdata: lines\r\r"
        b"data: two\r\ndata: more\r\n\r\n"
        b"id: 7\nretry: 5\nunknown\n\n"
        b":\n\n\n\nevent:second\ndata:\n\n"
        b"data: d\xc3\xa9j\xc3\xa0\n\r\n"
        b"data: not finished\n"
    )
    EVENTS = (
        (b"first", b"{1}"),
        (b"", b"without a space"),
        (b"", b"two\n lines"),
        (b"", b"two\n more"),
        (b"second", b""),
        (b"", "déjà".encode()),
    )

    @staticmethod
    def events(*chunks: bytes) -> list[tuple[bytes, bytes]]:
        splitter = EventSplitter()
        return [(name, bytes(data).strip()) for chunk in chunks for name, data in splitter.split(chunk)]

    def test_understands_every_line_end_comments_and_a_byte_order_mark(self) -> None:
        assert tuple(self.events(self.STREAM)) == self.EVENTS

    def test_is_the_same_wherever_the_bytes_are_split(self) -> None:
        for first in range(len(self.STREAM) + 1):
            assert tuple(self.events(self.STREAM[:first], self.STREAM[first:])) == self.EVENTS
        for size in (1, 2, 3, 5):
            pieces = [self.STREAM[start : start + size] for start in range(0, len(self.STREAM), size)]
            assert tuple(self.events(*pieces)) == self.EVENTS
            with_empty_reads = [part for piece in pieces for part in (piece, b"")]
            assert tuple(self.events(*with_empty_reads)) == self.EVENTS

    @pytest.mark.parametrize("piece", [b"x" * 100, b"data: xxxxxxxxxxxxx\n"], ids=["line", "lines"])
    def test_refuses_an_event_without_an_end(self, monkeypatch: pytest.MonkeyPatch, piece: bytes) -> None:
        monkeypatch.setattr(wire, "MAX_EVENT_BYTES", 1_000)
        splitter = EventSplitter()
        with pytest.raises(StreamFailed, match="did not end after 1,000 bytes"):
            [splitter.split(piece) for _ in range(200)]


class TestDeltas:
    async def test_text_that_came_in_one_read_is_one_delta(self) -> None:
        think = b'data: {"choices":[{"index":0,"delta":{"reasoning":"Hm"}}]}\n\n'
        body = think * 3 + text("It ") + text("is ") + text("sunny.") + think + END
        async with ByteServer(http_response(body)) as server, provider_at(server.url) as provider:
            *pieces, _ = await spoken(provider)
        assert pieces == [
            Delta(text="HmHmHm", kind="reasoning"),
            Delta(text="It is sunny."),
            Delta(text="Hm", kind="reasoning"),
        ]

    async def test_text_before_an_error_is_shown(self) -> None:
        body = text("It is") + b'data: {"error":{"message":"Too hot"}}\n\n'
        async with ByteServer(http_response(body)) as server, provider_at(server.url) as provider:
            pieces = provider.speak(ModelRequest(model="openai/m", messages=[]))
            assert await anext(pieces) == Delta(text="It is")
            with pytest.raises(ProviderFailed, match="Too hot"):
                await anext(pieces)

    async def test_text_before_a_broken_connection_is_shown(self) -> None:
        """Also if the reader was busy with an earlier piece while the text came and the connection broke."""
        is_busy = asyncio.Event()
        async with connected(CHAT, seed=None, retry_policy=ONCE) as line:
            line.server.says([Say("It is ", pieces=1), Wait(is_busy.wait), Say("sunny", pieces=1), Cut()])
            async with aclosing(line.provider.speak(await request_for(line))) as pieces:
                assert await anext(pieces) == Delta(text="It is ")
                is_busy.set()
                await asyncio.sleep(0.3)
                assert await anext(pieces) == Delta(text="sunny")
                with pytest.raises(ProviderFailed, match="connection"):
                    await anext(pieces)

    def test_halves_of_a_character_are_joined(self) -> None:
        """Some servers split a surrogate pair over two events, and these may come in two reads."""
        draft = OpenAIChatDraft()
        shown: list[list[str]] = []
        for half in (b"a\\ud83d", b"\\ude00b"):
            draft.add(b"", b'{"choices":[{"index":0,"delta":{"content":"%b"}}]}' % half)
            shown.append([piece.text for piece in draft.pieces()])
        assert shown[0] == ["a"]
        assert shown[1][0].encode("utf-16", "surrogatepass").decode("utf-16") == "😀b"

    @pytest.mark.parametrize("draft, events", THOUGHTS, ids=["anthropic", "responses"])
    def test_blocks_of_reasoning_are_shown_as_they_are_recorded(
        self, draft: type[Draft[Any]], events: list[Any]
    ) -> None:
        """Readers get the rest of what they were shown. So an empty line stands between the blocks here, too."""
        made = draft()
        for event in events:
            made.add(b"", msgspec.json.encode(event))
        shown = "".join(piece.text for piece in made.pieces() if piece.kind == "reasoning")
        blocks = [block for block in made.reply().blocks if isinstance(block, Reasoning)]
        assert len(blocks) == 2
        assert shown == BETWEEN_THOUGHTS.join(block.text for block in blocks) == "One.\n\nTwo."

    def test_items_may_come_with_the_end_alone(self) -> None:
        """Some servers that speak the Responses API send deltas and then the whole response, but no finished items.
        Open models give their reasoning as it is, not as a summary."""
        thought = {"type": "reasoning", "id": "rs_0", "summary": [], "content": [{"type": "t", "text": "Hm."}]}
        said = {"type": "message", "content": [{"type": "output_text", "text": "Sunny."}]}
        call = {"type": "function_call", "name": "weather", "arguments": '{"city":"Bern"}'}
        draft = OpenAIResponsesDraft()
        for event in (
            {"type": "response.reasoning_text.delta", "output_index": 0, "delta": "Hm."},
            {"type": "response.output_text.delta", "output_index": 1, "delta": "Sunny."},
            {"type": "response.completed", "response": {"output": [thought, said, call]}},
        ):
            draft.add(b"", msgspec.json.encode(event))
        assert [(piece.kind, piece.text) for piece in draft.pieces()] == [("reasoning", "Hm."), ("text", "Sunny.")]
        reasoning, text, used = draft.reply().blocks
        assert reasoning == Reasoning(text="Hm.", provider="openai", item_id="rs_0")
        assert text == Text(text="Sunny.")
        assert isinstance(used, ToolUse)
        assert (used.name, used.input) == ("weather", {"city": "Bern"})

    def test_a_call_may_get_its_name_and_its_id_late(self) -> None:
        """In Chat Completions: another id of the same index begins another call."""
        draft = OpenAIChatDraft()
        for call in (
            {"index": 0},
            {"index": 0, "id": "a", "function": {"arguments": '{"city":'}},
            {"index": 0, "id": "a", "function": {"name": "weather", "arguments": '"Bern"}'}},
            {"index": 0, "id": "b", "function": {"name": "weather", "arguments": '{"city":"Basel"}'}},
        ):
            draft.add(b"", msgspec.json.encode({"choices": [{"delta": {"tool_calls": [call]}}]}))
        draft.add(b"", b'{"choices":[{"delta":{},"finish_reason":"tool_calls"}]}')
        calls = [(block.name, block.input) for block in draft.reply().blocks if isinstance(block, ToolUse)]
        assert calls == [("weather", {"city": "Bern"}), ("weather", {"city": "Basel"})]

    async def test_one_chunk_may_have_text_reasoning_and_a_call(self) -> None:
        call = {"index": 0, "id": "c", "function": {"name": "weather", "arguments": "{}"}}
        delta = {"content": "Let me see.", "reasoning": "Hm.", "tool_calls": [call]}
        chunk = msgspec.json.encode({"choices": [{"index": 0, "delta": delta, "finish_reason": "tool_calls"}]})
        async with ByteServer(http_response(b"data: %b\n\n" % chunk)) as server, provider_at(server.url) as provider:
            reply = (await spoken(provider))[-1]
        assert [type(block).__name__ for block in reply.blocks] == ["Reasoning", "Text", "ToolUse"]
        assert isinstance(reply.blocks[-1], ToolUse)

    @pytest.mark.parametrize(
        "odd",
        [
            b'{"choices":null,"usage":null}',
            b'{"choices":[]}',
            b'{"choices":[{"delta":null}]}',
            b'{"choices":[{"delta":{"content":null,"tool_calls":null}}],"usage":NaN}',
            b'{"object":"other","unknown":{"a":[1]},"choices":[{"unknown":1,"delta":{"unknown":[]}}]}',
            b'{"choices":[{"delta":{"reasoning":{"a":1}}}],"usage":"none"}',
        ],
    )
    async def test_odd_chunks_cost_nothing(self, odd: bytes) -> None:
        async with ByteServer(http_response(b"data: %b\n\n" % odd + SUNNY)) as server:
            assert await said(server.url) == "Sunny."


class TestTime:
    async def test_pings_are_no_tokens(self) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        async with ByteServer(Endless(head, b"7\r\n: ping\n\r\n")) as server, provider_at(server.url) as provider:
            with pytest.raises(ProviderTimedOut, match=r"0\.3 seconds"):
                await spoken(provider, timeout_seconds=0.3)

    async def test_a_slow_reader_is_not_the_providers_silence(self) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
        async with ByteServer(Kept(head + text("It is "))) as server, provider_at(server.url) as provider:
            request = ModelRequest(model="openai/m", messages=[], timeout_seconds=0.3)
            async with aclosing(provider.speak(request)) as pieces:
                assert await anext(pieces) == Delta(text="It is ")
                await asyncio.sleep(0.7)
                began = asyncio.get_running_loop().time()
                with pytest.raises(ProviderTimedOut):
                    await anext(pieces)
                assert asyncio.get_running_loop().time() - began >= 0.25

    async def test_a_connection_that_stays_open_after_the_end_is_not_awaited(self) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
        async with ByteServer(Kept(head + SUNNY)) as server:
            assert await said(server.url) == "Sunny."


class TestReadersThatAreSlow:
    """aiohttp stops to read when too much waits. It goes on when the reader has taken it, and is told so only then."""

    HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n"

    @staticmethod
    def chunked(*pieces: bytes) -> bytes:
        return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in (*pieces, b""))

    @pytest.fixture
    def resumed(self, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
        calls: list[Any] = []
        resume = ResponseHandler.resume_reading

        def counted(self: ResponseHandler, *given: Any) -> None:
            calls.append(self)
            resume(self, *given)

        monkeypatch.setattr(ResponseHandler, "resume_reading", counted)
        return calls

    @pytest.mark.parametrize("encode", [None, gzip.compress])
    async def test_get_all_of_it(self, resumed: list[Any], encode: Any) -> None:
        words = "x" * 1_000
        body = text(words) * 3_000 + END
        encoding = b"content-encoding: gzip\r\n" if encode else b""
        body = encode(body) if encode else body
        pieces = [body[start : start + 700] for start in range(0, len(body), 700)]
        response = self.HEAD + encoding + b"\r\n" + self.chunked(*pieces)
        async with ByteServer(response) as server, provider_at(server.url) as provider:
            request = ModelRequest(model="openai/m", messages=[], timeout_seconds=20.0)
            found = 0
            async for piece in provider.speak(request):
                await asyncio.sleep(0.001)
                found += len(piece.text) if isinstance(piece, Delta) else 0
        assert found == 3_000_000
        assert resumed

    async def test_are_no_more_work_than_others_if_they_are_quick(self, resumed: list[Any]) -> None:
        response = self.HEAD + b"\r\n" + self.chunked(*[text("It ") for _ in range(20)], END)
        async with ByteServer(response, response) as server, provider_at(server.url) as provider:
            for _ in range(2):
                reply = (await spoken(provider))[-1]
                assert reply.blocks == (Text(text="It " * 20),)
        assert resumed == []


class TestAnswersThatAreNoStream:
    async def test_json_is_reported(self) -> None:
        body = b'{"choices":[{"message":{"content":"Sunny."}}]}'
        async with ByteServer(http_response(body, content_type="application/json")) as server:
            words = await failure(server.url)
        assert "answered with application/json, not with a stream of events" in words
        assert "Sunny." in words

    async def test_an_error_with_status_200_has_its_own_words(self) -> None:
        body = b'{"error":{"message":"No such model","type":"invalid_request_error"}}'
        async with ByteServer(http_response(body, content_type="application/json")) as server:
            assert "No such model" in await failure(server.url)

    @pytest.mark.parametrize("content_type", ["application/json", "text/plain", "application/octet-stream"])
    async def test_a_stream_with_the_wrong_type_is_read(self, content_type: str) -> None:
        async with ByteServer(http_response(SUNNY, content_type=content_type)) as server:
            assert await said(server.url) == "Sunny."

    @pytest.mark.parametrize(
        "body, words",
        [
            (b'{"error":{"message":"Bad key"}}', "answered 403: Bad key"),
            (b'{"error":"Bad key"}', "answered 403: Bad key"),
            (b'{"detail":"Bad key"}', "answered 403: Bad key"),
            (b'{"message":"Bad key"}', "answered 403: Bad key"),
            (b'["Bad key"]', "answered 403: ['Bad key']"),
            (b"Bad\n key", "answered 403: Bad key"),
            (b"<p>Bad <b>key</b></p>", "answered 403: Bad key"),
            (b"", "answered 403: without a reason"),
        ],
    )
    async def test_error_texts_come_in_any_shape(self, body: bytes, words: str) -> None:
        async with ByteServer(http_response(body, status=403)) as server:
            assert words in await failure(server.url)

    async def test_an_endless_error_is_cut(self) -> None:
        head = b"HTTP/1.1 403 Forbidden\r\ncontent-type: text/plain\r\n\r\n"
        async with ByteServer(Endless(head, b"No. " * 10_000)) as server:
            words = await failure(server.url)
            assert "answered 403: No. No." in words
            assert server.sent_bytes < 20_000_000

    async def test_an_endless_line_is_cut(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(wire, "MAX_EVENT_BYTES", 1_000_000)
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: "
        async with ByteServer(Endless(head, b"x" * 10_000)) as server:
            assert "did not end after 1,000,000 bytes" in await failure(server.url)


class TestEncodings:
    @pytest.mark.parametrize("name, encode", [("gzip", gzip.compress), ("deflate", zlib.compress)])
    async def test_a_compressed_answer_is_read(self, name: str, encode: Any) -> None:
        async with ByteServer(http_response(encode(SUNNY), headers={"content-encoding": name})) as server:
            assert await said(server.url) == "Sunny."

    async def test_a_request_may_be_large(self) -> None:
        async with ByteServer(GOOD) as server, provider_at(server.url) as provider:
            await spoken(provider, messages=[{"role": "user", "content": "x" * 3_000_000}])
            assert int(header(server.heads[0], "content-length") or 0) > 3_000_000

    async def test_messages_that_are_encoded_already_are_sent_as_they_are(self) -> None:
        body = await _body([msgspec.Raw(b'{"role": "user",  "content": "Hi"}')])
        assert b'[{"role": "user",  "content": "Hi"}]' in body

    async def test_a_request_is_encoded_once_however_often_it_is_sent(self, monkeypatch: pytest.MonkeyPatch) -> None:
        encoded: list[Any] = []
        encode = HttpProvider._encoded

        def counted(self: HttpProvider, body: Any) -> bytes:
            encoded.append(body)
            return encode(self, body)

        monkeypatch.setattr(HttpProvider, "_encoded", counted)
        busy = http_response(b"", status=503)
        policy = RetryPolicy(sleep=FakeTime().sleep)
        async with ByteServer(busy, busy, GOOD) as server, provider_at(server.url, retry_policy=policy) as provider:
            assert isinstance((await spoken(provider))[-1], Reply)
        assert (len(server.heads), len(encoded)) == (3, 1)

    def test_tools_are_encoded_again_only_when_one_of_them_has_changed(self) -> None:
        written: list[str] = []

        def write(offer: ToolOffer) -> dict[str, Any]:
            written.append(offer.description)
            return {"name": offer.name, "description": offer.description}

        def offer(description: str, **fields: Any) -> ToolOffer:
            return ToolOffer(name="search", description=description, input_schema={"type": "object", **fields})

        offers = EncodedOffers()
        for each in (
            offer("old"),
            offer("old"),
            offer("new"),
            offer("new", properties={}),
            offer("new", properties={}),
        ):
            encoded = offers.encode((each,), write)
            assert msgspec.json.decode(encoded) == [{"name": "search", "description": each.description}]
        assert written == ["old", "new", "new"]
        for number in range(2 * OFFERS_REMEMBERED):
            offers.encode((msgspec.structs.replace(offer("many"), name=f"tool_{number}"),), write)
        assert len(offers._encoded) == OFFERS_REMEMBERED


async def _body(messages: list[Any]) -> bytes:
    provider = OpenAIProvider(Account(base_url="http://127.0.0.1:9"))
    return msgspec.json.encode(await provider._body(ModelRequest(model="openai/m", messages=messages)))


def streams_in_memory() -> int:
    """How many replies are kept, also by tests that failed before."""
    gc.collect()
    return sum(type(kept) is ReplyStream for kept in gc.get_objects())


class TestConnections:
    CHUNKED = (
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        b"%x\r\n%b\r\n" % (len(SUNNY), SUNNY)
    )
    """Without its last bytes."""

    async def test_are_used_again(self) -> None:
        async with ByteServer(GOOD) as server, provider_at(server.url) as provider:
            for _ in range(5):
                await spoken(provider)
            assert (len(server.heads), server.connections) == (5, 1)

    async def test_are_used_again_when_the_last_bytes_come_late(self) -> None:
        """Many servers send the end of the body apart from the end of the reply."""
        async with LateServer(self.CHUNKED) as server, provider_at(server.url) as provider:
            for _ in range(3):
                await spoken(provider)
            assert server.connections == 1

    async def test_keep_nothing_of_the_replies_that_came_over_them(self) -> None:
        before = streams_in_memory()
        async with LateServer(self.CHUNKED) as server, provider_at(server.url) as provider:
            for _ in range(3):
                await spoken(provider)
            assert server.connections == 1
            assert streams_in_memory() <= before

    async def test_keep_no_cookies(self) -> None:
        """They would go from the turn of one user to that of another."""
        answer = http_response(SUNNY, headers={"set-cookie": "session=ann; Path=/"})
        async with ByteServer(answer) as server, provider_at(server.url.replace("127.0.0.1", "localhost")) as provider:
            for _ in range(2):
                await spoken(provider)
        assert [header(head, "cookie") for head in server.heads] == [None, None]

    async def test_are_not_limited(self) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
        async with ByteServer(Kept(head + text("It is "))) as server, provider_at(server.url) as provider:
            streams = [provider.speak(ModelRequest(model="openai/m", messages=[])) for _ in range(150)]
            await asyncio.gather(*(anext(stream) for stream in streams))
            assert server.connections == 150
            await asyncio.gather(*(stream.aclose() for stream in streams))

    async def test_a_kept_connection_that_was_just_closed_costs_no_wait(self) -> None:
        time = FakeTime()
        async with (
            ByteServer(GOOD, Close(), GOOD) as server,
            provider_at(server.url, retry_policy=time.retry_policy()) as provider,
        ):
            for _ in range(2):
                assert isinstance((await spoken(provider))[-1], Reply)
            assert server.connections == 2
        assert time.slept == []

    async def test_all_providers_share_one_session_that_the_registry_closes(self) -> None:
        async with ByteServer(GOOD) as server:
            registry = configured_providers({"OPENAI_BASE_URL": server.url, "ANTHROPIC_BASE_URL": server.url})
            claude, other = registry.named("anthropic/x"), registry.named("openai/x")
            assert isinstance(claude, HttpProvider)
            assert isinstance(other, HttpProvider)
            assert claude._session is other._session
            await spoken(other)
            await other.close()
            session = claude._session._session
            assert session is not None
            assert not session.closed
            await registry.close()
            assert session.closed


class LateServer(ByteServer):
    """Sends the last chunk of a body a moment after the answer."""

    def __init__(self, answer: bytes) -> None:
        super().__init__(answer)

    async def _answered(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        goes_on = await super()._answered(reader, writer)
        await asyncio.sleep(0.01)
        writer.write(b"0\r\n\r\n")
        return goes_on


class TestHeads:
    """Gateways add long headers: policies, cookies, traces."""

    async def test_may_be_long(self) -> None:
        answer = http_response(SUNNY, headers={"x-policy": "a" * 60_000})
        async with ByteServer(answer.replace(b" 200 OK", b" 200 " + b"O" * 60_000)) as server:
            assert await said(server.url) == "Sunny."

    async def test_come_to_an_end(self) -> None:
        async with ByteServer(http_response(SUNNY, headers={"x-policy": "a" * 70_000})) as server:
            assert "The connection to openai failed" in await failure(server.url)


class TestRedirects:
    async def test_to_the_same_server_are_followed_with_the_key(self) -> None:
        moved = http_response(b"", status=307, headers={"location": "/new/chat/completions"})
        async with ByteServer(moved, GOOD) as server:
            assert await said(server.url) == "Sunny."
            assert server.heads[1].startswith("POST /new/chat/completions ")
            assert header(server.heads[1], "authorization") == "Bearer sk-secret-key"

    async def test_to_another_server_are_followed_without_the_key(self) -> None:
        async with ByteServer(GOOD) as other:
            moved = http_response(b"", status=308, headers={"location": f"{other.url}/v1/chat/completions"})
            async with ByteServer(moved) as server:
                url = f"{server.url}/v1?api-version=1"
                assert await said(url, headers={"X-Team": "secret"}) == "Sunny."
        assert "secret" not in other.heads[0]
        assert header(other.heads[0], "content-type") == "application/json"

    @pytest.mark.parametrize(
        "url, location, keeps_key",
        [
            ("http://models.example/v1", "https://models.example/v1", True),
            ("https://models.example/v1", "http://models.example/v1", False),
            ("https://models.example/v1", "https://models.example:8443/v1", False),
            ("https://models.example/v1", "//models.example/v2", True),
            ("https://models.example/v1", "https://other.models.example/v1", False),
        ],
    )
    def test_keep_the_key_for_the_same_server_and_on_the_way_to_https(
        self, url: str, location: str, keeps_key: bool
    ) -> None:
        sent = {"Authorization": "Bearer k", "Content-Type": "application/json"}
        _, headers = wire._redirected(URL(url), sent, location)
        assert ("Authorization" in headers) is keeps_key
        assert "Content-Type" in headers

    async def test_of_questions_about_models_are_followed(self) -> None:
        moved = http_response(b"", status=301, headers={"location": "/new/models"})
        listed = http_response(b'{"data":[{"id":"m"}]}', content_type="application/json")
        async with ByteServer(moved, listed) as server, provider_at(server.url) as provider:
            assert await provider.models() == ["openai/m"]
        assert server.heads[1].startswith("GET /new/models ")

    async def test_that_would_lose_the_request_are_reported(self) -> None:
        moved = http_response(b"", status=301, headers={"location": "https://new.example/v1"})
        async with ByteServer(moved) as server:
            assert "redirects to https://new.example/v1" in await failure(server.url)

    async def test_come_to_an_end(self) -> None:
        moved = http_response(b"", status=307, headers={"location": "/again"})
        async with ByteServer(moved) as server:
            assert "redirected more than 5 times" in await failure(server.url)
            assert len(server.heads) == 6


class TestAddresses:
    async def test_keep_their_query_and_azure_gets_the_key_in_its_own_header(self) -> None:
        async with ByteServer(GOOD) as server:
            url = f"{server.url}/openai/deployments/gpt/?api-version=2026-01-01"
            assert await said(url) == "Sunny."
        path = "/openai/deployments/gpt/chat/completions?api-version=2026-01-01"
        assert server.heads[0].startswith(f"POST {path} ")
        assert header(server.heads[0], "api-key") == "sk-secret-key"
        assert header(server.heads[0], "authorization") == "Bearer sk-secret-key"

    async def test_of_other_servers_get_no_such_header(self) -> None:
        async with ByteServer(GOOD) as server:
            await said(server.url)
        assert header(server.heads[0], "api-key") is None

    async def test_may_have_a_name_and_a_password(self) -> None:
        refused = http_response(b"for ann:opensesame", status=403)
        async with ByteServer(GOOD, refused) as server:
            url = server.url.replace("://", "://ann:opensesame@")
            assert await said(url) == "Sunny."
            assert header(server.heads[0], "authorization") == "Basic YW5uOm9wZW5zZXNhbWU="
            assert "opensesame" not in await failure(url)

    @pytest.mark.parametrize("url", ["ftp://example.com", "not an address", "http://", "http://[::1"])
    async def test_that_are_none_are_reported(self, url: str) -> None:
        assert "openai cannot be asked: " in await failure(url)

    @pytest.mark.parametrize(
        "url, is_one",
        [
            ("https://ann.openai.azure.com/openai/v1", True),
            ("https://ann.openai.azure.us/openai/v1", True),
            ("https://ann.openai.azure.cn/openai/v1", True),
            ("https://ann.azure-api.net/v1", True),
            ("https://gateway.example/v1?api-version=2026-01-01", True),
            ("https://azure.com.example/v1", False),
            ("https://example.com/azure.com?version=1", False),
            (None, False),
        ],
    )
    def test_of_azure_are_known(self, url: str | None, is_one: bool) -> None:
        assert is_azure(url) is is_one


class TestTheEnvironment:
    async def sent(self, model: str, environ: Mapping[str, str]) -> str:
        """The head of a request with these variables."""
        async with ByteServer(GOOD) as server:
            addresses = {"OPENAI_BASE_URL": server.url, "ANTHROPIC_BASE_URL": server.url}
            registry = configured_providers({**addresses, **environ})
            try:
                with suppress(ProviderFailed):
                    await anext(registry.named(model).speak(ModelRequest(model=model, messages=[])))
            finally:
                await registry.close()
        return next(head for head in server.heads if head.startswith("POST"))

    async def test_names_the_organisation_and_the_project(self) -> None:
        head = await self.sent("openai/m", {"OPENAI_ORG_ID": "org-1", "OPENAI_PROJECT_ID": "proj-2"})
        assert header(head, "openai-organization") == "org-1"
        assert header(head, "openai-project") == "proj-2"

    @pytest.mark.parametrize("provider", ["openai", "anthropic"])
    async def test_adds_and_replaces_headers(self, provider: str) -> None:
        custom = {f"{provider.upper()}_CUSTOM_HEADERS": "X-Team: search: it\n\nauthorization: Token abc"}
        head = await self.sent(f"{provider}/m", custom)
        assert header(head, "x-team") == "search: it"
        assert header(head, "authorization") == "Token abc"
        assert head.lower().count("authorization:") == 1

    def test_with_headers_that_cannot_be_sent_is_refused(self) -> None:
        with pytest.raises(InvalidRequest, match="OPENAI_CUSTOM_HEADERS"):
            configured_providers({"OPENAI_API_KEY": "k", "OPENAI_CUSTOM_HEADERS": "no colon"})

    async def test_has_a_token_in_place_of_a_key(self) -> None:
        head = await self.sent("anthropic/m", {"ANTHROPIC_AUTH_TOKEN": "a-token"})
        assert header(head, "authorization") == "Bearer a-token"
        assert header(head, "x-api-key") is None
        head = await self.sent("anthropic/m", {"ANTHROPIC_AUTH_TOKEN": "a-token", "ANTHROPIC_API_KEY": "a-key"})
        assert header(head, "authorization") == "Bearer a-key"
        assert header(head, "x-api-key") == "a-key"

    def test_with_only_a_profile_is_refused_with_what_to_set(self) -> None:
        with pytest.raises(InvalidRequest, match="Set ANTHROPIC_API_KEY or ANTHROPIC_AUTH_TOKEN"):
            configured_providers({"ANTHROPIC_PROFILE": "work"})
        both = {"ANTHROPIC_PROFILE": "work", "ANTHROPIC_API_KEY": "k"}
        assert configured_providers(both).named("anthropic/x").name == "anthropic"


class TestBrokenBodies:
    async def test_a_chunk_that_is_none_is_a_failure_at_once_and_asked_again(self) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        async with ByteServer(Later(head, b"4\r\n: a\n\r\nxyz\r\n"), GOOD) as server:
            # With the usual time limit this test would not end.
            policy = RetryPolicy(sleep=FakeTime().sleep)
            async with provider_at(server.url, retry_policy=policy) as provider:
                *_, reply = await asyncio.wait_for(spoken(provider, timeout_seconds=3_600.0), 60)
        assert isinstance(reply, Reply)
        assert server.connections == 2

    async def test_the_status_of_an_error_counts_when_its_body_does_not_end(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(wire, "ERROR_SECONDS", 0.5)
        cut = http_response(b"no such key", status=401, headers={"content-length": "5000"})
        async with ByteServer(cut) as server:
            words = await failure(server.url, retry_policy=RetryPolicy(sleep=FakeTime().sleep))
        assert words == "openai answered 401: no such key"
        assert len(server.heads) == 1


class TestProxies:
    @pytest.mark.parametrize("variable", ["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
    async def test_of_the_environment_are_used(self, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
        async with ByteServer(GOOD) as proxy:
            monkeypatch.setenv(variable, proxy.url.replace("://", "://ann:opensesame@"))
            assert await said("http://models.example/v1") == "Sunny."
        assert proxy.heads[0].startswith("POST http://models.example/v1/chat/completions ")
        assert header(proxy.heads[0], "proxy-authorization") == "Basic YW5uOm9wZW5zZXNhbWU="

    async def test_tunnel_https(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async with ByteServer(http_response(b"", status=403)) as proxy:
            monkeypatch.setenv("HTTPS_PROXY", proxy.url.removeprefix("http://"))
            await failure("https://models.example/v1")
        assert proxy.heads[0].startswith("CONNECT models.example:443 ")

    @pytest.mark.parametrize("address", ["http://models.example/v1", "https://models.example/v1"])
    async def test_that_refuse_are_asked_once_and_their_password_is_not_shown(
        self, monkeypatch: pytest.MonkeyPatch, address: str
    ) -> None:
        async with ByteServer(http_response(b"", status=407)) as proxy:
            for variable in ("HTTP_PROXY", "HTTPS_PROXY"):
                monkeypatch.setenv(variable, proxy.url.replace("://", "://ann:opensesame@"))
            words = await failure(address, retry_policy=RetryPolicy(sleep=FakeTime().sleep))
        assert "407" in words
        assert "opensesame" not in words
        assert len(proxy.heads) == 1

    async def test_with_an_invalid_address_do_not_show_their_password(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HTTP_PROXY", "http://ann:opensesame@127.0.0.1:99999")
        words = await failure("http://models.example/v1")
        assert "openai cannot be asked: " in words
        assert "opensesame" not in words

    @pytest.mark.parametrize("port", ["", ":{port}"])
    async def test_are_not_used_for_some_hosts(self, monkeypatch: pytest.MonkeyPatch, port: str) -> None:
        monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
        async with ByteServer(GOOD) as server:
            address = f"127.0.0.1{port.format(port=URL(server.url).port)}"
            monkeypatch.setenv("NO_PROXY", f"models.example, {address}")
            assert await said(server.url) == "Sunny."

    async def test_of_another_kind_are_reported(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:9")
        assert "openai cannot be asked: " in await failure("http://models.example/v1")


class TestCertificates:
    HASH_OF_ITS_NAME = "8d171254"
    """By which OpenSSL finds the authority of the tests in a folder: `openssl x509 -hash`."""

    @pytest.fixture(autouse=True)
    def fresh(self) -> Any:
        trusted_tls.cache_clear()
        yield
        trusted_tls.cache_clear()

    async def test_of_the_environment_are_trusted(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        tls, authority = make_certificate(tmp_path, "localhost")
        monkeypatch.setenv("SSL_CERT_FILE", str(authority))
        async with ByteServer(GOOD, tls=tls) as server:
            assert await said(server.url.replace("127.0.0.1", "localhost")) == "Sunny."

    async def test_may_be_those_of_a_folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        tls, authority = make_certificate(tmp_path, "localhost")
        folder = tmp_path / "authorities"
        folder.mkdir()
        authority.rename(folder / f"{self.HASH_OF_ITS_NAME}.0")
        monkeypatch.delenv("SSL_CERT_FILE", raising=False)
        monkeypatch.setenv("SSL_CERT_DIR", str(folder))
        async with ByteServer(GOOD, tls=tls) as server:
            assert await said(server.url.replace("127.0.0.1", "localhost")) == "Sunny."

    async def test_of_a_stranger_are_not(self, tmp_path: Path) -> None:
        tls, _ = make_certificate(tmp_path, "localhost")
        async with ByteServer(GOOD, tls=tls) as server:
            words = await failure(server.url.replace("127.0.0.1", "localhost"))
        assert "certificate" in words.lower()
        assert server.heads == []
