"""Servers that are slow, busy, wrong or away: which requests are repeated, which are not, and the error of the turn."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.providers.model_requests import answer, ask, request_for, shown
from tests.providers.wire.script import (
    Call,
    Cut,
    End,
    ErrorEvent,
    Hang,
    HangBeforeHeaders,
    Raw,
    Refuse,
    Say,
    Script,
    Stop,
    Wait,
)
from tests.providers.wire.vendors import ANTHROPIC, CHAT, RESPONSES, VENDORS, Line, Vendor, connected
from turnkeep.providers.failures import ErrorResponse, failed_attempt
from turnkeep.providers.ports import Delta, ProviderEvent, ProviderFailed, ProviderTimedOut, Restarted
from turnkeep.providers.retry import RetryPolicy
from turnkeep_client.wire.blocks import Text

SUNNY = (Text(text="Sunny."),)


class FakeTime:
    """A clock that moves only by sleeping."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def retry_policy(self, **changes: Any) -> RetryPolicy:
        return RetryPolicy(sleep=self.sleep, monotonic=lambda: self.now, **changes)


async def failure(line: Line, **fields: Any) -> tuple[ProviderFailed, list[ProviderEvent]]:
    """How it failed, and what had been said by then."""
    said: list[ProviderEvent] = []
    request = await request_for(line, **fields)
    try:
        async for piece in line.provider.speak(request):
            said.append(piece)  # noqa: PERF401 - kept also when it breaks off
    except ProviderFailed as failed:
        return failed, said
    raise AssertionError(f"it did not fail, and said {said}")


