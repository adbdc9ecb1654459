"""Episode statistics from hand-written steps."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from dreamfleet.metrics.episodes import EpisodeStats

TIMEOUT_S = 60.0


@pytest.fixture
def stats(manual_time) -> EpisodeStats:
    return EpisodeStats(TIMEOUT_S, manual_time)


def step(stats: EpisodeStats, env: int, reward: float, kind: str = "") -> list[dict[str, Any]]:
    """One step of one environment; `kind` holds "f" for the first and "l" for the last step of an episode."""
    data = {
        "env": np.array([env], np.int32),
        "reward": np.array([reward], np.float32),
        "is_first": np.array(["f" in kind]),
        "is_last": np.array(["l" in kind]),
    }
    return stats.add(data)


def test_an_episode_is_reported_with_its_last_step(stats) -> None:
    assert step(stats, 3, 0, "f") == []
    assert step(stats, 3, 1.5) == []
    assert step(stats, 3, -0.25, "l") == [{"env": 3, "return": 1.25, "length": 2}]


def test_the_next_episode_starts_from_zero(stats) -> None:
    for _ in range(2):
        step(stats, 0, 0, "f")
        assert step(stats, 0, 5, "l") == [{"env": 0, "return": 5, "length": 1}]
    assert stats.dropped == 0


def test_environments_are_kept_apart_within_one_batch(stats) -> None:
    def both(rewards: list[float], first: list[bool], last: list[bool]) -> list[dict[str, Any]]:
        return stats.add(
            {
                "env": np.array([7, 2]),
                "reward": np.array(rewards),
                "is_first": np.array(first),
                "is_last": np.array(last),
            }
        )

    both([0, 0], [True, True], [False, False])
    assert both([1, 10], [False, False], [False, True]) == [{"env": 2, "return": 10, "length": 1}]
    assert both([2, 0], [False, True], [True, False]) == [{"env": 7, "return": 3, "length": 2}]
    assert both([0, 20], [True, False], [False, True]) == [{"env": 2, "return": 20, "length": 1}]


def test_an_episode_joined_in_the_middle_is_not_reported(stats) -> None:
    step(stats, 0, 1)
    assert step(stats, 0, 1, "l") == []
    step(stats, 0, 0, "f")
    assert step(stats, 0, 1, "l") == [{"env": 0, "return": 1, "length": 1}]
    assert stats.dropped == 0  # it was never counted in the first place


def test_an_abandoned_episode_is_dropped(stats) -> None:
    step(stats, 0, 0, "f")
    step(stats, 0, 100)
    step(stats, 0, 0, "f")
    assert step(stats, 0, 1, "l") == [{"env": 0, "return": 1, "length": 1}]
    assert stats.dropped == 1


def test_an_episode_of_an_environment_that_was_silent_too_long_is_dropped(stats, manual_time) -> None:
    step(stats, 0, 0, "f")
    manual_time.advance(TIMEOUT_S + 1)
    step(stats, 0, 1)
    assert stats.dropped == 1
    assert step(stats, 0, 1, "l") == []
    step(stats, 0, 0, "f")
    assert step(stats, 0, 3, "l") == [{"env": 0, "return": 3, "length": 1}]
    assert stats.dropped == 1


def test_silence_within_the_timeout_does_no_harm(stats, manual_time) -> None:
    step(stats, 0, 0, "f")
    for _ in range(3):
        manual_time.advance(TIMEOUT_S - 1)
        step(stats, 0, 1)
    assert step(stats, 0, 1, "l")[0]["return"] == 4


def test_an_environment_that_starts_anew_after_silence_counts_from_there(stats, manual_time) -> None:
    step(stats, 0, 0, "f")
    step(stats, 0, 50)
    manual_time.advance(TIMEOUT_S + 1)
    step(stats, 0, 0, "f")
    assert step(stats, 0, 2, "l") == [{"env": 0, "return": 2, "length": 1}]
    assert stats.dropped == 1


def test_a_batch_without_rows_changes_nothing(stats) -> None:
    empty = np.zeros(0, bool)
    assert stats.add({"env": np.zeros(0, np.int32), "reward": np.zeros(0), "is_first": empty, "is_last": empty}) == []


@contextmanager
def memory_below(limit_bytes: int) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < limit_bytes
    finally:
        tracemalloc.stop()


def test_a_large_environment_number_costs_nothing(stats) -> None:
    with memory_below(100_000):
        step(stats, 50_000_000, 0, "f")
        assert step(stats, 50_000_000, 2, "l") == [{"env": 50_000_000, "return": 2, "length": 1}]


def test_an_endless_episode_takes_no_more_memory_with_every_step(stats) -> None:
    step(stats, 0, 0, "f")
    with memory_below(50_000):
        for _ in range(4000):
            step(stats, 0, 1)
    assert step(stats, 0, 5, "l") == [{"env": 0, "return": 4005, "length": 4001}]


def test_environments_that_went_away_are_forgotten(stats, manual_time) -> None:
    step(stats, 7, 0, "f")
    with memory_below(50_000):
        for env in range(1000, 3000):
            step(stats, env, 0, "f")
            manual_time.advance(TIMEOUT_S / 2)
            step(stats, 7, 1)
    assert step(stats, 7, 0, "l") == [{"env": 7, "return": 2000, "length": 2001}]
    assert 1900 < stats.dropped <= 2000


def test_many_environments_that_come_one_by_one_are_kept_apart(stats) -> None:
    for env in range(200):
        step(stats, 3 * env, 0, "f")
        step(stats, 3 * env, env)
    for env in range(200):
        assert step(stats, 3 * env, 0, "l") == [{"env": 3 * env, "return": env, "length": 2}]
