"""A turn only ever moves forward, but for one that waited and goes on."""

from typing import get_args

import pytest

from turnkeep.model.turns import MOVES, FinalStatus, TurnStatus

STATUSES: tuple[TurnStatus, ...] = get_args(TurnStatus)

LEGAL: set[tuple[TurnStatus, TurnStatus]] = {
    ("queued", "running"),
    ("queued", "cancelled"),
    ("running", "succeeded"),
    ("running", "failed"),
    ("running", "cancelled"),
    ("running", "waiting"),
    ("waiting", "running"),
}


class TestMoves:
    @pytest.mark.parametrize("before", STATUSES)
    @pytest.mark.parametrize("after", STATUSES)
    def test_only_these_are_legal(self, before: TurnStatus, after: TurnStatus) -> None:
        assert (after in MOVES[before]) == ((before, after) in LEGAL)

    def test_every_status_has_its_moves_and_the_final_ones_none(self) -> None:
        assert set(MOVES) == set(STATUSES)
        assert {status for status in STATUSES if not MOVES[status]} == set(get_args(FinalStatus))
