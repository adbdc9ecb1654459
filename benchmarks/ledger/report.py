"""The results as a table and a figure, and their aggregates over games."""

from __future__ import annotations

import math
import statistics
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dreamfleet.commands.plot.curves import Curve, combine
from dreamfleet.commands.reproduce.scores import WINDOW
from ledger.atari import RANDOM_HUMAN, human_normalised

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RESAMPLES = 10_000
SUITE = "atari100k"  # whose scores are normalised
Results = Sequence[Mapping[str, Any]]
Published = Mapping[str, Sequence[float]]  # by environment, the scores of the published seeds


HEAD = """# The proof: published budgets, trained whole

`benchmarks/proof.py collect` writes this page from [results.jsonl](results.jsonl). The episodes, the course of the
metrics and the configuration of each run are in [records](records). A score is the mean return of the training
episodes in the last tenth of the frames. No setting is chosen by game.

![Our seeds over the published ones](curves.png)
""".splitlines()
COLUMNS = ("task", "size", "frames", "score (seeds)", "published mean (range)", "verdict")
COLUMNS += ("human-normalised, published", "minutes", "updates/s", "device busy", "commit")


@dataclass(frozen=True)
class Aggregate:
    """Aggregates over games. Without two seeds of every game there are no intervals: the spread is unknown."""

    games: int
    mean: float
    median: float
    iqm: float
    intervals: Mapping[str, tuple[float, float]] | None


def aggregate(scores: Sequence[Sequence[float]]) -> Aggregate:
    """Aggregate normalised scores, one sequence of seeds for each game, as rliable defines it.

    Mean and median are over games, of the means over seeds. The interquartile mean is of all scores together, without
    the lowest and the highest quarter. Intervals hold 95 % of a bootstrap that resamples seeds within each game.
    """
    found = _measures([np.asarray(game, float) for game in scores])
    intervals = None
    if all(len(game) > 1 for game in scores):
        random = np.random.default_rng(0)
        drawn = [
            _measures([random.choice(np.asarray(game, float), len(game)) for game in scores]) for _ in range(RESAMPLES)
        ]
        ends = np.quantile(np.array(drawn), [0.025, 0.975], axis=0)
        intervals = {
            name: (float(low), float(high)) for name, low, high in zip(("mean", "median", "iqm"), *ends, strict=True)
        }
    return Aggregate(len(scores), *found, intervals)


def _measures(scores: Sequence[np.ndarray]) -> tuple[float, float, float]:
    means = np.array([game.mean() for game in scores])
    every = np.sort(np.concatenate(scores))
    cut = len(every) // 4
    return float(means.mean()), float(np.median(means)), float(every[cut : len(every) - cut].mean())


def table(results: Results, published: Published, without_raw: Container[str] = ()) -> str:
    """Return the page of results in Markdown. Scores of runs in `without_raw`, by name, get a star."""
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for result in results:
        groups.setdefault((result["env"], result["size"]), []).append(result)
    lines = [
        *HEAD,
        "",
        f"| {' | '.join(COLUMNS)} |",
        "|---" * len(COLUMNS) + "|",
        *(_row(env, size, rows, published.get(env, ()), without_raw) for (env, size), rows in groups.items()),
    ]
    if any(result["name"] in without_raw for result in results):
        lines += ["", "\\* The episodes of this run were not kept."]
    for size in dict.fromkeys(size for env, size in groups if env.startswith(SUITE)):
        ours = {
            env: [row["score"] for row in rows]
            for (env, its), rows in groups.items()
            if its == size and env.startswith(SUITE)
        }
        lines += ["", *_aggregates(size, ours, published)]
    machines = dict.fromkeys(row["machine"] for row in results)
    total = sum(row["minutes"] / row["at_once"] for row in results)
    lines += ["", f"Machines: {'; '.join(machines) or 'none yet'}. All runs together took {total / 60:.1f} hours."]
    return "\n".join(lines) + "\n"


