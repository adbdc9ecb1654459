"""Commands that check this machine and measure how fast a configuration runs on it."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from dreamfleet.cli.options import AsJson, Words
from dreamfleet.commands.bench.command import bench as run_bench
from dreamfleet.commands.bench.text import bench_text
from dreamfleet.commands.doctor.command import examine
from dreamfleet.commands.doctor.findings import findings_json, findings_text, stops_training
from dreamfleet.config.load import parse_overrides
from dreamfleet.supervision.exit_codes import EXIT_DONE, EXIT_FAILED


def bench(
    words: Words = None,
    seconds: Annotated[float, typer.Option(min=1, help="Duration of the measurement, after the start.")] = 60.0,
    as_json: AsJson = False,
) -> None:
    """Run a configuration for a minute and find the bottleneck."""
    measured = run_bench(parse_overrides(words or []), seconds)
    if isinstance(measured, int):
        raise typer.Exit(measured)
    typer.echo(json.dumps(measured.to_json()) if as_json else bench_text(measured))


def doctor(as_json: AsJson = False) -> None:
    """Check this machine for problems and suggest fixes."""
    findings = examine()
    typer.echo(json.dumps(findings_json(findings)) if as_json else findings_text(findings))
    raise typer.Exit(EXIT_FAILED if stops_training(findings) else EXIT_DONE)
