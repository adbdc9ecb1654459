"""Commands for roles that join a running fleet."""

from __future__ import annotations

from typing import Annotated

import typer

from dreamfleet.cli.options import Fleet
from dreamfleet.launch import fleet_file, launcher


def role_env(
    fleet: Fleet,
    envs: Annotated[int, typer.Option(min=1, help="Environments to step in this process.")] = 1,
    evaluate: Annotated[bool, typer.Option("--eval", help="Collect evaluation episodes instead.")] = False,
    env: Annotated[
        list[str] | None, typer.Option(help="Allow the fleet to name only this env; repeat for wrappers.")
    ] = None,
) -> None:
    """Step further environments for a running fleet."""
    file = fleet_file.FleetFile(fleet, "worker")
    specs = fleet_file.joining_envs(file, envs, "eval" if evaluate else "train", env or [])
    raise typer.Exit(launcher.run_remote(specs, file.args("actor")))


def role_replay(fleet: Fleet) -> None:
    """Be the replay of a fleet that has run.remote_replay=true."""
    file = fleet_file.FleetFile(fleet, "replay")
    raise typer.Exit(launcher.run_remote(fleet_file.joining_replay(file), file.args("replay")))
