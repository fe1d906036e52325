"""Which turns a model is shown: whole ones, the newest, within the budget."""

import sys
from types import ModuleType
from typing import Any

import pytest

from tests.compiler.histories import answered, asked, called, row, said
from turnkeep.compiler import Budget, Compiled, budget_for, compile
from turnkeep.compiler.exchange import BEGAN_EARLIER, EMPTY_MESSAGE, NO_ANSWER, PLEASE_CONTINUE
from turnkeep.compiler.window import CONTEXT_CHARS, measure_for
from turnkeep.errors import InvalidRequest, Unavailable
from turnkeep.ids import CallId, TurnId
from turnkeep.model.messages import Message
from turnkeep_client.wire.blocks import Image, Text, ToolResult


def chats(count: int, *, start: int = 0, length: int = 10) -> list[Message]:
    """Turns of one question and one answer."""
    rows: list[Message] = []
    for number in range(start, start + count):
        rows += [asked(f"turn_{number}", f"q{number}".ljust(length, ".")), said(f"turn_{number}", 1, f"a{number}")]
    return rows


def texts(compiled: Compiled) -> list[str]:
    return [message["content"] for message in compiled.messages]


def chat(rows: list[Message], **more: Any) -> Compiled:
    return compile(rows, target="openai_chat", **more)


class TestTheLastTurns:
    def test_all_are_shown_however_many_there_are(self) -> None:
        compiled = chat(chats(2_500))
        assert compiled.turns_included == 2_500
        assert compiled.turns_dropped == 0

    def test_a_sandbox_is_shown_only_so_many(self) -> None:
        compiled = chat(chats(25), budget=Budget(turns=20))
        assert (compiled.turns_included, compiled.turns_dropped) == (20, 5)
        assert texts(compiled)[0].startswith("q5")

    def test_the_open_turn_is_one_of_them(self) -> None:
        compiled = chat([*chats(25), asked("turn_now")], open_turn=TurnId("turn_now"), budget=Budget(turns=3))
        assert [text[:2] for text in texts(compiled)] == ["q2", "a2", "q2", "a2", "He"]

    def test_a_caller_who_knows_the_count_need_not_hand_in_the_past(self) -> None:
        assert chat(chats(20, start=80), turn_count=100).turns_dropped == 80

    def test_the_size_of_what_is_shown_is_reported(self) -> None:
        compiled = chat(chats(2, length=10))
        assert compiled.chars == compiled.size == 2 * (10 + 2)


class TestTheBudget:
    def test_older_turns_are_dropped_whole_down_to_three_quarters(self) -> None:
        compiled = chat(chats(5, length=98), budget=Budget(size=450))
        assert compiled.turns_included == 3
        assert len(compiled.messages) == 6
        assert compiled.size == 300

    def test_turns_that_fit_exactly_are_shown(self) -> None:
        assert chat(chats(5, length=98), budget=Budget(size=500)).turns_included == 5
        assert chat(chats(5, length=98), budget=Budget(size=400)).turns_included == 3

    def test_nothing_is_dropped_before_it_is_exceeded(self) -> None:
        now = asked("turn_now", "x" * 50)
        for size, shown in ((550, 6), (549, 4)):
            compiled = chat([*chats(5, length=98), now], open_turn=TurnId("turn_now"), budget=Budget(size=size))
            assert compiled.turns_included == shown

    def test_a_tool_round_that_exceeds_it_drops_turns_once(self) -> None:
        """The next rounds begin with the same words, also for a worker that has not sent the rounds before."""
        rows = [*chats(8, length=98), asked("turn_now", "x" * 50)]
        beginnings = []
        for number in range(6):
            compiled = chat(rows, open_turn=TurnId("turn_now"), budget=Budget(size=1_000))
            beginnings.append(texts(compiled)[0][:2])
            assert compiled.size <= 1_000
            result = ToolResult(call_id=CallId(f"call_{number}"), content="r" * 45)
            rows += [called("turn_now", 1 + 2 * number, f"call_{number}")]
            rows += [row("turn_now", 2 + 2 * number, "user", result)]
        assert beginnings == ["q0", "q0", "q0", "q3", "q3", "q3"]

    def test_dropping_stops_at_the_first_that_does_not_fit(self) -> None:
        rows = [*chats(1), *chats(1, start=1, length=500), *chats(1, start=2)]
        assert chat(rows, budget=Budget(size=100)).turns_included == 1

    def test_the_open_turn_is_shown_whatever_its_size(self) -> None:
        compiled = chat(
            [*chats(3), asked("turn_now", "x" * 500)], open_turn=TurnId("turn_now"), budget=Budget(size=100)
        )
        assert texts(compiled) == ["x" * 500]
        assert compiled.turns_dropped == 3

    def test_a_picture_costs_the_same_at_any_length(self) -> None:
        small = compile([row("t", 0, "user", Image(media_type="image/png", data="a" * 4))], target="anthropic")
        large = compile([row("t", 0, "user", Image(media_type="image/png", data="a" * 4000))], target="anthropic")
        assert small.size == large.size


