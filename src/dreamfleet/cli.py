"""The command line: reads it, builds the configuration, calls. No logic of its own."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from dreamfleet.commands import replay, snapshots
from dreamfleet.commands.bench.command import bench as run_bench
from dreamfleet.commands.bench.text import bench_text
from dreamfleet.commands.doctor.command import examine
from dreamfleet.commands.doctor.findings import findings_json, findings_text, stops_training
from dreamfleet.commands.envs import command as env_tools
from dreamfleet.commands.envs.space_table import read_env
from dreamfleet.commands.evaluate import command as evaluation
from dreamfleet.commands.evaluate import policies
from dreamfleet.commands.plot.picture import plot_runs
from dreamfleet.commands.reproduce import command as reproduction
from dreamfleet.commands.status import show_status, watch_status
from dreamfleet.commands.train import run_config
from dreamfleet.config.load import parse_overrides
from dreamfleet.config.show import show_origins
from dreamfleet.core.errors import BadInput, DreamfleetError
from dreamfleet.launch import fleet_file, launcher
from dreamfleet.runs.resume import resolve_run
from dreamfleet.supervision.exit_codes import EXIT_BAD_INPUT, EXIT_DONE, EXIT_FAILED
from dreamfleet.supervision.failures import details
from dreamfleet.ui.run_reader import read_run

app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help="Train agents with many processes."
)
role_app = typer.Typer(no_args_is_help=True, help="Join a running fleet, also from another machine.")
app.add_typer(role_app, name="role")
replay_app = typer.Typer(no_args_is_help=True, help="Fill a run's replay from files, or see what it holds.")
app.add_typer(replay_app, name="replay")

RUN_DIR = typer.Option("--run-dir", help="Folder of the run: created, or continued if it holds one.")
Words = Annotated[list[str] | None, typer.Argument(metavar="[PRESET]... [KEY=VALUE]...", help="Configuration.")]
Run = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the run.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Fleet = Annotated[Path, typer.Option("--fleet", help="The run's fleet.json, with the key folder beside it.")]


@app.command()
def train(
    words: Words = None,
    *,
    run_dir: Annotated[Path | None, RUN_DIR] = None,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Show the configuration and where each value comes from; no start.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print only errors and the last line.")] = False,
) -> None:
    """Start a run, or continue the one in the run folder."""
    resolved = resolve_run(run_dir, words or [])
    if print_config:
        typer.echo(show_origins(resolved))
        return
    if run_dir is None:
        raise BadInput("a run needs a folder: add --run-dir DIR, such as --run-dir runs/first")
    raise typer.Exit(run_config(resolved.config, run_dir, quiet))


@app.command()
def status(
    run_dir: Run,
    watch: Annotated[bool, typer.Option("--watch", help="Follow the run until it ends, or Ctrl-C.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show how a run stands, from its folder."""
    if as_json:
        typer.echo(json.dumps(read_run(run_dir).to_json()))
    elif watch:
        watch_status(run_dir)
    else:
        show_status(run_dir)


@app.command()
def plot(
    runs: Annotated[list[str], typer.Argument(metavar="[LABEL=]DIR...", help="Folders of the runs.")],
    *,
    out: Annotated[Path, typer.Option(help="Picture to write: .png, .svg or .pdf.")],
    metric: Annotated[str, typer.Option(help="What to draw: any name in metrics.jsonl.")] = "episode/return",
    x: Annotated[str, typer.Option("--x", help="Over steps, frames or hours.")] = "steps",
    reference: Annotated[Path | None, typer.Option(help="Published curves to draw beside them.")] = None,
) -> None:
    """Draw learning curves, with mean and band over seeds."""
    typer.echo(plot_runs(runs, out, metric, x, reference))


@app.command()
def reproduce(
    suite: Annotated[str, typer.Argument(help="Such as atari100k.")],
    task: Annotated[str, typer.Argument(help="Such as boxing.")],
    words: Words = None,
    *,
    seeds: Annotated[int, typer.Option(min=1, help="Runs, with the seeds from 0 on.")] = 1,
    out: Annotated[Path, typer.Option(help="Folder of the runs, which are continued if they are there.")] = Path(
        "runs"
    ),
    reference: Annotated[Path | None, typer.Option(help="File of published curves to compare with.")] = None,
    frames: Annotated[int | None, typer.Option(help="Budget, if not all of the published one.")] = None,
    at_once: Annotated[int, typer.Option(min=1, help="Runs side by side.")] = 1,
    only_score: Annotated[bool, typer.Option("--only-score", help="Train nothing, score what is there.")] = False,
    as_json: AsJson = False,
) -> None:
    """Run a published experiment and compare the scores."""
    plan = reproduction.make_plan(suite, task, words or [], seeds, frames, out, reference)
    if not only_score:
        reproduction.train_all(plan, at_once)
    found = reproduction.score(plan)
    typer.echo(json.dumps(found) if as_json else reproduction.score_text(found))


