from __future__ import annotations

import pytest

from dreamfleet.core.timer import Timer


def test_stats_give_count_average_total_and_share(manual_time):
    timer = Timer(manual_time)
    for seconds in (1, 3):
        with timer.section("train"):
            manual_time.advance(seconds)
    manual_time.advance(4)
    assert timer.stats() == {"train/count": 2, "train/avg_ms": 2000, "train/total_s": 4, "train/frac": 0.5}


def test_each_stats_call_starts_anew(manual_time):
    timer = Timer(manual_time)
    with timer.section("train"):
        manual_time.advance(1)
    timer.stats()
    assert timer.stats() == {}
    manual_time.advance(1)
    with timer.section("train"):
        manual_time.advance(3)
    assert timer.stats()["train/frac"] == 0.75


def test_nested_sections_count_each_for_itself(manual_time):
    timer = Timer(manual_time)
    with timer.section("outer"):
        manual_time.advance(1)
        with timer.section("inner"):
            manual_time.advance(2)
    stats = timer.stats()
    assert stats["outer/total_s"] == 3
    assert stats["inner/total_s"] == 2


def test_a_section_that_raises_is_still_counted(manual_time):
    timer = Timer(manual_time)
    with pytest.raises(KeyError), timer.section("train"):
        manual_time.advance(1)
        raise KeyError("x")
    assert timer.stats()["train/count"] == 1


def test_share_is_zero_when_no_time_has_passed(manual_time):
    timer = Timer(manual_time)
    with timer.section("train"):
        pass
    assert timer.stats()["train/frac"] == 0