class TestBeforeTheFirstToken:
    @pytest.mark.parametrize("status", [429, 500, 529])
    async def test_a_busy_server_is_called_again(self, line: Line, status: int) -> None:
        line.server.says([Refuse(status, "Later", "overloaded_error")], [Refuse(status, "Later")], [Say("Sunny.")])
        assert (await answer(line)).blocks == SUNNY
        assert len(line.server.bodies) == 3

    async def test_a_server_that_closes_the_connection_is_called_again(self, line: Line) -> None:
        line.server.says([Cut()], [End()], [Say("Sunny.")])
        assert (await answer(line)).blocks == SUNNY
        assert len(line.server.bodies) == 3

    @pytest.mark.parametrize(
        "vendor, event",
        [
            (ANTHROPIC, ErrorEvent("overloaded_error", "Overloaded")),
            (ANTHROPIC, ErrorEvent("api_error", "Internal server error")),
            (CHAT, ErrorEvent("server_error", "The server had an error")),
            (RESPONSES, ErrorEvent("server_error", "The server had an error")),
            (RESPONSES, ErrorEvent("response.failed", "The server had an error")),
        ],
    )
    async def test_a_server_with_an_overloaded_error_in_its_stream_is_called_again(
        self, vendor: Vendor, event: ErrorEvent
    ) -> None:
        async with connected(vendor) as line:
            line.server.says([event], [Say("Sunny.")])
            assert (await answer(line)).blocks == SUNNY

    async def test_a_server_that_cannot_be_reached_is_called_again(self, line: Line) -> None:
        await request_for(line)
        await line.server.__aexit__()
        time = FakeTime()
        async with connected(line.vendor, retry_policy=time.retry_policy()) as other:
            request = await request_for(other)
            await other.server.__aexit__()
            with pytest.raises(ProviderFailed, match=r"connection to (anthropic|openai) failed.*asked 5 times"):
                [_ async for _ in other.provider.speak(request)]
            assert len(time.slept) == 4
            await other.server.__aenter__()
        await line.server.__aenter__()

    async def test_the_number_of_retries_is_limited(self, line: Line) -> None:
        line.server.says(*[[Refuse(529, "Overloaded", "overloaded_error")] for _ in range(9)])
        failed, said = await failure(line)
        assert failed.code == "provider_error"
        assert "answered 529: Overloaded (asked 5 times)" in failed.detail
        retries = [piece.reason for piece in said if isinstance(piece, Restarted)]
        assert len(retries) == len(said) == 4, "each retry is told, and nothing was said"
        assert all("answered 529: Overloaded" in reason for reason in retries)
        assert len(line.server.bodies) == 5

    async def test_waits_grow_and_are_spread(self) -> None:
        time = FakeTime()
        async with connected(ANTHROPIC, retry_policy=time.retry_policy()) as line:
            line.server.says(*[[Refuse(503, "No")] for _ in range(5)])
            await failure(line, timeout_seconds=60.0)
        assert len(time.slept) == 4
        for slept, longest in zip(time.slept, [0.5, 1, 2, 4], strict=True):
            assert longest / 2 <= slept <= longest

    @pytest.mark.parametrize("headers", [{"retry-after": "7"}, {"retry-after-ms": "7000"}], ids=str)
    async def test_a_retry_after_header_is_respected(self, headers: dict[str, str]) -> None:
        for vendor in VENDORS:
            time = FakeTime()
            async with connected(vendor, retry_policy=time.retry_policy()) as line:
                line.server.says([Refuse(429, "Slow down", "rate_limit_error", headers=headers)], [Say("Sunny.")])
                assert (await answer(line, timeout_seconds=60.0)).blocks == SUNNY
            assert len(time.slept) == 1
            assert 7.0 <= time.slept[0] <= 8.0

    async def test_a_retry_after_beyond_the_deadline_fails_at_once(self, line: Line) -> None:
        line.server.says([Refuse(429, "Try again in an hour", headers={"retry-after": "3600"})])
        failed, _ = await failure(line)
        assert "answered 429: Try again in an hour" in failed.detail
        assert len(line.server.bodies) == 1

    async def test_retry_after_may_be_a_date(self, line: Line) -> None:
        line.server.says([Refuse(429, "Later", headers={"retry-after": "Fri, 31 Dec 2999 23:59:59 GMT"})])
        await failure(line)
        assert len(line.server.bodies) == 1

    @pytest.mark.parametrize(
        "when, seconds",
        [("Mon, 01 Jun 2026 12:01:30 GMT", 90.0), ("Mon, 01 Jun 2026 11:00:00 GMT", 0.0), ("soon", None), ("", None)],
    )
    def test_retry_after_counts_from_now(self, when: str, seconds: float | None) -> None:
        now = datetime(2026, 6, 1, 12, tzinfo=UTC)
        refused = ErrorResponse("Later", status=429, headers={"retry-after": when})
        attempt = failed_attempt(refused, provider="openai", secrets=(), timeout_seconds=1.0, now=now)
        assert attempt.retry_after_seconds == seconds

    @pytest.mark.parametrize("status", [400, 404, 422])
    async def test_a_refusal_is_reported_at_once_with_its_own_message(self, line: Line, status: int) -> None:
        line.server.says([Refuse(status, "prompt is too long: 250000 tokens > 200000 maximum")])
        failed, _ = await failure(line)
        assert failed.code == "provider_error"
        assert f"answered {status}: prompt is too long: 250000 tokens > 200000 maximum" in failed.detail
        assert len(line.server.bodies) == 1

    async def test_an_exhausted_quota_is_not_retried(self) -> None:
        async with connected(CHAT) as line:
            words = "You exceeded your current quota"
            line.server.says([Refuse(429, words, "insufficient_quota", "insufficient_quota")])
            failed, _ = await failure(line)
            assert words in failed.detail
            assert len(line.server.bodies) == 1

    async def test_nor_is_one_that_a_stream_reports(self) -> None:
        error = b'{"message": "You exceeded your quota", "type": "rate_limit_error", "code": "insufficient_quota"}'
        async with connected(CHAT) as line:
            line.server.says([Raw(b'data: {"error": %b}\n\n' % error)])
            failed, _ = await failure(line)
            assert "You exceeded your quota" in failed.detail
            assert len(line.server.bodies) == 1

    async def test_the_header_x_should_retry_decides(self, line: Line) -> None:
        line.server.says([Refuse(503, "Gone for good", headers={"x-should-retry": "false"})])
        await failure(line)
        assert len(line.server.bodies) == 1
        line.server.says([Refuse(409, "Not yet", headers={"x-should-retry": "true"})], [Say("Sunny.")])
        assert (await answer(line)).blocks == SUNNY

    async def test_an_error_page_of_a_proxy_is_reported_without_its_tags(self, line: Line) -> None:
        page = "<html><body><h1>403 Forbidden</h1>\n<p>by the proxy</p></body></html>"
        line.server.says([Refuse(403, body=page)])
        failed, _ = await failure(line)
        assert "403 Forbidden by the proxy" in failed.detail
        assert "<" not in failed.detail

    @pytest.mark.parametrize("script", [[HangBeforeHeaders()], [Hang()]], ids=["no status", "no token"])
    async def test_silence_is_a_timeout(self, line: Line, script: Any) -> None:
        line.server.says(script)
        failed, _ = await failure(line, timeout_seconds=0.2)
        assert isinstance(failed, ProviderTimedOut)
        assert failed.code == "model_timeout"
        assert "0.2 seconds" in failed.detail