@app.command()
def envs(
    suite: Annotated[str | None, typer.Argument(help="Show the tasks of this one, or of gym:PACKAGE.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the suites of environments, and which are installed."""
    suites = env_tools.list_suites(suite)
    if as_json:
        typer.echo(json.dumps({"suites": suites}))
    else:
        env_tools.show_suites(suites)


@app.command("check-env")
def check_env(
    env: Annotated[str, typer.Argument(help="What env= takes: SUITE:TASK or package.module:factory.")],
    overrides: Words = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Steps to take; unset: until a few episodes have ended.")
    ] = None,
    spaces: Annotated[
        bool, typer.Option("--spaces", help="Show how its observations are read, and why, and take no step.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Try an environment: what the agent sees, speed, what is wrong."""
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


@app.command()
def bench(
    words: Words = None,
    seconds: Annotated[float, typer.Option(min=1, help="How long to measure, once training is under way.")] = 60.0,
    as_json: AsJson = False,
) -> None:
    """Run a configuration for a minute and name what bounds it."""
    measured = run_bench(parse_overrides(words or []), seconds)
    if isinstance(measured, int):
        raise typer.Exit(measured)
    typer.echo(json.dumps(measured.to_json()) if as_json else bench_text(measured))


@app.command()
def doctor(as_json: AsJson = False) -> None:
    """Look this machine over and say what to do about problems."""
    findings = examine()
    typer.echo(json.dumps(findings_json(findings)) if as_json else findings_text(findings))
    raise typer.Exit(EXIT_FAILED if stops_training(findings) else EXIT_DONE)


@app.command("eval")
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


@app.command()
def export(run_dir: Run, file: Annotated[Path, typer.Argument(help="Where to, such as policy.zip.")]) -> None:
    """Write a run's policy into one file for JAX and NumPy alone."""
    step = policies.run_export(run_dir, file)
    typer.echo(f"wrote {file}: the policy of {run_dir} at step {step}")


@app.command()
def snapshot(
    run_dir: Run,
    list_all: Annotated[bool, typer.Option("--list", help="Show the snapshots there are instead.")] = False,
    timeout_s: Annotated[float, typer.Option("--timeout", min=0, help="Seconds to wait for it.")] = 60.0,
    as_json: AsJson = False,
) -> None:
    """Ask a live run for a snapshot now, or list those it has."""
    if list_all:
        rows = snapshots.list_snapshots(run_dir)
        typer.echo(json.dumps({"snapshots": rows}) if as_json else snapshots.snapshot_table(rows))
        return
    folder = snapshots.take_snapshot(run_dir, timeout_s)
    typer.echo(json.dumps({"snapshot": str(folder)}) if as_json else folder)


@role_app.command("env")
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


@role_app.command("replay")
def role_replay(fleet: Fleet) -> None:
    """Be the replay of a fleet that has run.remote_replay=true."""
    file = fleet_file.FleetFile(fleet, "replay")
    raise typer.Exit(launcher.run_remote(fleet_file.joining_replay(file), file.args("replay")))


@replay_app.command("import")
def replay_import(
    run_dir: Run,
    words: Words = None,
    *,
    patterns: Annotated[list[str], typer.Option("--from", help="Episodes, one .npz each: a file or pattern; repeat.")],
) -> None:
    """Fill a run's replay with episodes from files, before it trains."""
    files, overrides = replay.split_words(words or [])
    typer.echo(replay.import_episodes(run_dir, [*patterns, *files], overrides))


@replay_app.command("info")
def replay_info(run_dir: Run, as_json: AsJson = False) -> None:
    """Show steps, episodes and returns in a run's newest snapshot."""
    info = replay.replay_info(run_dir)
    typer.echo(json.dumps(info) if as_json else replay.info_table(info))


def main() -> None:
    sys.path.insert(0, str(Path.cwd()))  # a user's own module lies where they work
    try:
        app()
    except DreamfleetError as error:
        sys.stderr.write(f"{details(error)}dreamfleet: {error}\n")
        sys.exit(EXIT_BAD_INPUT if isinstance(error, BadInput) else EXIT_FAILED)
