"""The command line: parses arguments, builds the configuration and calls `dreamfleet.commands`.

Each file contains one group of commands.
"""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from dreamfleet.cli import environment, experiment, machine, policy, replay, role, run
from dreamfleet.core.errors import BadInput, DreamfleetError
from dreamfleet.supervision.exit_codes import EXIT_BAD_INPUT, EXIT_FAILED
from dreamfleet.supervision.failures import details

app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help="Train agents with many processes."
)
role_app = typer.Typer(no_args_is_help=True, help="Join a running fleet from this or another machine.")
app.add_typer(role_app, name="role")
replay_app = typer.Typer(no_args_is_help=True, help="Fill a run's replay from files or inspect it.")
app.add_typer(replay_app, name="replay")

# In the order in which `dreamfleet --help` lists them.
app.command()(run.train)
app.command()(run.status)
app.command()(experiment.plot)
app.command()(experiment.reproduce)
app.command()(environment.envs)
app.command("check-env")(environment.check_env)
app.command()(machine.bench)
app.command()(machine.doctor)
app.command("eval")(policy.evaluate)
app.command()(policy.export)
app.command()(run.snapshot)
role_app.command("env")(role.role_env)
role_app.command("replay")(role.role_replay)
replay_app.command("import")(replay.replay_import)
replay_app.command("info")(replay.replay_info)


def main() -> None:
    sys.path.insert(0, str(Path.cwd()))  # users' own modules are in the working directory
    try:
        app()
    except DreamfleetError as error:
        sys.stderr.write(f"{details(error)}dreamfleet: {error}\n")
        sys.exit(EXIT_BAD_INPUT if isinstance(error, BadInput) else EXIT_FAILED)
