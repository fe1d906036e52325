"""How many examples a property test draws: few in `make test`, and many in `make test-nightly`.

In `make test` the examples are the same in every run, so a larger number finds little more there. The nightly run draws
other examples each time. Decision: docs/decisions/1102
"""

from hypothesis import settings

NIGHTLY = "nightly"


def examples(count: int, *, at_night: int) -> int:
    """`at_night` under the nightly profile, otherwise `count`."""
    return at_night if settings.get_current_profile_name() == NIGHTLY else count
