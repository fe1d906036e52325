"""The rate of previews: how many pieces of text a process shows, however many turns speak."""

import time

import pytest

from tests.engine.harness import Cluster
from turnkeep.engine import services
from turnkeep.engine.services import BURST_SECONDS, LONGEST_SECONDS, PIECES_PER_SECOND, PreviewRate
from turnkeep.providers.ports import ProviderFailed
from turnkeep.providers.scripted import Fail


def pieces_of(turns: int, *, per_second: float, seconds: float) -> tuple[int, float]:
    """How many pieces so many turns show, and the longest wait of one. Time is only counted, not spent."""
    paced = PreviewRate()
    paced.speakers = turns
    tokens = sorted((number / turns + token) / per_second for number in range(turns) for token in range(int(seconds)))
    looks_again = dict.fromkeys(range(turns), 0.0)
    pieces, longest = 0, 0.0
    for place, now in enumerate(tokens):
        turn = place % turns
        if now < looks_again[turn]:
            continue  # this token becomes a part of the next piece
        pause = paced.pause_seconds(now)
        pieces, longest = pieces + 1, max(longest, pause)
        looks_again[turn] = now + pause
    return pieces, longest


class TestPreviewRate:
    def test_few_turns_never_wait(self) -> None:
        pieces, longest = pieces_of(200, per_second=30, seconds=300)
        assert pieces == 200 * 300
        assert longest <= 0

    @pytest.mark.parametrize("turns", [500, 1_000])
    def test_many_turns_show_as_much_in_fewer_pieces(self, turns: int) -> None:
        pieces, longest = pieces_of(turns, per_second=30, seconds=300)
        assert pieces <= max(0.8 * PIECES_PER_SECOND, turns / LONGEST_SECONDS) * 10 + PIECES_PER_SECOND * BURST_SECONDS
        assert 0 < longest < 1.01 * LONGEST_SECONDS

    def test_after_a_rush_nothing_waits_any_more(self) -> None:
        paced = PreviewRate()
        waits = [paced.pause_seconds(0.0) for _ in range(100_000)]
        assert max(waits) == pytest.approx(LONGEST_SECONDS)
        assert paced.pause_seconds(LONGEST_SECONDS + BURST_SECONDS) <= 0


class TestATurn:
    async def test_keeps_to_the_rate_and_loses_no_text(self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(services, "PIECES_PER_SECOND", 20)
        monkeypatch.setattr(services, "BURST_SECONDS", 0.0)
        engine = await cluster.enter([["One ", "two ", "three ", "four."]])
        began = time.monotonic()
        turn = await cluster.answer(engine, "Count.")
        assert turn.status == "succeeded"
        assert time.monotonic() - began >= 4 / 20
        (*_, row) = await cluster.store.turn_rows(turn.id)
        assert "One two three four." in str(row.blocks)

    async def test_counts_as_a_speaker_while_its_model_speaks(
        self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seen: list[tuple[PreviewRate, int]] = []

        def note(rate: PreviewRate, now: float) -> float:
            seen.append((rate, rate.speakers))
            return 0.0

        monkeypatch.setattr(PreviewRate, "pause_seconds", note)
        engine = await cluster.enter([["One ", "two.", Fail(ProviderFailed("away"))], ["Three."]])
        for question in ("Count.", "And then?"):
            await cluster.answer(engine, question)
        assert [count for _, count in seen] == [1, 1, 1]
        assert seen[0][0].speakers == 0
