"""Commands that list and check environments."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from dreamfleet.cli.options import AsJson, Words
from dreamfleet.commands.envs import command as env_tools
from dreamfleet.commands.envs.space_table import read_env
from dreamfleet.supervision.exit_codes import EXIT_DONE, EXIT_FAILED


def envs(
    suite: Annotated[str | None, typer.Argument(help="Show the tasks of this suite, or of gym:PACKAGE.")] = None,
    as_json: AsJson = False,
) -> None:
    """List environment suites and whether they are installed."""
    suites = env_tools.list_suites(suite)
    if as_json:
        typer.echo(json.dumps({"suites": suites}))
    else:
        env_tools.show_suites(suites)


def check_env(
    env: Annotated[str, typer.Argument(help="Environment: SUITE:TASK or package.module:factory.")],
    overrides: Words = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Number of steps. Unset: until a few episodes have ended.")
    ] = None,
    spaces: Annotated[
        bool, typer.Option("--spaces", help="Show how observations are read and why, without stepping.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check an environment: observations, speed and problems."""
    if spaces:
        found = read_env(env, overrides or [])
        if as_json:
            typer.echo(json.dumps(found))
        else:
            env_tools.show_readings(found)
        raise typer.Exit(EXIT_DONE if found["ok"] else EXIT_FAILED)
    report = env_tools.check_env(env, overrides or [], steps)
    if as_json:
        typer.echo(json.dumps(report))
    else:
        env_tools.show_report(report)
    raise typer.Exit(EXIT_DONE if report["ok"] else EXIT_FAILED)
