"""What the engine reports of a call of a model."""

from typing import Any, cast

from turnkeep.engine.observer import ObservedModelCall
from turnkeep.model.turns import ModelRetry


class TestTimesOfAModelCall:
    def test_are_in_order_although_they_are_cut_to_milliseconds(self) -> None:
        call = ObservedModelCall(cast(Any, None), cast(Any, None))
        call.first_at = call.began + 0.0056
        call.seconds = 0.0059
        call.retries = [ModelRetry(at=994, reason="overloaded")]
        times = call.times(now=1_000)
        assert (times.began_at, times.first_ms, times.ms) == (994, 5, 5)
        call.retries = []
        assert call.times(now=1_000).began_at == 995, "not before the step that ended at 995"
