"""The command line: reads it, builds the configuration, calls. No logic of its own."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from dreamfleet.config.args import FleetArgs
from dreamfleet.core.errors import BadInput, DreamfleetError
from dreamfleet.launch import build, env_tools, launcher, offline
from dreamfleet.launch.continuing import continued_config
from dreamfleet.launch.exit_codes import EXIT_BAD_INPUT, EXIT_DONE, EXIT_FAILED
from dreamfleet.launch.progress import Progress

app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help="Train agents with many processes."
)
role_app = typer.Typer(no_args_is_help=True, help="Join a running fleet, also from another machine.")
app.add_typer(role_app, name="role")
replay_app = typer.Typer(no_args_is_help=True, help="Fill a run's replay from files, or see what it holds.")
app.add_typer(replay_app, name="replay")

RunDir = Annotated[Path, typer.Option("--run-dir", help="Folder of the run: created, or continued if it holds one.")]
Run = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the run.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Fleet = Annotated[Path, typer.Option("--fleet", help="The run's fleet.json, with the key folder beside it.")]


@app.command()
def train(
    overrides: Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Configuration.")] = None,
    *,
    run_dir: RunDir,
) -> None:
    """Start a run, or continue the one in the run folder."""
    config = continued_config(run_dir, overrides or [])
    build.check_names(config)
    args = FleetArgs.from_config(config, run_dir)
    with Progress(config.run.steps) as progress:
        code = launcher.run_fleet(build.make_factories(config, run_dir), args, progress.show, config)
    raise typer.Exit(code)


@app.command()
def envs(
    suite: Annotated[str | None, typer.Argument(help="Show the tasks of this one.")] = None, as_json: AsJson = False
) -> None:
    """List the suites of environments, what each needs and whether it is installed."""
    suites = env_tools.list_suites(suite)
    if as_json:
        typer.echo(json.dumps({"suites": suites}))
    else:
        env_tools.show_suites(suites)


@app.command("check-env")
def check_env(
    env: Annotated[str, typer.Argument(help="What env= takes: SUITE:TASK or package.module:factory.")],
    overrides: Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Configuration.")] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Steps to take; unset: until a few episodes have ended.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Try an environment: what the agent will see, episodes, speed, and what is wrong with it."""
    report = env_tools.check_env(env, overrides or [], steps)
    if as_json:
        typer.echo(json.dumps(report))
    else:
        env_tools.show_report(report)
    raise typer.Exit(EXIT_DONE if report["ok"] else EXIT_FAILED)


@role_app.command("env")
def role_env(
    fleet: Fleet,
    envs: Annotated[int, typer.Option(min=1, help="Environments to step in this process.")] = 1,
    evaluate: Annotated[bool, typer.Option("--eval", help="Collect evaluation episodes instead.")] = False,
) -> None:
    """Step further environments for a running fleet."""
    file = build.FleetFile(fleet)
    specs = build.joining_envs(file, envs, "eval" if evaluate else "train")
    raise typer.Exit(launcher.run_remote(specs, file.args()))


@role_app.command("replay")
def role_replay(fleet: Fleet) -> None:
    """Be the replay of a fleet that was started with run.remote_replay=true."""
    file = build.FleetFile(fleet)
    raise typer.Exit(launcher.run_remote(build.joining_replay(file), file.args()))


@replay_app.command("import")
def replay_import(
    run_dir: Run,
    words: Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Configuration.")] = None,
    *,
    patterns: Annotated[list[str], typer.Option("--from", help="Episodes, one .npz each: a file or pattern; repeat.")],
) -> None:
    """Fill the replay of a run before it trains, with episodes from files."""
    files, overrides = offline.split_words(words or [])
    typer.echo(offline.import_episodes(run_dir, [*patterns, *files], overrides))


@replay_app.command("info")
def replay_info(run_dir: Run, as_json: AsJson = False) -> None:
    """Show the steps, episodes and returns in the newest snapshot of a run."""
    info = offline.replay_info(run_dir)
    typer.echo(json.dumps(info) if as_json else offline.info_table(info))


def main() -> None:
    sys.path.insert(0, str(Path.cwd()))  # a user's own module lies where they work
    try:
        app()
    except DreamfleetError as error:
        sys.stderr.write(f"dreamfleet: {error}\n")
        sys.exit(EXIT_BAD_INPUT if isinstance(error, BadInput) else EXIT_FAILED)
