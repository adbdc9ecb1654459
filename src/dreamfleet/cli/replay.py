"""Commands for the replay of a run that is not training."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from dreamfleet.cli.options import AsJson, Run, Words
from dreamfleet.commands import replay


def replay_import(
    run_dir: Run,
    words: Words = None,
    *,
    patterns: Annotated[list[str], typer.Option("--from", help="File or pattern of .npz episodes. Can be repeated.")],
) -> None:
    """Fill a new run's replay with episodes from files."""
    files, overrides = replay.split_words(words or [])
    typer.echo(replay.import_episodes(run_dir, [*patterns, *files], overrides))


def replay_info(run_dir: Run, as_json: AsJson = False) -> None:
    """Show steps, episodes and returns in a run's latest snapshot."""
    info = replay.replay_info(run_dir)
    typer.echo(json.dumps(info) if as_json else replay.info_table(info))
