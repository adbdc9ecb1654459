"""Commands for what was trained: play episodes, or write the policy to a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from dreamfleet.cli.options import AsJson, Run
from dreamfleet.commands.evaluate import command as evaluation
from dreamfleet.commands.evaluate import policies


def evaluate(
    run_dir: Run,
    episodes: Annotated[int, typer.Option(min=1, help="Episodes to play.")] = 10,
    video: Annotated[Path | None, typer.Option(help="Write the first episode there, as .mp4.")] = None,
    deterministic: Annotated[bool, typer.Option("--deterministic", help="Take the likeliest action.")] = False,
    env: Annotated[str | None, typer.Option(help="Another environment, which the agent fits.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of environments and actions; unset: the run's.")] = None,
    as_json: AsJson = False,
) -> None:
    """Play episodes with a run's newest agent, also while it trains."""
    options = evaluation.EvalOptions(episodes, deterministic, env, seed, video)
    report = evaluation.evaluate(run_dir, options)
    typer.echo(json.dumps(report) if as_json else evaluation.show_evaluation(report))


def export(run_dir: Run, file: Annotated[Path, typer.Argument(help="Where to, such as policy.zip.")]) -> None:
    """Write a run's policy into one file for JAX and NumPy alone."""
    step = policies.run_export(run_dir, file)
    typer.echo(f"wrote {file}: the policy of {run_dir} at step {step}")
