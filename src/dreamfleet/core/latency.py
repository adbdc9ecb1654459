"""Counts how long something took, so that any percentile can be told later, over any part of a run."""

from __future__ import annotations

from collections.abc import Mapping
from math import log2

PER_OCTAVE = 8  # buckets from one time to its double: a percentile is off by 5% at most
SHORTEST_S = 1e-7


class Latencies:
    """One thread adds; others may read. Buckets are of equal width on a logarithmic scale.

    The counts since the start are what travels: the difference of two of them is the distribution in between.
    """

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}

    def add(self, seconds: float) -> None:
        bucket = int(PER_OCTAVE * log2(seconds / SHORTEST_S)) if seconds > SHORTEST_S else 0
        self._counts[bucket] = self._counts.get(bucket, 0) + 1

    def counts(self) -> dict[str, int]:
        """By bucket, in the form that a status can hold."""
        return {str(bucket): count for bucket, count in self._counts.copy().items()}


def percentile(counts: Mapping[str, int], share: float) -> float | None:
    """The seconds that `share` of all stayed within; None if there were none."""
    left = share * sum(counts.values())
    for bucket in sorted(map(int, counts)):
        left -= counts[str(bucket)]
        if left <= 0 and counts[str(bucket)]:
            return float(SHORTEST_S * 2 ** ((bucket + 0.5) / PER_OCTAVE))
    return None