class TestAnOpenTurnThatIsTooLarge:
    def rows(self) -> list[Message]:
        rows = [asked("turn_now", "q")]
        for number in range(3):
            rows.append(called("turn_now", len(rows), f"call_{number}"))
            big = ToolResult(call_id=CallId(f"call_{number}"), content=str(number) * 1000)
            rows.append(row("turn_now", len(rows), "user", big))
        return rows

    def results(self, size: int) -> list[str]:
        compiled = chat([*chats(2), *self.rows()], open_turn=TurnId("turn_now"), budget=Budget(size=size))
        assert compiled.turns_included == 1 or size > 3000
        return [message["content"] for message in compiled.messages if message["role"] == "tool"]

    def test_its_oldest_results_give_way_to_a_note(self) -> None:
        first, second, third = self.results(2500)
        assert first == "[1000 characters of this result were left out to fit the context.]"
        assert (second, third) == ("1" * 1000, "2" * 1000)

    def test_only_as_many_as_must(self) -> None:
        assert [len(text) for text in self.results(1500)] == [66, 66, 1000]
        assert [len(text) for text in self.results(10)] == [66, 66, 66]
        assert [len(text) for text in self.results(4000)] == [1000, 1000, 1000]

    def test_a_result_no_longer_than_the_note_stays(self) -> None:
        rows = [asked("turn_now", "q" * 200), called("turn_now", 1, "c"), answered("turn_now", 2, "c")]
        compiled = chat(rows, open_turn=TurnId("turn_now"), budget=Budget(size=10))
        assert compiled.messages[-1]["content"] == "result of c"

    def test_what_was_left_out_is_reported(self) -> None:
        compiled = chat(self.rows(), open_turn=TurnId("turn_now"), budget=Budget(size=2500))
        assert [repair.kind for repair in compiled.repairs] == ["result_elided"]


class TestACutOffBeginning:
    def test_a_leading_turn_without_its_first_row_is_left_out(self) -> None:
        whole = [asked("turn_0"), called("turn_0", 1, "c"), answered("turn_0", 2, "c"), said("turn_0", 3)]
        for cut in (1, 2, 3):
            compiled = chat([*whole[cut:], *chats(1, start=1)])
            assert [text[:2] for text in texts(compiled)] == ["q1", "a1"]

    def test_unless_it_is_the_open_one(self) -> None:
        rows = [called("turn_0", 1, "c"), answered("turn_0", 2, "c")]
        compiled = chat(rows, open_turn=TurnId("turn_0"))
        assert [message["role"] for message in compiled.messages] == ["user", "assistant", "tool"]
        assert compiled.messages[0]["content"] == BEGAN_EARLIER

    def test_a_history_that_begins_with_the_assistant_says_that_it_began_earlier(self) -> None:
        compiled = chat([said("turn_0", 0, "Welcome!"), *chats(1, start=1)])
        assert texts(compiled)[:2] == [BEGAN_EARLIER, "Welcome!"]
        assert [repair.kind for repair in compiled.repairs] == ["beginning_missing"]


