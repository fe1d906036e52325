"""The rules of erasures."""

from turnkeep.ids import ConversationId
from turnkeep.store.rules.erasures import TURNS_AT_ONCE, in_steps


class TestTheSteps:
    def test_have_few_turns_or_one_conversation(self) -> None:
        half = TURNS_AT_ONCE // 2
        turns = [half, half, half, 25 * TURNS_AT_ONCE, 1, 2, 3]
        sizes = [(ConversationId(f"conv_{n}"), size) for n, size in enumerate(turns)]
        steps = [[int(id_.partition("_")[2]) for id_ in step] for step in in_steps(sizes)]
        assert steps == [[0, 1], [2], [3], [4, 5, 6]]

    def test_of_nothing_are_none(self) -> None:
        assert list(in_steps([])) == []
