"""The score of a learning curve at a budget, of several seeds, and how it compares with published ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dreamfleet.commands.plot.curves import Curve
from dreamfleet.core.errors import BadInput
from dreamfleet.core.statistics import bootstrap

WINDOW = 0.1  # the part of the budget, up to its end, whose episodes count


@dataclass(frozen=True)
class Score:
    mean: float
    seeds: tuple[float, ...]
    interval: list[float] | None  # of the mean over seeds, by bootstrap; None for one seed
    episodes: tuple[int, ...]  # of each seed in the window; 0: its last one before is the score


@dataclass(frozen=True)
class ScoreComparison:
    """Whether the mean of ours lies among the published seeds, over all of them, or under."""

    ours: Score
    published: Score | None

    @property
    def word(self) -> str:
        if self.published is None:
            return "unknown"
        low, high = min(self.published.seeds), max(self.published.seeds)
        return "below" if self.ours.mean < low else "above" if self.ours.mean > high else "inside"


def score_at(curves: Sequence[Curve], frames: float, over: Sequence[bool] | None = None) -> Score:
    """The mean over seeds of what each did within the window before `frames`.

    An episode that begins before the window and has not ended in it leaves a run with the last one before, if it has
    come as far as `frames`: because a later episode has ended, or because `over` says so.
    """
    ends = [False] * len(curves) if over is None else over
    windows = [_window(curve, frames, WINDOW * frames) for curve in curves]
    scored = [
        values if len(values) else _last(curve, frames, end)
        for curve, values, end in zip(curves, windows, ends, strict=True)
    ]
    seeds = tuple(float(values.mean()) for values in scored)
    interval = bootstrap(seeds) if len(seeds) > 1 else None
    return Score(float(np.mean(seeds)), seeds, interval, tuple(len(values) for values in windows))


def reached(curve: Curve, hours: np.ndarray, frames: float, wanted: float) -> float | None:
    """Hours until the mean over a window was as high as `wanted` first; None if it never was."""
    width = WINDOW * frames
    for index, end in enumerate(curve.xs):
        if end >= width and _window(curve, end, width).mean() >= wanted:
            return float(hours[index])
    return None


def _last(curve: Curve, frames: float, over: bool) -> np.ndarray:
    """The last value before `frames`, of a curve without one in the window."""
    before = _window(curve, frames, frames)[-1:]
    if len(before) and (over or curve.xs.max() > frames):
        return before
    last = curve.xs.max() if len(curve.xs) else 0
    raise BadInput(
        f"{curve.task}: no episode has ended between {frames * (1 - WINDOW):,.0f} and {frames:,.0f} frames, the "
        f"last one at {last:,.0f}: let the run go on, or choose fewer --frames"
    )


def _window(curve: Curve, end: float, width: float) -> np.ndarray:
    return curve.ys[(curve.xs > end - width) & (curve.xs <= end)]
