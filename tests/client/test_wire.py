"""The shapes of the wire: strict for requests, tolerant for answers, with one definition for both sides."""

import inspect
from typing import Any, get_type_hints

import msgspec
import pytest

from turnkeep.api import openapi
from turnkeep_client import wire
from turnkeep_client.conversations import Conversations
from turnkeep_client.stream import decode_event
from turnkeep_client.turns import AskOptions
from turnkeep_client.wire.conversations import ConversationFields
from turnkeep_client.wire.sse import ServerSentEvent

SHAPES = [value for value in vars(wire).values() if inspect.isclass(value) and issubclass(value, msgspec.Struct)]


def answer(name: str, **changes: Any) -> bytes:
    """The example of an answer as JSON, with other fields."""
    return msgspec.json.encode(msgspec.to_builtins(openapi.RESPONSES[name]) | changes)


class TestANewerServer:
    def test_may_add_fields(self) -> None:
        assert msgspec.json.decode(answer("Turn", mood="good"), type=wire.Turn).attempt == 1

    @pytest.mark.parametrize(
        "name, field",
        [("Turn", "status"), ("Message", "role"), ("Message", "status"), ("Conversation", "kind"), ("File", "source")],
    )
    def test_may_add_words(self, name: str, field: str) -> None:
        read = msgspec.json.decode(answer(name, **{field: "paused"}), type=getattr(wire, name))
        assert getattr(read, field) == "paused"

    def test_may_add_words_to_events(self) -> None:
        data = '{"type":"step","id":"s1","name":"shell","status":"skipped"}'
        event = decode_event(ServerSentEvent(event="step", data=data, id="1"))
        assert isinstance(event, wire.Step)
        assert event.status == "skipped"


class TestARequest:
    @pytest.mark.parametrize("name", sorted(openapi.REQUESTS))
    def test_is_refused_for_an_unknown_field(self, name: str) -> None:
        example = openapi.REQUESTS[name]
        msgspec.convert(example, getattr(wire, name))
        with pytest.raises(msgspec.ValidationError, match="mesage"):
            msgspec.convert(example | {"mesage": 1}, getattr(wire, name))

    def test_is_refused_for_an_unknown_word(self) -> None:
        with pytest.raises(msgspec.ValidationError, match="if_busy"):
            msgspec.convert({"message": "Hello?", "if_busy": "shout"}, wire.NewTurn)


class TestAbsentFields:
    def test_an_empty_list_is_said_and_the_default_is_left_out(self) -> None:
        example = openapi.RESPONSES["Conversation"]
        said = msgspec.structs.replace(example, queued_turns=[])
        left_out = msgspec.structs.replace(example, queued_turns=())
        assert b'"queued_turns":[]' in msgspec.json.encode(said)
        assert b"queued_turns" not in msgspec.json.encode(left_out)

    def test_a_member_sees_five_fields_of_an_agent(self) -> None:
        agent = wire.Agent(id="agent_1", name="Help", description="", starters=(), model=None)
        assert msgspec.json.decode(msgspec.json.encode(agent)) == {
            "id": "agent_1",
            "name": "Help",
            "description": "",
            "starters": [],
            "model": None,
        }
        assert not agent.instructions
        assert list(agent.tools) == []


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_every_shape_is_frozen(shape: type[msgspec.Struct]) -> None:
    assert shape.__struct_config__.frozen


class TestFieldsOfAConversation:
    """They are declared once for bodies and once for keyword arguments, side by side."""

    @pytest.mark.parametrize("body", [wire.NewConversation, wire.NewTurn])
    def test_are_accepted_by_every_body_that_opens_one(self, body: type[msgspec.Struct]) -> None:
        assert set(get_type_hints(ConversationFields)) <= {field.name for field in msgspec.structs.fields(body)}

    def test_are_keyword_arguments_of_the_client(self) -> None:
        shared = {field.name for field in msgspec.structs.fields(wire.NewConversation)} & {
            field.name for field in msgspec.structs.fields(wire.NewTurn)
        }
        named = set(inspect.signature(Conversations.create).parameters)
        assert shared - named == set(get_type_hints(ConversationFields))
        assert shared <= set(get_type_hints(AskOptions))
