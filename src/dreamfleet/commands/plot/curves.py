"""Learning curves out of run folders and published files, and the mean over those that belong together."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np

from dreamfleet.config.load import load_config
from dreamfleet.config.schema import Config
from dreamfleet.core.errors import BadInput
from dreamfleet.core.events import Event
from dreamfleet.core.files.bounded import MB, gunzip, parse_json, read_bounded
from dreamfleet.core.roles import RoleKind
from dreamfleet.runs.tail import parse_rows
from dreamfleet.ui.run_reader import check_run_folder

MAX_BYTES = 32 * MB  # of a file of published curves, compressed or not
MAX_NUMBER = 1e300
POINTS = 60  # of a drawn curve; each is the mean of what lies around it
EPISODE_METRICS = {
    f"{prefix}/{key}": (mode, key)
    for prefix, mode in (("episode", "train"), ("eval", "eval"))
    for key in ("return", "length")
}
# Frames per agent step where env.repeat is left to the suite: published curves count frames.
SUITE_REPEATS = {"atari": 4, "atari100k": 4, "dmlab": 4}


@dataclass(frozen=True)
class Curve:
    """One run's metric, in the order in which it was written."""

    task: str
    label: str
    xs: np.ndarray
    ys: np.ndarray


@dataclass(frozen=True)
class Band:
    """Curves of one task and label: their mean, and how far they lie apart."""

    task: str
    label: str
    runs: int
    xs: np.ndarray
    mean: np.ndarray
    deviation: np.ndarray | None  # None for a single run


def read_curves(words: Sequence[str], metric: str, x: str) -> list[Curve]:
    """Of run folders, each a path or LABEL=PATH. Without a label, those that differ only in their seed share one."""
    named = [_split_label(word) for word in words]
    configs = [_read_config(run) for _, run in named]
    labels = _labels(named, configs)
    return [
        Curve(config.env.name, label, *_read_points(run, config, metric, x))
        for (_, run), config, label in zip(named, configs, labels, strict=True)
    ]


def read_reference(path: Path, tasks: Iterable[str]) -> list[Curve]:
    """Published curves of these tasks: a JSON list of {"task", "method", "seed", "xs", "ys"}, gzipped or not."""
    rows = _load_reference(path)
    found = []
    for task in dict.fromkeys(tasks):
        matching = [row for row in rows if row["task"] in reference_names(task)]
        if not matching:
            known = ", ".join(sorted({str(row["task"]) for row in rows})[:4])
            raise BadInput(f"{path} has no curve of {task}: it has {known}, ...")
        for row in matching:
            label = f"{row['method']}, published"
            found.append(Curve(task, label, np.asarray(row["xs"], float), np.asarray(row["ys"], float)))
    return found


def reference_names(task: str) -> set[str]:
    """How published files call a task: atari100k:pong is atari_pong, dmc:walker_walk is dmc_walker_walk."""
    suite, _, name = task.partition(":")
    return {task, f"{suite}_{name}", f"{suite.removesuffix('100k')}_{name}", name} - {""}


def combine(curves: Sequence[Curve], points: int = POINTS) -> list[Band]:
    """A band for each task and label. Curves are brought to common points; beyond its end a curve is not drawn on."""
    groups: dict[tuple[str, str], list[Curve]] = {}
    for curve in curves:
        groups.setdefault((curve.task, curve.label), []).append(curve)
    return [_band(task, label, group, points) for (task, label), group in groups.items()]


def _band(task: str, label: str, group: list[Curve], points: int) -> Band:
    edges = np.linspace(0.0, max(curve.xs.max() for curve in group), points + 1)
    centres = (edges[1:] + edges[:-1]) / 2
    rows = np.stack([_at_points(curve, edges, centres) for curve in group])
    seen = np.isfinite(rows).any(axis=0)
    rows, centres = rows[:, seen], centres[seen]
    deviation = np.nanstd(rows, axis=0) if len(group) > 1 else None
    return Band(task, label, len(group), centres, np.nanmean(rows, axis=0), deviation)