class TestHowRowsBecomeTurns:
    def test_rows_without_a_turn_are_turns_of_their_own(self) -> None:
        rows = [row("", 0, "user", Text(text="a")), row("", 0, "assistant", Text(text="b"), ts=1)]
        assert chat(rows).turns_included == 2

    def test_results_alone_belong_to_the_turn_before(self) -> None:
        rows = [
            row("", 0, "user", Text(text="a")),
            row("", 0, "assistant", *called("", 0, "x", "y").blocks, ts=1),
            row("", 0, "user", *answered("", 0, "y").blocks, ts=2),
            row("", 0, "user", *answered("", 0, "x").blocks, ts=3),
        ]
        compiled = chat(rows, turn_count=4)
        assert [message.get("tool_call_id") for message in compiled.messages[2:4]] == ["x", "y"]
        assert compiled.turns_dropped == 0

    def test_results_with_which_a_turn_begins_belong_to_the_turn_before(self) -> None:
        """A client sent its history in pieces, and one of them ended with a call."""
        rows = [
            asked("turn_a", "a"),
            called("turn_a", 1, "x"),
            answered("turn_b", 0, "x"),
            said("turn_b", 1, "b"),
            asked("turn_c", "c"),
        ]
        compiled = chat(rows, open_turn=TurnId("turn_c"))
        assert [message["role"] for message in compiled.messages] == ["user", "assistant", "tool", "assistant", "user"]
        assert (compiled.repairs, compiled.turns_included) == ((), 3)

    def test_instructions_alone_are_owed_no_answer(self) -> None:
        rows = [row("", 0, "system", Text(text="Be brief.")), asked("turn_a", "a"), said("turn_a", 1, "b")]
        compiled = chat(rows)
        assert texts(compiled) == ["<system>\nBe brief.\n</system>\n\na", "b"]
        assert compiled.turns_included == 2

    def test_a_question_after_an_instruction_is_owed_one(self) -> None:
        instruction = row("turn_a", 0, "system", Text(text="Be brief."))
        rows = [instruction, row("turn_a", 1, "user", Text(text="a")), asked("turn_b", "b")]
        compiled = chat(rows, open_turn=TurnId("turn_b"))
        assert texts(compiled) == ["<system>\nBe brief.\n</system>\n\na", NO_ANSWER, "b"]
        assert [repair.kind for repair in compiled.repairs] == ["answer_missing"]

    def test_a_turn_that_begins_with_a_result_and_words_is_one(self) -> None:
        """Only rows of results alone belong to the turn before."""
        result = ToolResult(call_id=CallId("c"), content="ok")
        both = row("turn_b", 0, "user", result, Text(text="And now?"))
        compiled = chat([asked("turn_a", "a"), called("turn_a", 1, "c"), both], open_turn=TurnId("turn_c"))
        assert compiled.turns_included == 2
        assert "result_orphaned" in [repair.kind for repair in compiled.repairs]

    def test_rows_of_two_turns_may_stand_between_each_other(self) -> None:
        rows = [asked("turn_a", "a"), asked("turn_b", "b"), said("turn_a", 1, "to a"), said("turn_b", 1, "to b")]
        assert texts(chat(rows)) == ["a", "to a", "b", "to b"]

    def test_what_is_queued_behind_the_open_turn_has_not_happened(self) -> None:
        rows = [asked("turn_a", "a"), asked("turn_b", "b"), called("turn_a", 1, "c"), answered("turn_a", 2, "c")]
        compiled = chat(rows, open_turn=TurnId("turn_a"))
        assert [message["role"] for message in compiled.messages] == ["user", "assistant", "tool"]

    def test_and_takes_no_room_in_the_window(self) -> None:
        queued = [asked(f"turn_q{n}", "later") for n in range(5)]
        rows = [*chats(4), asked("turn_now", "now"), *queued]
        compiled = chat(rows, open_turn=TurnId("turn_now"), budget=Budget(turns=3))
        assert [text[:3] for text in texts(compiled)] == ["q2.", "a2", "q3.", "a3", "now"]

    def test_rows_are_read_in_the_order_of_their_sequence(self) -> None:
        rows = [asked("turn_a", "a"), answered("turn_a", 2, "c"), called("turn_a", 1, "c")]
        compiled = chat(rows, open_turn=TurnId("turn_a"))
        assert [message["role"] for message in compiled.messages] == ["user", "assistant", "tool"]
        assert compiled.repairs == ()

    def test_a_long_past_is_not_walked(self) -> None:
        class Counted(list[Message]):
            touched = 0

            def __getitem__(self, index: Any) -> Any:
                Counted.touched += 1
                return super().__getitem__(index)

        chat(Counted(chats(500)), turn_count=500, budget=Budget(turns=20))
        assert Counted.touched == 2 * 20 + 1


