from typing import Literal

import pytest
from msgspec import Struct

from turnkeep.errors import Defect
from turnkeep.ids import CallId, ConversationId, OrgId, TurnId, WorkspaceId
from turnkeep.model.principals import Principal
from turnkeep.tools.functions import tool
from turnkeep.tools.ports import CallContext, Outcome


def a_context() -> CallContext:
    principal = Principal(org_id=OrgId("org_1"), workspace_id=WorkspaceId("ws_1"), user_id=None, role="service")
    return CallContext(
        call_id=CallId("call_1"),
        turn_id=TurnId("turn_1"),
        conversation_id=ConversationId("conv_1"),
        principal=principal,
    )


class TestTheSchema:
    def test_comes_from_the_type_hints(self) -> None:
        @tool
        def forecast(city: str, days: int = 1, unit: Literal["c", "f"] = "c") -> str:
            """The weather to come."""
            return f"{city} {days} {unit}"

        assert forecast.spec.name == "forecast"
        assert forecast.spec.description == "The weather to come."
        assert forecast.spec.input_schema["properties"]["days"] == {"type": "integer", "default": 1}
        assert forecast.spec.input_schema["properties"]["unit"]["enum"] == ["c", "f"]
        assert forecast.spec.input_schema["required"] == ["city"]
        assert forecast.spec.is_idempotent is False

    def test_keeps_the_object_on_top_and_nested_ones_beside_it(self) -> None:
        class Place(Struct):
            name: str

        @tool(idempotent=True)
        def visit(place: Place) -> str:
            return place.name

        schema = visit.spec.input_schema
        assert schema["type"] == "object"
        assert schema["properties"]["place"] == {"$ref": "#/$defs/Place"}
        assert schema["$defs"]["Place"]["required"] == ["name"]
        assert visit.spec.is_idempotent is True

    def test_does_not_show_the_context(self) -> None:
        @tool
        def who(context: CallContext) -> str:
            return context.call_id

        assert who.spec.input_schema["properties"] == {}

    def test_refuses_a_function_that_cannot_be_called_by_name(self) -> None:
        with pytest.raises(Defect, match="cannot be called by name"):

            @tool
            def anything(*words: str) -> str:
                return " ".join(words)


class TestCalling:
    async def test_checks_the_arguments_first(self) -> None:
        called = []

        @tool
        def double(number: int) -> int:
            called.append(number)
            return number * 2

        wrong = await double.call({"number": "seven"}, a_context())
        assert wrong.error is not None
        assert "double" in wrong.error
        assert called == []
        assert (await double.call({"number": 7}, a_context())).result == 14

    async def test_refuses_arguments_that_it_does_not_know(self) -> None:
        @tool
        def nothing() -> str:
            return "done"

        outcome = await nothing.call({"colour": "red"}, a_context())
        assert outcome.error is not None
        assert "colour" in outcome.error

    async def test_passes_the_context_to_a_parameter_that_asks_for_it(self) -> None:
        @tool
        async def who(greeting: str, context: CallContext) -> str:
            return f"{greeting} {context.call_id}"

        assert (await who.call({"greeting": "hi"}, a_context())).result == "hi call_1"

    async def test_a_mutable_default_is_copied_for_each_call(self) -> None:
        @tool
        def collect(item: str, into: list[str] = []) -> list[str]:  # noqa: B006 - that is the point
            into.append(item)
            return into

        await collect.call({"item": "a"}, a_context())
        assert (await collect.call({"item": "b"}, a_context())).result == ["b"]

    async def test_an_outcome_is_passed_on_as_it_is(self) -> None:
        @tool
        def refuse() -> Outcome:
            return Outcome(error="not today")

        assert (await refuse.call({}, a_context())).error == "not today"
