"""The repair of one turn: every call is answered once, directly after it, in order; no utterance is empty."""

from tests.compiler.histories import answered, asked, called, row, said
from turnkeep.compiler.exchange import EMPTY_MESSAGE, NO_OUTPUT, OUTCOME_UNKNOWN, Exchange, Repair, repair
from turnkeep.compiler.utterances import View, view_turn
from turnkeep.ids import CallId, TurnId
from turnkeep.model.messages import Message
from turnkeep_client.wire.blocks import Block, Reasoning, Text, ToolResult, ToolUse

THOUGHT = Reasoning(text="hm", provider="anthropic", signature="s")


def repaired(*rows: Message) -> tuple[Exchange, list[Repair]]:
    exchange, _ = view_turn(TurnId("turn_a"), rows, View(reasoning_of="anthropic", contents={}))
    return repair(exchange)


def shape(exchange: Exchange) -> list[str]:
    """`assistant: text call(a)`, one line per utterance."""
    return [f"{u.role}: {' '.join(_name(block) for block in u.blocks)}" for u in exchange.utterances]


def _name(block: Block) -> str:
    match block:
        case ToolUse():
            return f"call({block.id})"
        case ToolResult():
            return f"{'error' if block.is_error else 'result'}({block.call_id})"
        case _:
            return type(block).__name__.lower()


def kinds(repairs: list[Repair]) -> list[str]:
    return [repair.kind for repair in repairs]


class TestCallsAndResults:
    def test_a_sound_turn_is_left_as_it_is(self) -> None:
        rows = (asked("turn_a"), called("turn_a", 1, "a"), answered("turn_a", 2, "a"), said("turn_a", 3))
        exchange, repairs = repaired(*rows)
        assert shape(exchange) == ["user: text", "assistant: call(a)", "user: result(a)", "assistant: text"]
        assert repairs == []

    def test_an_interrupted_call_has_an_unknown_outcome(self) -> None:
        exchange, repairs = repaired(asked("turn_a"), called("turn_a", 1, "a"))
        assert shape(exchange)[-1] == "user: error(a)"
        assert exchange.utterances[-1].blocks[0] == ToolResult(
            call_id=CallId("a"), content=OUTCOME_UNKNOWN, is_error=True
        )
        assert kinds(repairs) == ["result_missing"]

    def test_of_parallel_calls_only_the_unfinished_one_is_unknown(self) -> None:
        exchange, _ = repaired(asked("turn_a"), called("turn_a", 1, "a", "b", "c"), answered("turn_a", 2, "b"))
        assert shape(exchange)[-1] == "user: error(a) result(b) error(c)"

    def test_results_that_came_as_they_were_ready_stand_in_the_order_of_the_calls(self) -> None:
        rows = [answered("turn_a", 2 + n, call) for n, call in enumerate("cab")]
        exchange, repairs = repaired(asked("turn_a"), called("turn_a", 1, "a", "b", "c"), *rows)
        assert shape(exchange)[-1] == "user: result(a) result(b) result(c)"
        assert kinds(repairs) == ["results_ordered"]

    def test_a_result_without_a_call_is_left_out(self) -> None:
        exchange, repairs = repaired(asked("turn_a"), answered("turn_a", 1, "ghost"), said("turn_a", 2))
        assert shape(exchange) == ["user: text", "assistant: text"]
        assert kinds(repairs) == ["result_orphaned"]

    def test_of_two_results_the_first_holds(self) -> None:
        second = row("turn_a", 3, "user", ToolResult(call_id=CallId("a"), content="later"))
        exchange, repairs = repaired(asked("turn_a"), called("turn_a", 1, "a"), answered("turn_a", 2, "a"), second)
        assert shape(exchange)[-1] == "user: result(a)"
        assert exchange.utterances[-1].blocks[0] == ToolResult(call_id=CallId("a"), content="result of a")
        assert kinds(repairs) == ["result_duplicated"]

    def test_a_result_that_came_late_is_moved_to_its_call(self) -> None:
        rows = (asked("turn_a"), called("turn_a", 1, "a"), said("turn_a", 2), answered("turn_a", 3, "a"))
        exchange, repairs = repaired(*rows)
        assert shape(exchange) == ["user: text", "assistant: call(a)", "user: result(a)", "assistant: text"]
        assert kinds(repairs) == ["result_moved"]

    def test_a_result_before_its_call_is_moved_behind_it(self) -> None:
        exchange, repairs = repaired(asked("turn_a"), answered("turn_a", 1, "a"), called("turn_a", 2, "a"))
        assert shape(exchange) == ["user: text", "assistant: call(a)", "user: result(a)"]
        assert kinds(repairs) == ["result_moved"]

    def test_words_beside_a_result_come_after_all_results(self) -> None:
        mixed = row("turn_a", 2, "user", Text(text="hurry"), *answered("turn_a", 2, "a").blocks)
        exchange, _ = repaired(asked("turn_a"), called("turn_a", 1, "a"), mixed)
        assert shape(exchange)[1:] == ["assistant: call(a)", "user: result(a)", "user: text"]

    def test_an_empty_result_says_that_there_was_no_output(self) -> None:
        empty = row("turn_a", 2, "user", ToolResult(call_id=CallId("a"), content=" \n", is_error=True))
        exchange, repairs = repaired(asked("turn_a"), called("turn_a", 1, "a"), empty)
        assert exchange.utterances[-1].blocks == (ToolResult(call_id=CallId("a"), content=NO_OUTPUT, is_error=True),)
        assert kinds(repairs) == ["result_empty"]

    def test_a_result_inside_the_assistants_row_is_the_users(self) -> None:
        whole = row("turn_a", 1, "assistant", *called("", 0, "a").blocks, *answered("", 0, "a").blocks, Text(text="ok"))
        exchange, repairs = repaired(asked("turn_a"), whole)
        assert shape(exchange) == ["user: text", "assistant: call(a)", "user: result(a)", "assistant: text"]
        assert repairs == []

    def test_words_after_a_call_come_before_it(self) -> None:
        late = row("turn_a", 1, "assistant", THOUGHT, *called("", 0, "a", "b").blocks, Text(text="ok"))
        exchange, _ = repaired(asked("turn_a"), late, answered("turn_a", 2, "a", "b"))
        assert shape(exchange)[1] == "assistant: reasoning text call(a) call(b)"

    def test_also_where_nothing_else_is_amiss(self) -> None:
        late = row("turn_a", 1, "assistant", *called("", 0, "a").blocks, Text(text="ok"))
        exchange, _ = repaired(asked("turn_a"), late, answered("turn_a", 2, "a"))
        assert shape(exchange)[1] == "assistant: text call(a)"