class TestTheEndOfATurn:
    def test_a_turn_without_an_answer_is_followed_by_a_line_that_says_so(self) -> None:
        rows = [asked("turn_a", "a"), asked("turn_b", "b")]
        assert texts(chat(rows, open_turn=TurnId("turn_b"))) == ["a", NO_ANSWER, "b"]

    def test_also_where_it_stopped_among_its_tools(self) -> None:
        rows = [asked("turn_a"), called("turn_a", 1, "c"), answered("turn_a", 2, "c"), asked("turn_b")]
        compiled = chat(rows, open_turn=TurnId("turn_b"))
        assert [message["role"] for message in compiled.messages] == ["user", "assistant", "tool", "assistant", "user"]

    def test_also_before_the_next_question_is_there(self) -> None:
        assert texts(chat([asked("turn_a", "a")])) == ["a", NO_ANSWER]

    def test_an_open_turn_that_ends_with_the_assistant_is_asked_to_go_on(self) -> None:
        rows = [asked("turn_a", "a"), said("turn_a", 1, "half an ans")]
        assert texts(chat(rows, open_turn=TurnId("turn_a"))) == ["a", "half an ans", PLEASE_CONTINUE]

    def test_an_open_turn_without_words_is_answered_all_the_same(self) -> None:
        assert texts(chat([asked("turn_a", "  ")], open_turn=TurnId("turn_a"))) == [EMPTY_MESSAGE]
        assert texts(chat([], open_turn=TurnId("turn_a"))) == [EMPTY_MESSAGE]

    def test_nothing_is_said_of_an_empty_past(self) -> None:
        assert chat([]).messages == []


class TestCountingTokens:
    @pytest.fixture
    def tiktoken(self, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
        """A stand-in with the three functions that are used: words are tokens."""

        class Encoding:
            def encode(self, text: str, *, disallowed_special: tuple[str, ...]) -> list[str]:
                assert disallowed_special == ()
                return text.split()

        def by_name(name: str) -> Encoding:
            if name == "offline":
                raise OSError("no network")
            return Encoding()

        def by_model(name: str) -> Encoding:
            raise KeyError(name)

        module = ModuleType("tiktoken")
        module.__dict__.update(
            list_encoding_names=lambda: ["words", "offline"], get_encoding=by_name, encoding_for_model=by_model
        )
        monkeypatch.setitem(sys.modules, "tiktoken", module)
        measure_for.cache_clear()
        return module

    def test_characters_are_counted_by_default(self) -> None:
        assert budget_for() == Budget()
        assert budget_for().size == CONTEXT_CHARS

    @pytest.mark.usefixtures("tiktoken")
    def test_a_named_tokenizer_counts_instead(self) -> None:
        budget = budget_for("words", chars=40)
        assert budget.size == 10
        compiled = chat([*chats(1), asked("turn_b", "one two three")], open_turn=TurnId("turn_b"), budget=budget)
        assert (compiled.size, compiled.chars) == (5, 12 + 13)

    @pytest.mark.usefixtures("tiktoken")
    def test_an_unknown_tokenizer_is_the_callers_mistake(self) -> None:
        with pytest.raises(InvalidRequest, match="not a tokenizer"):
            budget_for("mystery")

    @pytest.mark.usefixtures("tiktoken")
    def test_a_vocabulary_that_cannot_be_loaded_is_the_worlds(self) -> None:
        with pytest.raises(Unavailable, match="could not be loaded"):
            budget_for("offline")

    def test_without_the_package_the_message_says_what_to_install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "tiktoken", None)
        measure_for.cache_clear()
        with pytest.raises(InvalidRequest, match="needs the package tiktoken"):
            budget_for("o200k_base")
