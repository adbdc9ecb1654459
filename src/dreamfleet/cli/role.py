"""Commands that run a role of a running fleet."""

from __future__ import annotations

from typing import Annotated

import typer

from dreamfleet.cli.options import Fleet
from dreamfleet.launch import fleet_file, launcher


def role_env(
    fleet: Fleet,
    envs: Annotated[int, typer.Option(min=1, help="Number of environments in this process.")] = 1,
    evaluate: Annotated[bool, typer.Option("--eval", help="Collect evaluation episodes instead.")] = False,
    env: Annotated[
        list[str] | None, typer.Option(help="Only accept this env from the fleet. Repeat for wrappers.")
    ] = None,
) -> None:
    """Run additional environments for a running fleet."""
    file = fleet_file.FleetFile(fleet, "worker")
    specs = fleet_file.joining_envs(file, envs, "eval" if evaluate else "train", env or [])
    raise typer.Exit(launcher.run_remote(specs, file.args("actor")))


def role_replay(fleet: Fleet) -> None:
    """Run the replay of a fleet with run.remote_replay=true."""
    file = fleet_file.FleetFile(fleet, "replay")
    raise typer.Exit(launcher.run_remote(fleet_file.joining_replay(file), file.args("replay")))
