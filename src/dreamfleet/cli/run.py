"""Commands for one run: start, resume and watch it, and take snapshots."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from dreamfleet.cli.options import RUN_DIR, AsJson, Run, Words
from dreamfleet.commands import snapshots
from dreamfleet.commands.status import show_status, watch_status
from dreamfleet.commands.train import run_config
from dreamfleet.config.show import show_origins
from dreamfleet.core.errors import BadInput
from dreamfleet.runs.resume import resolve_run
from dreamfleet.ui.run_reader import read_run


def train(
    words: Words = None,
    *,
    run_dir: Annotated[Path | None, RUN_DIR] = None,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Show the configuration and the origin of each value, then exit.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print only errors and the last line.")] = False,
) -> None:
    """Start a run, or resume the one in the run folder."""
    resolved = resolve_run(run_dir, words or [])
    if print_config:
        typer.echo(show_origins(resolved))
        return
    if run_dir is None:
        raise BadInput("a run needs a folder: add --run-dir DIR, such as --run-dir runs/first")
    raise typer.Exit(run_config(resolved.config, run_dir, quiet))


def status(
    run_dir: Run,
    watch: Annotated[bool, typer.Option("--watch", help="Follow the run until it ends, or Ctrl-C.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the status of a run from its folder."""
    if as_json:
        typer.echo(json.dumps(read_run(run_dir).to_json()))
    elif watch:
        watch_status(run_dir)
    else:
        show_status(run_dir)


def snapshot(
    run_dir: Run,
    list_all: Annotated[bool, typer.Option("--list", help="List existing snapshots instead.")] = False,
    timeout_s: Annotated[float, typer.Option("--timeout", min=0, help="Seconds to wait for the snapshot.")] = 60.0,
    as_json: AsJson = False,
) -> None:
    """Take a snapshot of a live run now, or list its snapshots."""
    if list_all:
        rows = snapshots.list_snapshots(run_dir)
        typer.echo(json.dumps({"snapshots": rows}) if as_json else snapshots.snapshot_table(rows))
        return
    folder = snapshots.take_snapshot(run_dir, timeout_s)
    typer.echo(json.dumps({"snapshot": str(folder)}) if as_json else folder)
