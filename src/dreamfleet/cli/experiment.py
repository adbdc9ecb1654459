"""Commands for several runs: published experiments and learning curves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from dreamfleet.cli.options import AsJson, Words
from dreamfleet.commands.plot.picture import plot_runs
from dreamfleet.commands.reproduce import command as reproduction


def plot(
    runs: Annotated[list[str], typer.Argument(metavar="[LABEL=]DIR...", help="Run folders.")],
    *,
    out: Annotated[Path, typer.Option(help="Output file: .png, .svg or .pdf.")],
    metric: Annotated[str, typer.Option(help="Metric to plot: any name in metrics.jsonl.")] = "episode/return",
    x: Annotated[str, typer.Option("--x", help="Horizontal axis: steps, frames or hours.")] = "steps",
    reference: Annotated[Path | None, typer.Option(help="File with published curves to compare with.")] = None,
) -> None:
    """Plot learning curves with mean and band over seeds."""
    typer.echo(plot_runs(runs, out, metric, x, reference))


def reproduce(
    suite: Annotated[str, typer.Argument(help="Suite, such as atari100k.")],
    task: Annotated[str, typer.Argument(help="Task, such as boxing.")],
    words: Words = None,
    *,
    seeds: Annotated[int, typer.Option(min=1, help="Number of runs, with seeds from 0.")] = 1,
    out: Annotated[Path, typer.Option(help="Parent folder of the runs. Existing runs are resumed.")] = Path("runs"),
    reference: Annotated[Path | None, typer.Option(help="File with published curves to compare with.")] = None,
    frames: Annotated[int | None, typer.Option(help="Budget in frames. Unset: the published one.")] = None,
    at_once: Annotated[int, typer.Option(min=1, help="Number of runs to train in parallel.")] = 1,
    only_score: Annotated[bool, typer.Option("--only-score", help="Score existing runs without training.")] = False,
    as_json: AsJson = False,
) -> None:
    """Run a published experiment and compare the scores."""
    plan = reproduction.make_plan(suite, task, words or [], seeds, frames, out, reference)
    if not only_score:
        reproduction.train_all(plan, at_once)
    found = reproduction.score(plan)
    typer.echo(json.dumps(found) if as_json else reproduction.score_text(found))