class TestIdsThatRecur:
    def test_each_round_keeps_its_own_result(self) -> None:
        first = row("turn_a", 2, "user", ToolResult(call_id=CallId("call_0"), content="one"))
        second = row("turn_a", 4, "user", ToolResult(call_id=CallId("call_0"), content="two"))
        exchange, repairs = repaired(
            asked("turn_a"), called("turn_a", 1, "call_0"), first, called("turn_a", 3, "call_0"), second
        )
        contents = [b.content for u in exchange.utterances for b in u.blocks if isinstance(b, ToolResult)]
        assert contents == ["one", "two"]
        assert repairs == []

    def test_a_result_belongs_to_the_latest_round_that_waits(self) -> None:
        late = row("turn_a", 3, "user", ToolResult(call_id=CallId("call_0"), content="two"))
        exchange, _ = repaired(asked("turn_a"), called("turn_a", 1, "call_0"), called("turn_a", 2, "call_0"), late)
        contents = [b.content for u in exchange.utterances for b in u.blocks if isinstance(b, ToolResult)]
        assert contents == [OUTCOME_UNKNOWN, "two"]

    def test_twins_in_one_round_are_answered_in_order(self) -> None:
        results = row(
            "turn_a",
            2,
            "user",
            ToolResult(call_id=CallId("x"), content="one"),
            ToolResult(call_id=CallId("x"), content="two"),
        )
        exchange, _ = repaired(asked("turn_a"), called("turn_a", 1, "x", "x"), results)
        assert [b.content for b in exchange.utterances[-1].blocks if isinstance(b, ToolResult)] == ["one", "two"]


class TestEmptyWords:
    def test_an_empty_text_beside_something_else_vanishes(self) -> None:
        blank = row("turn_a", 1, "assistant", Text(text="\n\n"), *called("", 0, "a").blocks)
        exchange, _ = repaired(asked("turn_a"), blank, answered("turn_a", 2, "a"))
        assert shape(exchange)[1] == "assistant: call(a)"

    def test_an_assistants_empty_message_vanishes(self) -> None:
        exchange, repairs = repaired(asked("turn_a"), said("turn_a", 1, " "))
        assert shape(exchange) == ["user: text"]
        assert kinds(repairs) == ["message_empty"]

    def test_a_users_empty_message_says_that_it_is_empty(self) -> None:
        exchange, repairs = repaired(asked("turn_a", ""), said("turn_a", 1))
        assert exchange.utterances[0].blocks == (Text(text=EMPTY_MESSAGE),)
        assert kinds(repairs) == ["message_empty"]


class TestReasoning:
    def test_it_stays_in_front_of_what_it_led_to(self) -> None:
        thinking = row("turn_a", 1, "assistant", THOUGHT, *called("", 0, "a").blocks)
        exchange, repairs = repaired(asked("turn_a"), thinking, answered("turn_a", 2, "a"))
        assert shape(exchange)[1] == "assistant: reasoning call(a)"
        assert repairs == []

    def test_it_goes_where_it_was_cut_off(self) -> None:
        cut = row("turn_a", 1, "assistant", THOUGHT, Text(text="So"), THOUGHT)
        exchange, repairs = repaired(asked("turn_a"), cut)
        assert shape(exchange)[1] == "assistant: reasoning text"
        assert kinds(repairs) == ["reasoning_dropped"]

    def test_it_goes_where_only_words_that_moved_stood_behind_it(self) -> None:
        odd = row("turn_a", 1, "assistant", THOUGHT, *called("", 0, "a").blocks, THOUGHT, Text(text="ok"))
        exchange, _ = repaired(asked("turn_a"), odd, answered("turn_a", 2, "a"))
        assert shape(exchange)[1] == "assistant: reasoning text call(a)"
        assert repair(exchange) == (exchange, [])

    def test_alone_it_is_no_message(self) -> None:
        exchange, repairs = repaired(asked("turn_a"), row("turn_a", 1, "assistant", THOUGHT))
        assert shape(exchange) == ["user: text"]
        assert kinds(repairs) == ["reasoning_dropped", "message_empty"]

    def test_behind_other_words_it_is_out_of_place(self) -> None:
        exchange, _ = repaired(
            asked("turn_a"), row("turn_a", 1, "assistant", Text(text="So"), THOUGHT, Text(text="on"))
        )
        assert shape(exchange)[1] == "assistant: text text"
