"""The clock: milliseconds since 1970, and a fake one that moves only when told to."""

import time

import pytest

from turnkeep.clock import FakeClock, month_of, system_clock


class TestTheSystemClock:
    def test_it_tells_milliseconds(self) -> None:
        before = time.time()
        assert int(before * 1000) <= system_clock() <= time.time() * 1000 + 1


class TestMonths:
    @pytest.mark.parametrize(
        "at, month",
        [
            (0, "1970-01"),
            (1_751_327_999_999, "2025-06"),
            (1_751_328_000_000, "2025-07"),
            (1_767_225_599_999, "2025-12"),
            (1_767_225_600_000, "2026-01"),
        ],
    )
    def test_they_change_at_midnight_utc(self, at: int, month: str) -> None:
        assert month_of(at) == month

    def test_whatever_the_time_zone_of_the_machine(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TZ", "Pacific/Kiritimati")
        time.tzset()
        try:
            assert month_of(1_751_327_999_999) == "2025-06"
        finally:
            monkeypatch.undo()
            time.tzset()


class TestTheFakeClock:
    def test_it_stands_still_until_it_is_moved(self) -> None:
        clock = FakeClock(1_000)
        assert (clock(), clock()) == (1_000, 1_000)
        clock.advance(seconds=1.5)
        assert clock() == 2_500
