"""Fields with the same name pass between the wire and the store without a line of code for each."""

import msgspec
from msgspec import UNSET, UnsetType

from turnkeep.api import views
from turnkeep.api.http.requests import command_of, null_fields
from turnkeep.api.native.turns import CONVERSATION_FIELDS
from turnkeep.ids import ConversationId, WorkspaceId
from turnkeep.model.conversations import Conversation
from turnkeep.store.commands import NewConversation
from turnkeep_client import wire
from turnkeep_client.wire.base import RequestBody


class Body(RequestBody, frozen=True, kw_only=True):
    title: str | UnsetType | None = UNSET
    model: str | UnsetType | None = UNSET
    unknown_to_the_command: str = "x"


class TestACommand:
    def test_has_what_the_body_gives_under_the_same_name(self) -> None:
        made = command_of(NewConversation, wire.NewConversation(title="Plans", workflow_id="wf", metadata={"a": 1}))
        assert made == NewConversation(title="Plans", workflow_id="wf", metadata={"a": 1})

    def test_keeps_its_defaults_for_null_and_for_what_is_left_out(self) -> None:
        assert command_of(NewConversation, Body(title=None)) == NewConversation()

    def test_takes_other_values_where_they_are_given(self) -> None:
        made = command_of(NewConversation, Body(title="Plans", model="a"), model=None)
        assert (made.title, made.model) == ("Plans", None)

    def test_null_is_told_from_what_is_left_out(self) -> None:
        assert null_fields(Body(title=None)) == {"title"}


class TestAView:
    def test_shows_every_field_of_the_same_name(self) -> None:
        stored = Conversation(
            id=ConversationId("conv_1"),
            workspace_id=WorkspaceId("ws_1"),
            user_id=None,
            kind="chat",
            agent_id=None,
            model="m",
            workflow_id="wf",
            title="Plans",
            preview=None,
            message_count=2,
            turn_count=1,
            head_turn_id=None,
            running_turn_id=None,
            metadata={"a": 1},
            created_at=1,
            updated_at=2,
        )
        shown = msgspec.to_builtins(views.conversation_of(stored, {}))
        same = {name: value for name, value in msgspec.to_builtins(stored).items() if name in shown}
        assert {name: shown[name] for name in same} == same
        assert set(shown) == set(same) | {"running_turn", "user"}


def test_a_later_turn_cannot_change_what_belongs_to_the_conversation() -> None:
    assert CONVERSATION_FIELDS == ("kind", "workflow_id", "external_id", "instructions", "temperature")
