"""The score of a learning curve at a budget, of several seeds, and how it compares with published ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dreamfleet.core.errors import BadInput
from dreamfleet.launch.bootstrap import bootstrap
from dreamfleet.launch.view.curves import Curve

WINDOW = 0.1  # the part of the budget, up to its end, whose episodes count


@dataclass(frozen=True)
class Score:
    mean: float
    seeds: tuple[float, ...]
    interval: list[float] | None  # of the mean over seeds, by bootstrap; None for one seed


@dataclass(frozen=True)
class Verdict:
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

    `over` says which runs have come to that point for certain: an episode that began before the window and has not
    ended in it leaves such a run with the last one before that.
    """
    ended = over or [False] * len(curves)
    seeds = tuple(_seed_score(curve, frames, end) for curve, end in zip(curves, ended, strict=True))
    interval = bootstrap(seeds) if len(seeds) > 1 else None
    return Score(float(np.mean(seeds)), seeds, interval)


def reached(curve: Curve, hours: np.ndarray, frames: float, wanted: float) -> float | None:
    """Hours until the mean over a window was as high as `wanted` first; None if it never was."""
    width = WINDOW * frames
    for index, end in enumerate(curve.xs):
        if end >= width and _window(curve, end, width).mean() >= wanted:
            return float(hours[index])
    return None


def _seed_score(curve: Curve, frames: float, over: bool) -> float:
    values = _window(curve, frames, WINDOW * frames)
    if over and not len(values):
        values = _window(curve, frames, frames)[-1:]
    if not len(values):
        last = curve.xs.max() if len(curve.xs) else 0
        raise BadInput(
            f"{curve.task}: no episode has ended between {frames * (1 - WINDOW):,.0f} and {frames:,.0f} frames, the "
            f"last one at {last:,.0f}: let the run go on, or choose fewer --frames"
        )
    return float(values.mean())


def _window(curve: Curve, end: float, width: float) -> np.ndarray:
    return curve.ys[(curve.xs > end - width) & (curve.xs <= end)]
