"""Commands that evaluate or export a trained policy."""

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
    episodes: Annotated[int, typer.Option(min=1, help="Number of episodes.")] = 10,
    video: Annotated[Path | None, typer.Option(help="Record the first episode to this .mp4 file.")] = None,
    deterministic: Annotated[bool, typer.Option("--deterministic", help="Take the most likely action.")] = False,
    env: Annotated[str | None, typer.Option(help="Another environment with matching spaces.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of environments and actions. Unset: the run's seed.")] = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate a run's latest agent, even while it trains."""
    options = evaluation.EvalOptions(episodes, deterministic, env, seed, video)
    report = evaluation.evaluate(run_dir, options)
    typer.echo(json.dumps(report) if as_json else evaluation.show_evaluation(report))


def export(run_dir: Run, file: Annotated[Path, typer.Argument(help="Output file, such as policy.zip.")]) -> None:
    """Export a run's policy to one file that only needs JAX and NumPy."""
    step = policies.run_export(run_dir, file)
    typer.echo(f"wrote {file}: the policy of {run_dir} at step {step}")
