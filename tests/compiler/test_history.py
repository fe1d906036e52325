"""A request that is put together of encoded turns is the request that `compile` makes of their rows."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from tests.compiler.histories import (
    CONTENTS,
    FILES,
    IMAGES,
    LEGACY,
    TEXTS,
    Case,
    answered,
    asked,
    called,
    decode,
    decode_honest,
    row,
    said,
    tapes,
)
from tests.compiler.test_properties import TARGETS, compiled_case, many
from turnkeep.compiler import Budget, Compiled, Gone, Target, TextContent, compile
from turnkeep.compiler.history import EncodedHistory, Encoding, compile_after, encode_turns
from turnkeep.compiler.window import ALL_TURNS, budget_for
from turnkeep.ids import TurnId
from turnkeep.model.messages import Message
from turnkeep_client.wire.blocks import FileRef, Reasoning, Role, Text, text_of

REASONING_OF: dict[Target, tuple[str | None, ...]] = {
    "anthropic": ("anthropic", None),
    "openai_chat": (None,),
    "openai_responses": ("openai",),
}

ROLES: st.SearchStrategy[Role] = st.sampled_from(("user", "user", "assistant", "assistant", "system"))


def plain(compiled: Compiled) -> Compiled:
    """The same with its settled messages as objects. Encoded and decoded, as a provider gets them."""
    messages = msgspec.json.decode(msgspec.json.encode([*compiled.settled, *compiled.messages]))
    return structs.replace(compiled, settled=(), messages=messages)


def encoding_for(case: Case, target: Target, reasoning_of: str | None) -> Encoding:
    return Encoding(
        target=target,
        reasoning_of=reasoning_of,
        sees_images=case.sees_images,
        budget=case.budget,
    )


def continued(history: EncodedHistory | None, rows: Sequence[Message], case: Case) -> Compiled | None:
    if history is None:
        return None
    return compile_after(
        history,
        rows,
        open_turn=case.open_turn,
        system=case.system,
        contents=CONTENTS,
        thinking=case.thinking,
    )


def check(case: Case) -> int:
    """Compile it in both ways for every target; how often the encoded way was possible."""
    past = [row for row in case.rows if row.turn_id != case.open_turn]
    own = [row for row in case.rows if row.turn_id == case.open_turn]
    case = structs.replace(case, rows=[*past, *own])
    possible = 0
    for target in TARGETS:
        whole = plain(compiled_case(case, target))
        for reasoning_of in REASONING_OF[target]:
            made = continued(encode_turns(past, encoding_for(case, target, reasoning_of), contents=CONTENTS), own, case)
            if made is not None:
                possible += 1
                assert plain(made) == whole
    return possible


def case_of(turns: Sequence[list[Message]], **fields: object) -> Case:
    last = turns[-1][0].turn_id
    case = Case(
        rows=[row for rows in turns for row in rows],
        open_turn=last,
        budget=Budget(),
        thinking="off",
        sees_images=True,
        system="Be brief.",
    )
    return structs.replace(case, **fields)


def four_turns() -> list[list[Message]]:
    return [
        [asked("turn_1"), said("turn_1", 1)],
        [asked("turn_2"), called("turn_2", 1, "a", "b"), answered("turn_2", 2, "a", "b"), said("turn_2", 3)],
        [asked("turn_3")],
        [asked("turn_4", "And now?")],
    ]


class TestARequestOfEncodedTurns:
    @many
    @given(tapes)
    def test_is_equal_whatever_happened(self, data: bytes) -> None:
        check(decode(data))

    @many
    @given(tapes)
    def test_is_equal_for_turns_as_the_engine_leaves_them(self, data: bytes) -> None:
        turns = decode_honest(data)
        for thinking in ("off", "enabled", "adaptive"):
            for budget in (Budget(), Budget(turns=2), Budget(size=600), Budget(size=100), Budget(turns=1)):
                check(case_of(turns, thinking=thinking, budget=budget))

    @many
    @given(st.data())
    def test_is_equal_for_turns_of_words(self, data: st.DataObject) -> None:
        """Most turns are a question and an answer, which are encoded in a shorter way. Others look nearly like them."""
        turns = [
            [
                row(f"turn_{number}", place, data.draw(ROLES), Text(text=data.draw(st.sampled_from(TEXTS))))
                for place in range(data.draw(st.sampled_from((2, 2, 1, 3))))
            ]
            for number in range(data.draw(st.integers(1, 3)))
        ]
        measure = data.draw(st.sampled_from((len, lambda words: len(words.split()))))
        size = data.draw(st.sampled_from((400_000, 600, 30)))
        check(case_of([*turns, [asked("turn_9", "And now?")]], budget=Budget(size=size, measure=measure)))

    def test_is_made_for_the_usual_turns_with_every_target(self) -> None:
        assert check(case_of(four_turns())) == len(TARGETS)

    def test_is_made_in_the_middle_of_a_tool_loop(self) -> None:
        turns = four_turns()
        turns[-1] += [called("turn_4", 1, "c"), answered("turn_4", 2, "c")]
        assert check(case_of(turns)) == len(TARGETS)

    def test_counts_as_the_tokenizer_of_the_agent_counts(self) -> None:
        budget = structs.replace(budget_for(chars=200), measure=lambda text: len(text.split()), image=7)
        assert check(case_of(four_turns(), budget=budget)) == len(TARGETS)

    @pytest.mark.parametrize("file", FILES)
    def test_is_made_for_turns_with_files(self, file: FileRef) -> None:
        turns = four_turns()
        turns[0][0] = row("turn_1", 0, "user", Text(text="See."), attachments=(file,))
        turns[1][0] = row("turn_2", 0, "user", Text(text="See."), file)
        assert check(case_of(turns)) == len(TARGETS)


class TestAQuestionAlone:
    """The first request of most turns. It is compiled in a shorter way."""

    QUEUED = asked("turn_9", "Later.")
    """A turn behind the open one is not shown, so the request is the same. With it, all steps are taken."""

    @pytest.mark.parametrize("target", TARGETS)
    @pytest.mark.parametrize("system", ["", "Be brief."])
    @pytest.mark.parametrize("size", [400_000, 3])
    @pytest.mark.parametrize("thinking", ["off", "enabled", "adaptive"])
    def test_is_compiled_as_among_others(self, target: Target, system: str, size: int, thinking: Any) -> None:
        question = asked("turn_1", "What is the weather like?")
        fields: dict[str, Any] = {"system": system, "budget": Budget(size=size), "thinking": thinking}
        for turn_count in (1, 4):
            fields["turn_count"] = turn_count
            alone = compile([question], target=target, open_turn=question.turn_id, **fields)
            among = compile([question, self.QUEUED], target=target, open_turn=question.turn_id, **fields)
            assert alone == among
            assert alone.turns_included == 1

    @pytest.mark.parametrize("target", TARGETS)
    @pytest.mark.parametrize(
        "question",
        [
            asked("turn_1", " "),
            row("turn_1", 0, "user"),
            row("turn_1", 0, "user", Text(text="Look"), Text(text="here.")),
            structs.replace(asked("turn_1"), attachments=FILES[:1]),
            row("turn_1", 0, "system", Text(text="Be brief.")),
            row("turn_1", 0, "assistant", Text(text="Hello.")),
        ],
    )
    def test_may_need_all_steps(self, target: Target, question: Message) -> None:
        fields: dict[str, Any] = {"contents": CONTENTS, "turn_count": 1}
        alone = compile([question], target=target, open_turn=question.turn_id, **fields)
        assert alone == compile([question, self.QUEUED], target=target, open_turn=question.turn_id, **fields)

    @many
    @given(st.data())
    def test_is_compiled_as_among_others_whatever_it_is(self, data: st.DataObject) -> None:
        text = st.builds(Text, text=st.sampled_from(TEXTS) | st.text())
        question = row(
            "turn_1",
            data.draw(st.integers(0, 1)),
            data.draw(ROLES),
            *data.draw(st.lists(text, min_size=1, max_size=1) | st.lists(text | st.sampled_from(FILES + IMAGES))),
            legacy=data.draw(st.none() | st.sampled_from(LEGACY)),
            attachments=data.draw(st.just(()) | st.tuples(st.sampled_from(FILES))),
        )
        budget = Budget(
            size=data.draw(st.sampled_from((400_000, 40, 4, 1))),
            turns=data.draw(st.sampled_from((ALL_TURNS, ALL_TURNS, 20, 1))),
            measure=data.draw(st.sampled_from((len, lambda words: len(words.split())))),
        )
        fields: dict[str, Any] = {
            "budget": budget,
            "system": data.draw(st.sampled_from(("", "  ", "Be brief."))),
            "thinking": data.draw(st.sampled_from(("off", "enabled", "adaptive"))),
            "sees_images": data.draw(st.booleans()),
            "cache_markers": data.draw(st.booleans()),
            "turn_count": data.draw(st.integers(1, 3)),
            "contents": CONTENTS,
        }
        for target in TARGETS:
            alone = compile([question], target=target, open_turn=question.turn_id, **fields)
            assert alone == compile([question, self.QUEUED], target=target, open_turn=question.turn_id, **fields)

    @pytest.mark.parametrize("target", TARGETS)
    def test_may_be_the_past(self, target: Target) -> None:
        question = asked("turn_1")
        assert compile([question], target=target).repairs[0].kind == "answer_missing"
        assert compile([question], target=target, open_turn=TurnId("turn_2")).repairs


class TestNothingIsEncoded:
    @pytest.mark.parametrize(
        "turn",
        [
            [row("turn_1", 0, "system", Text(text="Be kind."))],
            [said("turn_1", 0)],
            [said("turn_1", 1)],
        ],
        ids=["instruction", "no question", "no beginning"],
    )
    def test_where_a_turn_depends_on_something_else(self, turn: list[Message]) -> None:
        case = case_of([turn, *four_turns()[1:]])
        assert check(case) == 0

    def test_where_two_turns_have_calls_of_the_same_name(self) -> None:
        turns = four_turns()
        turns[0][1:1] = [called("turn_1", 1, "a"), answered("turn_1", 2, "a")]
        turns[0][-1] = said("turn_1", 3)
        assert check(case_of(turns)) == 0

    def test_where_the_open_turn_has_such_a_call(self) -> None:
        turns = four_turns()
        turns[-1] += [called("turn_4", 1, "a"), answered("turn_4", 2, "a")]
        assert check(case_of(turns)) == 0

    def test_for_a_loop_that_began_without_the_reasoning_of_the_history(self) -> None:
        turns = four_turns()
        thought = Reasoning(text="Hm.", provider="anthropic", signature="sig")
        turns[0][-1] = row("turn_1", 1, "assistant", thought, Text(text="Yes."), provider="anthropic/x")
        turns[-1] += [called("turn_4", 1, "c"), answered("turn_4", 2, "c")]
        case = case_of(turns, thinking="enabled")
        past = [row for rows in turns[:-1] for row in rows]
        assert continued(encode_turns(past, encoding_for(case, "anthropic", "anthropic")), turns[-1], case) is None


class TestAHistoryThatGrows:
    def grown(self, turns: Sequence[list[Message]], target: Target, budget: Budget) -> EncodedHistory | None:
        """The history after these turns. Each was asked with a request of the history before it."""
        case = case_of(turns, budget=budget)
        history = encode_turns((), encoding_for(case, target, None))
        for rows in turns:
            if history is None:
                return None
            asked_with = compile_after(history, rows[:1], open_turn=rows[0].turn_id, contents=CONTENTS)
            if asked_with is None:
                return None
            history = history.then(rows, first_turn=asked_with.first_turn, contents=CONTENTS)
        return history

    @many
    @given(tapes)
    def test_gives_the_same_requests_as_one_that_was_read(self, data: bytes) -> None:
        turns = decode_honest(data)
        for budget in (Budget(), Budget(size=400)):
            case = case_of(turns, budget=budget)
            for target in ("anthropic", "openai_chat"):
                history = self.grown(turns[:-1], target, budget)
                made = continued(history, turns[-1], case)
                if history is None or made is None:
                    continue
                kept = {turn.turn_id for turn in history.turns} | {case.open_turn}
                read = structs.replace(case, rows=[row for row in case.rows if row.turn_id in kept])
                whole = plain(compiled_case(read, target))
                assert plain(structs.replace(made, turns_dropped=whole.turns_dropped)) == whole

    def test_lets_go_of_turns_that_were_dropped(self) -> None:
        turns = [[asked(f"turn_{n}", "q" * 60), said(f"turn_{n}", 1, "a" * 40)] for n in range(30)]
        history = self.grown(turns, "openai_chat", Budget(size=1_000))
        assert history is not None
        assert 6 <= len(history.turns) <= 10
        assert history.is_cut
        assert history.size == sum(turn.size for turn in history.turns)
        assert history.turn_bytes == sum(turn.byte_count for turn in history.turns)

    def test_names_its_files_and_whether_they_were_there(self) -> None:
        gone = next(file for file in FILES if isinstance(CONTENTS.get(file.file_id), Gone))
        there = next(file for file in FILES if isinstance(CONTENTS.get(file.file_id), TextContent))
        question = row("turn_1", 0, "user", Text(text="See."), attachments=(gone, there))
        history = self.grown([[question, said("turn_1", 1)], *four_turns()[1:3]], "openai_chat", Budget())
        assert history is not None
        assert history.files == {gone.file_id: False, there.file_id: True}


class TestTheBeginningOfRequests:
    """A provider reads from its cache what a request has in common with the one before it."""

    def test_stays_the_same_for_many_turns(self) -> None:
        budget = Budget(size=10_000)
        encoding = Encoding(target="openai_chat", reasoning_of=None, sees_images=True, budget=budget)
        history = encode_turns((), encoding)
        runs: list[int] = []
        before: list[Any] = []
        for n in range(400):
            turn_id = TurnId(f"turn_{n}")
            question = asked(turn_id, f"Question {n}.".ljust(60, "?"))
            assert history is not None
            made = compile_after(history, [question], open_turn=turn_id)
            assert made is not None
            messages = plain(made).messages
            assert made.size <= budget.size
            is_continued = messages[: len(before)] == before
            runs.append(runs.pop() + 1) if is_continued and runs else runs.append(1)
            if not is_continued:
                assert made.size <= budget.kept
            answer = said(turn_id, 1, f"Answer {n}.".ljust(40, "!"))
            before = [*messages, {"role": "assistant", "content": text_of(answer.blocks)}]
            history = history.then([question, answer], first_turn=made.first_turn)
        assert sum(runs) == 400
        assert runs[0] == 100
        assert min(runs[1:-1]) >= 25
