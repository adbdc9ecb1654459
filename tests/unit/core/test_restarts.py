"""How failures are counted and how long a restart waits."""

from __future__ import annotations

import math

import pytest

from dreamfleet.core.restarts import RecentFailures, back_off_s


@pytest.mark.parametrize(
    ("in_a_row", "delay_s"), [(0, 0.1), (1, 0.1), (2, 0.2), (3, 0.4), (6, 3.2), (7, 5.0), (10**6, 5.0)]
)
def test_the_delay_doubles_up_to_its_limit(in_a_row: int, delay_s: float) -> None:
    assert back_off_s(in_a_row) == pytest.approx(delay_s)


def test_failures_count_until_their_time_is_over() -> None:
    failures = RecentFailures()
    for now, line in ((1.0, "a"), (2.0, "b"), (3.0, "c")):
        failures.add(now, line)
    failures.forget_until(-math.inf)
    assert (len(failures), failures.first, failures.last) == (3, "a", "c")
    failures.forget_until(2.0)
    assert (len(failures), failures.first) == (1, "c")
    failures.forget_until(9.0)
    assert len(failures) == 0
