"""When a learning check passes: no seed below the band, and no difference from the recorded runs but chance."""

from __future__ import annotations

import json

import numpy as np
import pytest

from dreamfleet.core.statistics import bootstrap_difference
from learning import BANDS, TASKS, judge, lower_end

BAND = {"scores": [0.90, 0.92, 0.94, 0.96, 0.98], "low": 0.80}


def test_every_seed_must_reach_the_band() -> None:
    assert judge([0.80, 0.95], BAND, compared=False)["ok"]
    found = judge([0.79, 0.99], BAND, compared=False)
    assert (found["ok"], found["word"]) == (False, "TOO LOW")


def test_without_a_band_nothing_passes() -> None:
    found = judge([1.0], None, compared=False)
    assert (found["ok"], found["word"]) == (False, "NO BAND")


def test_runs_that_are_compared_may_differ_by_chance_only() -> None:
    alike = judge([0.91, 0.93, 0.95, 0.97, 0.92], BAND, compared=True)
    assert (alike["ok"], alike["recorded_mean"]) == (True, 0.94)
    worse = judge([0.85, 0.86, 0.87, 0.86, 0.85], BAND, compared=True)
    assert (worse["ok"], worse["word"]) == (False, "DIFFERS")
    assert judge([0.85, 0.86, 0.87, 0.86, 0.85], BAND, compared=False)["ok"]


def test_the_interval_of_a_difference_holds_95_of_100_samples() -> None:
    assert bootstrap_difference([3.0, 3.0], [1.0, 1.0]) == [2.0, 2.0]
    # A sixteenth of all samples are two zeros beside two twos: too many to be left out at an end.
    assert bootstrap_difference([0.0, 2.0], [0.0, 2.0]) == [-2.0, 2.0]
    values, others = np.random.default_rng(1).normal(0, 1, (2, 400))
    low, high = bootstrap_difference(values, others)
    assert high - low == pytest.approx(2 * 1.96 * np.sqrt(2 / 400), rel=0.1)
    assert low < values.mean() - others.mean() < high


def test_a_band_begins_three_deviations_below_the_mean_or_a_twentieth_of_the_way() -> None:
    task = TASKS["catch"]  # from -0.6 to 1
    assert lower_end(task, [0.8, 0.9, 1.0]) == pytest.approx(0.9 - 3 * 0.1)
    assert lower_end(task, [0.9, 0.9, 0.9]) == pytest.approx(0.9 - 0.08)
    with pytest.raises(SystemExit, match="differ too much or learn too little"):
        lower_end(task, [0.1, 0.1, 0.1])


@pytest.mark.parametrize("name", TASKS)
def test_every_task_has_a_band_that_follows_from_its_scores(name: str) -> None:
    band = json.loads(BANDS.read_text())[name]
    assert len(band["scores"]) >= 5
    assert band["low"] == round(lower_end(TASKS[name], band["scores"]), 4)
