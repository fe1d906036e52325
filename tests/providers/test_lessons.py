"""Errors from which a provider learns, so that no conversation is stuck on what one server does not accept."""

from typing import Any

import msgspec
import pytest

from tests.providers.model_requests import answer, request_for, row
from tests.providers.wire.script import Refuse, Say
from tests.providers.wire.vendors import ANTHROPIC, CHAT, RESPONSES, Line, Vendor, connected
from turnkeep.providers.failures import FailedAttempt
from turnkeep.providers.lessons import ANTHROPIC as ANTHROPIC_LESSONS
from turnkeep.providers.lessons import OPENAI_CHAT, OPENAI_RESPONSES, Lesson, Lessons
from turnkeep.providers.ports import ProviderFailed, ToolOffer
from turnkeep_client.wire.blocks import Image, Reasoning, Text

PICTURE = Image(media_type="image/png", data="iVBORw0KGgo=")
SHOWS_PICTURE = row("user", PICTURE, Text(text="What is it?"))
SUNNY = (Text(text="Sunny."),)


class TestPictures:
    async def test_a_model_that_refused_an_image_gets_none_again(self) -> None:
        async with connected(CHAT, brain=lambda body: [Say("Sunny.")]) as line:
            for _ in range(2):
                reply = await answer(line, SHOWS_PICTURE, model="openai/blind-model")
                assert reply.blocks == SUNNY
            assert ["iVBORw0KGgo=" in str(body) for body in line.server.bodies] == [True, False, False]
            assert "not shown" in str(line.server.bodies[1])
            assert not (await line.provider.abilities("openai/blind-model")).sees_images
            assert (await line.provider.abilities("openai/local-model")).sees_images

    @pytest.mark.parametrize(
        "words",
        [
            "google/gemma-2b is not a multimodal model",
            "At most 0 image(s) may be provided in one request.",
            "image input is not supported - hint: if this is unexpected, you may need to provide the mmproj",
            "No endpoints found that support image input",
            "Invalid content type. image_url is only supported by certain models.",
        ],
    )
    async def test_servers_report_it_in_many_ways(self, words: str) -> None:
        async with connected(CHAT) as line:
            line.server.says([Refuse(500 if "mmproj" in words else 400, words)], [Say("Sunny.")])
            assert (await answer(line, SHOWS_PICTURE)).blocks == SUNNY
            assert not (await line.provider.abilities(line.vendor.model)).sees_images

    async def test_one_bad_image_does_not_stop_later_images(self, line: Line) -> None:
        line.server.says([Refuse(400, "Could not process image")], [Say("Sunny.")])
        assert (await answer(line, SHOWS_PICTURE)).blocks == SUNNY
        assert (await line.provider.abilities(line.vendor.model)).sees_images

    async def test_without_pictures_there_is_nothing_to_leave_out(self, line: Line) -> None:
        line.server.says([Refuse(400, "images are not supported")])
        with pytest.raises(ProviderFailed, match="images are not supported"):
            await answer(line)


class TestReasoning:
    async def test_whose_ciphertext_cannot_be_read_any_more_is_left_out(self) -> None:
        async with connected(RESPONSES) as line:
            line.wire.known_proofs = set()
            line.server.says([Say("Sunny.")])
            thought = Reasoning(text="Hm.", provider="openai", data="b2xk", item_id="rs_1")
            rows = [
                row("user", Text(text="Hi")),
                row("assistant", thought, Text(text="Hello."), number=1),
                row("user", Text(text="And now?"), number=2),
            ]
            assert (await answer(line, *rows)).blocks == SUNNY
            assert line.wire.violations == []
            assert "reasoning" in line.server.bodies[1], "only what was said before is left out"

    async def test_whose_signature_is_not_accepted_is_left_out(self) -> None:
        async with connected(ANTHROPIC) as line:
            words = "messages.1.content.0: Invalid `signature` in `thinking` block"
            line.server.says([Refuse(400, words)], [Say("Sunny.")], [Say("Sunny.")])
            thought = Reasoning(text="Hm.", provider="anthropic", signature="b2xk")
            rows = [
                row("user", Text(text="Hi")),
                row("assistant", thought, Text(text="Hello."), number=1),
                row("user", Text(text="And now?"), number=2),
            ]
            assert (await answer(line, *rows)).blocks == SUNNY
            assert line.wire.violations == []
            assert "b2xk" not in str(line.server.bodies[1])
            assert (await line.provider.abilities(line.vendor.model)).thinking == "adaptive"

    async def test_summaries_that_an_organisation_may_not_have_are_not_asked_for_again(self) -> None:
        async with connected(RESPONSES, wire=RESPONSES.wire(may_summarise=False)) as line:
            line.server.says([Say("Sunny.")], [Say("Sunny.")])
            for _ in range(2):
                assert (await answer(line)).blocks == SUNNY
            assert ["reasoning" in body for body in line.server.bodies] == [True, False, False]
            assert all("include" in body for body in line.server.bodies)

    async def test_a_model_that_does_not_reason_is_called_without_reasoning(self) -> None:
        async with connected(RESPONSES) as line:
            line.server.says([Say("Sunny.")])
            assert (await answer(line, model="openai/o9-does-not-reason")).blocks == SUNNY

    async def test_claude_without_reasoning_is_called_without_it(self) -> None:
        async with connected(ANTHROPIC) as line:
            line.server.says([Refuse(400, "adaptive thinking is not supported on this model")], [Say("Sunny.")])
            assert (await answer(line)).blocks == SUNNY
            assert (await line.provider.abilities(line.vendor.model)).thinking == "off"


