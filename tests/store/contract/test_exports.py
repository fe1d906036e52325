"""Histories from elsewhere, and our own as files: through the door and out again."""

import msgspec
import pytest

from tests.store.factories import Tenant, a_tenant, finish_with_tool
from turnkeep.compiler import compile
from turnkeep.compiler.judge import judge_openai_chat
from turnkeep.errors import InvalidRequest
from turnkeep.store.exports import exported_from_rows, read_export, write_export
from turnkeep.store.ports import Store
from turnkeep.transfer.transcripts import read_transcript
from turnkeep_client.wire.blocks import JsonObject, StepPart, TextPart
from turnkeep_client.wire.events import Result

OPENAI: list[JsonObject] = [
    {"role": "user", "content": "Weather in Bern?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "call_a", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Bern"}'}}
        ],
    },
    {"role": "tool", "tool_call_id": "call_a", "content": "sunny"},
    {"role": "assistant", "content": "It is sunny."},
    {"role": "user", "content": "Thanks"},
    {"role": "assistant", "content": "You are welcome."},
]
ANTHROPIC: list[JsonObject] = [
    {"role": "user", "content": "Weather in Bern?"},
    {
        "role": "assistant",
        "content": [
            {"type": "text", "text": "Let me look."},
            {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Bern"}},
        ],
    },
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "sunny"}]},
    {"role": "assistant", "content": [{"type": "text", "text": "It is sunny."}]},
]
PLAIN: list[JsonObject] = [
    {"role": "user", "content": "Hello", "ts": 1_700_000_000_000},
    {"role": "assistant", "content": "Hi.", "ts": 1_700_000_000_500},
]


class TestAForeignHistory:
    async def test_of_openai_becomes_turns_with_their_tool_trace(self, store: Store, tenant: Tenant) -> None:
        exported = exported_from_rows(read_transcript(OPENAI).rows)
        conversation = await store.import_conversation(tenant.ann, exported)
        assert (conversation.turn_count, conversation.message_count) == (2, 4)
        assert conversation.title == "Weather in Bern?"
        page = await store.transcript(tenant.ann, conversation.id)
        step, answer = page.data[1].content
        assert isinstance(step, StepPart)
        assert (step.name, step.status, step.result) == ("weather", "succeeded", "sunny")
        assert answer == TextPart(text="It is sunny.")

    async def test_of_anthropic_keeps_what_was_said_before_the_call(self, store: Store, tenant: Tenant) -> None:
        exported = exported_from_rows(read_transcript(ANTHROPIC).rows)
        conversation = await store.import_conversation(tenant.ann, exported)
        page = await store.transcript(tenant.ann, conversation.id)
        assert page.data[1].content[0] == TextPart(text="Let me look.")
        assert len((await store.window(conversation.id)).rows) == 4

    async def test_of_plain_messages_keeps_their_times(self, store: Store, tenant: Tenant) -> None:
        conversation = await store.import_conversation(tenant.ann, exported_from_rows(read_transcript(PLAIN).rows))
        page = await store.transcript(tenant.ann, conversation.id)
        assert [message.created_at for message in page.data] == [1_700_000_000_000, 1_700_000_000_500]

    async def test_has_a_stream_that_tells_what_happened(self, store: Store, tenant: Tenant) -> None:
        conversation = await store.import_conversation(tenant.ann, exported_from_rows(read_transcript(OPENAI).rows))
        page = await store.transcript(tenant.ann, conversation.id)
        events = await store.events(page.data[1].turn_id)
        result = events[-1].event
        assert isinstance(result, Result)
        assert result.content == page.data[1].content
        assert [recorded.seq for recorded in events] == list(range(1, len(events) + 1))

    async def test_is_found_and_can_be_replayed(self, store: Store, tenant: Tenant) -> None:
        conversation = await store.import_conversation(tenant.ann, exported_from_rows(read_transcript(OPENAI).rows))
        hits = await store.conversations(tenant.ann, query="sunny")
        assert [hit.conversation.id for hit in hits.data] == [conversation.id]
        window = await store.window(conversation.id)
        compiled = compile(window.rows, target="openai_chat")
        violations = judge_openai_chat({"messages": compiled.messages})
        assert [violation for violation in violations if "end" not in violation.rule] == []

    async def test_that_is_empty_is_refused(self) -> None:
        with pytest.raises(InvalidRequest, match="nothing to import"):
            exported_from_rows([])


class TestAFileOfOurOwn:
    async def test_goes_to_another_tenant_and_comes_back_the_same(self, store: Store, tenant: Tenant) -> None:
        turn = await finish_with_tool(store, tenant.ann)
        exported = await store.export_conversation(tenant.service, turn.conversation_id)
        data = write_export(exported)
        assert read_export(data) == exported
        other = await a_tenant(store, "Other")
        conversation = await store.import_conversation(other.ann, read_export(data))
        again = await store.export_conversation(other.service, conversation.id)
        assert [len(trace.events) for trace in again.turns] == [len(trace.events) for trace in exported.turns]
        assert [row.blocks for trace in again.turns for row in trace.rows] == [
            row.blocks for trace in exported.turns for row in trace.rows
        ]

    @pytest.mark.parametrize("data", [b"", b"{}", b"[1, 2]", b'{"turnkeep_export": "one"}', b"\xff\xfe"])
    def test_that_is_something_else_is_refused(self, data: bytes) -> None:
        with pytest.raises(InvalidRequest, match="not an export"):
            read_export(data)

    def test_of_a_later_release_says_what_to_do(self) -> None:
        with pytest.raises(InvalidRequest, match="Upgrade"):
            read_export(msgspec.json.encode({"turnkeep_export": 99, "exported": {}}))