def _row(
    env: str,
    size: str,
    rows: Sequence[Mapping[str, Any]],
    published: Sequence[float],
    without_raw: Container[str],
) -> str:
    scores = [row["score"] for row in rows]
    mean = statistics.mean(scores)
    marked = [_number(row["score"]) + r"\*" * (row["name"] in without_raw) for row in rows]
    score = marked[0] if len(rows) == 1 else f"{_number(mean)} ({', '.join(marked)})"
    theirs = verdict = "not published"
    if published:
        low, high = min(published), max(published)
        theirs = f"{_number(statistics.mean(published))} ({_number(low)} to {_number(high)})"
        verdict = "**below**" if mean < low else "above" if mean > high else "inside"
    normal = ""
    suite, _, game = env.partition(":")
    if suite == SUITE and game in RANDOM_HUMAN:
        normal = f"{human_normalised(game, mean):.2f}"
        normal += f", {human_normalised(game, statistics.mean(published)):.2f}" if published else ""
    cells = (
        env,
        size,
        f"{rows[0]['frames']:,}",
        score,
        theirs,
        verdict,
        normal,
        ", ".join(_minutes(row) for row in rows),
        ", ".join(_optional(row["updates_per_s"], "{:.0f}") for row in rows),
        ", ".join(_optional(row["device_share"], "{:.0%}") for row in rows),
        ", ".join(dict.fromkeys(row["commit"][:7] for row in rows)),
    )
    return f"| {' | '.join(cells)} |"


def _minutes(row: Mapping[str, Any]) -> str:
    return f"{row['minutes']:.1f}" + (f" (beside {row['at_once'] - 1} others)" if row["at_once"] > 1 else "")


def _optional(value: float | None, form: str) -> str:
    return "" if value is None else form.format(value)


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}"


def _aggregates(size: str, ours: Mapping[str, Sequence[float]], published: Published) -> list[str]:
    """Both over the same games: those with a result of this size."""
    games = {env: env.partition(":")[2] for env in ours if env.partition(":")[2] in RANDOM_HUMAN}
    both = [env for env in games if published.get(env)]
    lines = [
        f"Human-normalised, over the {len(games)} of {len(RANDOM_HUMAN)} games that `{size}` has been trained on "
        "(95 % intervals by a stratified bootstrap over seeds, where each game has several):",
        "",
        "| | games | mean | median | interquartile mean |",
        "|---|---|---|---|---|",
    ]
    sides = [(f"ours, {size}", ours, list(games)), ("published, 200M parameters", published, both)]
    for label, scores, envs in sides:
        if envs:
            found = aggregate([[human_normalised(games[env], score) for score in scores[env]] for env in envs])
            lines.append(f"| {label} | {found.games} | {_measure_cells(found)} |")
    return lines


def _measure_cells(found: Aggregate) -> str:
    cells = []
    for name in ("mean", "median", "iqm"):
        cell = f"{getattr(found, name):.2f}"
        if found.intervals:
            low, high = found.intervals[name]
            cell += f" ({low:.2f} to {high:.2f})"
        cells.append(cell)
    return " | ".join(cells)


def draw(ours: Sequence[Curve], published: Sequence[Curve], out: Path) -> None:
    """Draw a small panel for each task: every seed of ours over the published ones. A label of ours is its size."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    tasks = list(dict.fromkeys(curve.task for curve in ours))
    columns = min(6, max(1, len(tasks)))
    rows = max(1, math.ceil(len(tasks) / columns))
    figure = Figure(figsize=(2.3 * columns + 0.4, 1.75 * rows + 0.6), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    labels = list(dict.fromkeys(curve.label for curve in ours))
    for panel, task in zip(panels, tasks, strict=False):
        for curve in published:
            if curve.task == task:
                _draw_seed(panel, curve, "0.6", 0.8, "published")
        for curve in ours:
            if curve.task == task:
                _draw_seed(panel, curve, f"C{labels.index(curve.label)}", 1.3, f"ours, {curve.label}")
        _dress(panel, task)
    for panel in panels[len(tasks) :]:
        panel.set_visible(False)
    known: dict[str, Any] = {}
    for panel in panels[: len(tasks)]:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            known.setdefault(label, handle)
    figure.legend(known.values(), known.keys(), loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    figure.savefig(out)


def _draw_seed(panel: Axes, curve: Curve, color: str, width: float, label: str) -> None:
    (band,) = combine([curve], points=round(2 / WINDOW))
    panel.plot(band.xs, band.mean, color=color, linewidth=width, label=label)


def _dress(panel: Axes, task: str) -> None:
    from matplotlib.ticker import EngFormatter

    panel.set_title(task.partition(":")[2].replace("_", " ") or task, fontsize=8)
    panel.set_xlim(left=0)
    for axis in (panel.xaxis, panel.yaxis):
        axis.set_major_formatter(EngFormatter(sep=""))
    panel.tick_params(labelsize=6, length=2)
    panel.grid(alpha=0.2)
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)