class TestOtherFields:
    async def test_usage_is_not_requested_again(self) -> None:
        async with connected(CHAT) as line:
            words = "Extra inputs are not permitted: stream_options"
            line.server.says([Refuse(422, words)], [Say("Sunny.")])
            reply = await answer(line)
            assert reply.blocks == SUNNY
            assert reply.usage.input_tokens == 0

    @pytest.mark.parametrize("vendor", [CHAT, RESPONSES], ids=lambda vendor: vendor.name)
    async def test_descriptions_are_shortened(self, vendor: Vendor) -> None:
        async with connected(vendor) as line:
            line.server.says([Say("Sunny.")])
            offer = ToolOffer(name="long", description="x" * 3_000, input_schema={"type": "object"})
            assert (await answer(line, tools=(offer,))).blocks == SUNNY

    async def test_the_limit_of_tokens_is_lowered(self) -> None:
        async with connected(ANTHROPIC, wire=ANTHROPIC.wire(lists_models=False)) as line:
            line.server.says([Say("Sunny.")])
            assert (await answer(line, model="anthropic/claude-plain")).blocks == SUNNY
            assert [body["max_tokens"] for body in line.server.bodies] == [8_192, 4_096]


class TestLessons:
    @pytest.mark.parametrize(
        "known", [ANTHROPIC_LESSONS, OPENAI_CHAT, OPENAI_RESPONSES], ids=["anthropic", "chat", "responses"]
    )
    def test_comes_to_an_end(self, known: tuple[Lesson, ...]) -> None:
        """Whatever a server says, each lesson leaves less to refuse."""
        words = "image not supported thinking signature summary reasoning encrypted content could not be verified "
        words += "stream_options reasoning_effort max_tokens item 'rs_1'"
        body: Any = {
            "messages": [
                {"role": "user", "content": [{"type": "image"}, {"type": "image_url"}]},
                {"role": "assistant", "content": [{"type": "thinking"}, {"type": "text"}]},
            ],
            "input": [{"type": "reasoning"}, {"content": [{"type": "input_image"}]}],
            "max_tokens": 9_000,
            "thinking": {},
            "reasoning": {"summary": "auto", "effort": "low"},
            "reasoning_effort": "low",
            "include": ["x"],
            "stream_options": {},
        }
        lessons = Lessons(known)
        attempt = FailedAttempt(error=ProviderFailed("x"), words=words, status=400)
        for _ in range(len(known)):
            body = lessons.learn("m", attempt, body) or body
        assert lessons.learn("m", attempt, body) is None

    async def test_reads_messages_that_are_encoded_already(self, line: Line) -> None:
        line.server.says([Refuse(400, "images are not supported")], [Say("Sunny.")])
        request = await request_for(line, SHOWS_PICTURE)
        encoded: list[Any] = [msgspec.Raw(msgspec.json.encode(message)) for message in request.messages]
        request = msgspec.structs.replace(request, messages=encoded)
        assert [piece async for piece in line.provider.speak(request)]
        assert ["iVBORw0KGgo=" in str(body) for body in line.server.bodies] == [True, False]
        assert line.wire.violations == []

    async def test_never_changes_what_the_compiler_made(self) -> None:
        async with connected(CHAT) as line:
            line.server.says([Refuse(400, "images are not supported")], [Say("Sunny.")], [Say("Sunny.")])
            request = await request_for(line, SHOWS_PICTURE)
            for _ in range(2):
                assert [piece async for piece in line.provider.speak(request)]
            assert "iVBORw0KGgo=" in str(request.messages)