def _at_points(curve: Curve, edges: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """The mean in each bin; empty bins between others are interpolated."""
    bins = np.clip(np.searchsorted(edges, curve.xs, side="left") - 1, 0, len(centres) - 1)
    counts = np.bincount(bins, minlength=len(centres))
    sums = np.bincount(bins, weights=curve.ys, minlength=len(centres))
    filled = counts > 0
    means = sums[filled] / counts[filled]
    return np.asarray(np.interp(centres, centres[filled], means, left=np.nan, right=np.nan))


def _split_label(word: str) -> tuple[str | None, Path]:
    label, equals, path = word.partition("=")
    return (label, Path(path)) if equals and label and not Path(word).exists() else (None, Path(word))


def _labels(named: Sequence[tuple[str | None, Path]], configs: Sequence[Config]) -> list[str]:
    keys = [config.model_copy(update={"seed": 0}).model_dump_json() for config in configs]
    labels = []
    for (label, _), key in zip(named, keys, strict=True):
        together = [
            run.resolve().name for (other, run), its in zip(named, keys, strict=True) if its == key and not other
        ]
        labels.append(label or _common_name(together))
    return labels


def _common_name(names: Sequence[str]) -> str:
    """runs/pong-seed0 and runs/pong-seed1 are pong."""
    if len(names) == 1:
        return names[0]
    same = [letters[0] for letters in takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False))]
    return re.sub(r"[-_.]*(seed|s)?[-_.]*\d*$", "", "".join(same)) or names[0]


def _read_config(run: Path) -> Config:
    check_run_folder(run)
    return load_config(run / "config.yaml")


def _read_points(run: Path, config: Config, metric: str, x: str) -> tuple[np.ndarray, np.ndarray]:
    if metric in EPISODE_METRICS:
        mode, key = EPISODE_METRICS[metric]
        rows = [row for row in read_rows(run / "episodes.jsonl") if row.get("mode") == mode]
        nothing = f"no {mode} episode has ended in {run} yet: wait for one, or see `dreamfleet status {run}`"
    else:
        rows, key = read_rows(run / "metrics.jsonl"), metric
        known = sorted({name for row in rows[-20:] for name in row} - {"step", "time"})
        shown = f"it has {', '.join(known[:6])}, ..." if known else "it has no metrics yet"
        nothing = f"{run} has no metric {metric!r}: {shown}"
    rows = without_undone([row for row in rows if isinstance(row.get(key), int | float)])
    if not rows:
        raise BadInput(nothing)
    ys = np.array([row[key] for row in rows], float)
    if x == "hours":
        return running_hours(run, np.array([row["time"] for row in rows], float)), ys
    steps = np.array([row["step"] for row in rows], float)
    return steps * (frames_per_step(config) if x == "frames" else 1), ys


def without_undone(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A run that continues from a snapshot goes back to its step: what it had written beyond that is not part of it."""
    kept: list[dict[str, Any]] = []
    for row in rows:
        while kept and kept[-1]["step"] > row["step"]:
            kept.pop()
        kept.append(row)
    return kept


def running_hours(run: Path, times: np.ndarray) -> np.ndarray:
    """Hours that the run had been running at each of these times. Between an end and a continuation nothing runs."""
    starts = [row["time"] for row in read_rows(run / "events.jsonl") if _is_start(row)]
    starts = [start for start in starts if start <= times[-1]] or [times[0]]
    starts[0] = min(starts[0], times[0])
    session = np.searchsorted(starts, times, side="right") - 1
    before, hours = 0.0, np.zeros(len(times))
    for number, start in enumerate(starts):
        own = session == number
        if own.any():
            hours[own] = before + (times[own] - start) / 3600
            before = float(hours[own][-1])
    return hours


def _is_start(row: dict[str, Any]) -> bool:
    return bool(row.get("role") == RoleKind.LOGGER and row.get("event") == Event.START and "time" in row)


def frames_per_step(config: Config) -> int:
    return config.env.repeat or SUITE_REPEATS.get(config.env.name.partition(":")[0], 1)


def read_rows(path: Path) -> list[dict[str, Any]]:
    try:
        return parse_rows(path.read_bytes().split(b"\n"))
    except OSError:
        return []


def _load_reference(path: Path) -> list[dict[str, Any]]:
    try:
        data = read_bounded(path, MAX_BYTES)
        rows = parse_json(gunzip(data, MAX_BYTES) if data[:2] == b"\x1f\x8b" else data)
    except (OSError, ValueError) as error:
        raise BadInput(f"cannot read the reference {path}: {error}") from error
    if not isinstance(rows, list) or not all(_is_curve(row) for row in rows):
        raise BadInput(
            f"{path} is no reference: expected a JSON list of objects with task, method, seed, xs and ys, "
            "of which the last two have equally many numbers"
        )
    return rows


def _is_curve(row: Any) -> bool:
    if not isinstance(row, dict) or not {"task", "method", "xs", "ys"} <= row.keys():
        return False
    xs, ys = row["xs"], row["ys"]
    points = isinstance(xs, list) and isinstance(ys, list) and 0 < len(xs) == len(ys)
    measured = points and all(map(_is_number, xs)) and all(y is None or y != y or _is_number(y) for y in ys)
    return measured and isinstance(row["task"], str)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < MAX_NUMBER
