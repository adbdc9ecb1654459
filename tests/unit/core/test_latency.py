"""Percentiles told from counts."""

from __future__ import annotations

import numpy as np
import pytest

from dreamfleet.core.latency import Latencies, percentile


def test_percentiles_are_within_five_percent_of_the_sorted_times() -> None:
    times = np.random.default_rng(0).lognormal(-5, 1.5, 2001)
    latencies = Latencies()
    for seconds in times:
        latencies.add(float(seconds))
    for share in (0.01, 0.5, 0.99):
        expected = np.sort(times)[round(share * 2000)]
        assert percentile(latencies.counts(), share) == pytest.approx(expected, rel=0.05)


def test_times_too_short_to_measure_count_as_the_shortest() -> None:
    latencies = Latencies()
    for seconds in (0.0, -1e-9, 1e-9):
        latencies.add(seconds)
    assert latencies.counts() == {"0": 3}


def test_without_any_there_is_no_percentile() -> None:
    assert percentile({}, 0.5) is None
    assert percentile({"3": 0}, 0.5) is None  # the difference of two equal counts
