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
    runs: Annotated[list[str], typer.Argument(metavar="[LABEL=]DIR...", help="Folders of the runs.")],
    *,
    out: Annotated[Path, typer.Option(help="Picture to write: .png, .svg or .pdf.")],
    metric: Annotated[str, typer.Option(help="What to draw: any name in metrics.jsonl.")] = "episode/return",
    x: Annotated[str, typer.Option("--x", help="Over steps, frames or hours.")] = "steps",
    reference: Annotated[Path | None, typer.Option(help="Published curves to draw beside them.")] = None,
) -> None:
    """Draw learning curves, with mean and band over seeds."""
    typer.echo(plot_runs(runs, out, metric, x, reference))


def reproduce(
    suite: Annotated[str, typer.Argument(help="Such as atari100k.")],
    task: Annotated[str, typer.Argument(help="Such as boxing.")],
    words: Words = None,
    *,
    seeds: Annotated[int, typer.Option(min=1, help="Runs, with the seeds from 0 on.")] = 1,
    out: Annotated[Path, typer.Option(help="Folder of the runs, which are continued if they are there.")] = Path(
        "runs"
    ),
    reference: Annotated[Path | None, typer.Option(help="File of published curves to compare with.")] = None,
    frames: Annotated[int | None, typer.Option(help="Budget, if not all of the published one.")] = None,
    at_once: Annotated[int, typer.Option(min=1, help="Runs side by side.")] = 1,
    only_score: Annotated[bool, typer.Option("--only-score", help="Train nothing, score what is there.")] = False,
    as_json: AsJson = False,
) -> None:
    """Run a published experiment and compare the scores."""
    plan = reproduction.make_plan(suite, task, words or [], seeds, frames, out, reference)
    if not only_score:
        reproduction.train_all(plan, at_once)
    found = reproduction.score(plan)
    typer.echo(json.dumps(found) if as_json else reproduction.score_text(found))