class TestAfterTheFirstToken:
    @pytest.mark.parametrize("fault", [Cut(), End()], ids=["cut", "ended"])
    async def test_a_broken_stream_is_not_requested_again(self, line: Line, fault: Any) -> None:
        line.server.says([Say("It is"), fault])
        failed, said = await failure(line)
        assert failed.code == "provider_error"
        assert line.provider.name in failed.detail
        assert shown(said) == "It is"
        assert len(line.server.bodies) == 1

    async def test_a_stream_broken_in_a_call_is_not_requested_again(self, line: Line) -> None:
        line.server.says([Call("weather", {"city": "Bern"}), Cut()])
        await failure(line)
        assert len(line.server.bodies) == 1

    async def test_an_error_in_the_stream_is_reported_with_its_own_message(self, line: Line) -> None:
        line.server.says(
            [Say("It is"), ErrorEvent("overloaded_error", "Overloaded, key sk-test-key or sk-ant-test-key")]
        )
        failed, said = await failure(line)
        assert failed.code == "provider_error"
        assert "Overloaded" in failed.detail
        assert "test-key" not in failed.detail
        assert shown(said) == "It is"
        assert len(line.server.bodies) == 1

    async def test_a_connection_that_breaks_after_the_end_is_ignored(self) -> None:
        last = b'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}\n\n'
        async with connected(CHAT) as line:
            line.server.says([Say("Sunny."), Raw(last), Cut()])
            assert (await answer(line)).blocks == SUNNY

    async def test_silence_is_a_timeout(self, line: Line) -> None:
        line.server.says([Say("It is"), Hang()])
        failed, said = await failure(line, timeout_seconds=2.0)
        assert failed.code == "model_timeout"
        assert shown(said) == "It is"

    async def test_a_slow_answer_is_not_a_timeout(self) -> None:
        words = [f"word{number} " for number in range(6)]
        slowly: list[Any] = []
        for word in words:
            slowly += [Say(word, pieces=1), Wait(lambda: asyncio.sleep(0.4))]
        async with connected(CHAT) as line:
            line.server.says(slowly)
            pieces = await ask(line, timeout_seconds=2.0)
            assert shown(pieces) == "".join(words)


class TestGarbage:
    @pytest.mark.parametrize(
        "content",
        [
            b"event: content_block_delta\ndata: {nonsense\n\n",
            b"event: content_block_delta\ndata: 17\n\n",
            b"event: message_start\ndata: \xff\xfe\xfd\n\n",
        ],
    )
    async def test_is_reported_as_a_protocol_error(self, line: Line, content: bytes) -> None:
        line.server.says([Raw(content)])
        failed, said = await failure(line)
        assert failed.code == "provider_error"
        assert [piece for piece in said if isinstance(piece, Delta) and piece.text] == []

    @pytest.mark.parametrize(
        "vendor, fields",
        [
            (ANTHROPIC, '{"type": "content_block_delta", "index": 0, "delta": null}'),
            (ANTHROPIC, '{"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": 7}}'),
            (CHAT, '{"choices": 3}'),
            (CHAT, '{"choices": [{"index": 0, "delta": {"content": ["a", "b"]}}]}'),
            (RESPONSES, '{"type": "response.output_text.delta"}'),
            (RESPONSES, '{"type": "response.output_text.delta", "delta": {"a": 1}}'),
        ],
    )
    async def test_values_of_the_wrong_type_are_a_protocol_error(self, vendor: Vendor, fields: str) -> None:
        async with connected(vendor) as line:
            line.server.says([Raw(f"event: content_block_delta\ndata: {fields}\n\n".encode())])
            failed, _ = await failure(line)
            assert failed.code == "provider_error"
            assert "not an answer of its protocol" in failed.detail

    async def test_a_page_in_place_of_a_stream_is_a_protocol_error(self, line: Line) -> None:
        page: Script = [Raw(b"<html>Welcome to the wrong port</html>\n\n"), End()]
        line.server.says(*[page] * 5)
        failed, _ = await failure(line)
        assert failed.code == "provider_error"

    async def test_with_endless_nesting_is_a_protocol_error(self, line: Line) -> None:
        line.server.says([Raw(b"event: message_start\ndata: " + b'{"a":' * 100_000 + b"\n\n")])
        failed, _ = await failure(line)
        assert failed.code == "provider_error"


class TestAModelThatDeclines:
    async def test_a_refusal_of_claude_has_its_reason(self) -> None:
        async with connected(ANTHROPIC) as line:
            line.server.says([Say("Well"), Stop("refusal", "This could enable harm.")])
            failed, said = await failure(line)
            assert "declined" in failed.detail
            assert "This could enable harm." in failed.detail
            assert shown(said) == "Well"

    @pytest.mark.parametrize("vendor", [CHAT, RESPONSES], ids=lambda vendor: vendor.name)
    async def test_a_filter_stops_it(self, vendor: Vendor) -> None:
        async with connected(vendor) as line:
            line.server.says([Say("Well"), Stop("content_filter")])
            failed, _ = await failure(line)
            assert "content filter" in failed.detail

    async def test_a_model_that_used_all_its_tokens_without_an_answer_fails(self, line: Line) -> None:
        line.server.says([Stop(line.vendor.cut_off)])
        failed, _ = await failure(line)
        assert "output limit" in failed.detail


class TestSecrets:
    async def test_a_key_is_never_repeated(self) -> None:
        for vendor, key in ((ANTHROPIC, "sk-ant-wrong-key-12345"), (CHAT, "hunter22")):
            async with connected(vendor, key=key) as line:
                failed, _ = await failure(line)
                assert "401" in failed.detail
                assert key not in failed.detail
                assert "***" in failed.detail

    async def test_the_placeholder_for_a_missing_key_is_not_masked(self) -> None:
        async with connected(CHAT, wire=CHAT.wire(key="x"), key="x") as line:
            line.server.says([Refuse(400, "Expecting a text, as in the example")])
            failed, _ = await failure(line)
            assert "Expecting a text, as in the example" in failed.detail
