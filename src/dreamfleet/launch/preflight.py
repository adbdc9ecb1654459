"""Check that this machine has enough memory and disk space for a run's replay, before anything starts."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from dreamfleet.checkpoint.snapshot import Snapshots
from dreamfleet.config.checks import notes
from dreamfleet.config.schema import Config
from dreamfleet.core.errors import ConfigError, EnvError, EnvFailed
from dreamfleet.core.text.formatting import nbytes
from dreamfleet.launch.dreamer import latent_bytes
from dreamfleet.launch.env_probe import EnvSpaces, ask_spaces
from dreamfleet.launch.replay_options import replay_options
from dreamfleet.replay.columns import step_bytes
from dreamfleet.replay.memory import reserved_chunks
from dreamfleet.replay.projection import Projection, chunk_bytes, project, stored_layout
from dreamfleet.supervision.machine import memory_bytes

MODES = ("train", "eval")


def check_replay_fits(config: Config, run_dir: Path, aloud: bool = True) -> EnvSpaces | None:
    """Check the replay's demand and return the spaces of the environment.

    With `aloud`, print the demand and notes about the environment, unless the banner shows them. An environment that
    hangs or ends its process is not an error here. It fails later in its role.
    """
    if config.run.remote_replay:
        return None
    try:
        spaces = ask_spaces(config, config.run.start_timeout_s)
    except EnvFailed:
        raise
    except EnvError:
        return None
    spaces = spaces._replace(notes=(*spaces.notes, *notes(config)))
    for note in spaces.notes if aloud else ():
        sys.stderr.write(f"starting: {note}\n")
    for mode in MODES:
        check_chunks(config, spaces, mode)
    needed = project_run(config, spaces, steps_before(run_dir))
    memory, disk = free_memory(), free_disk(run_dir)
    if needed.memory_bytes > memory:
        raise ConfigError(_refusal(config, f"{nbytes(needed.memory_bytes)} of memory, {nbytes(memory)} are free"))
    if needed.disk_bytes > disk:
        raise ConfigError(
            _refusal(config, f"{nbytes(needed.disk_bytes)} on the disk of {run_dir}, {nbytes(disk)} are free")
        )
    if aloud:
        size = step_bytes(stored_layout(spaces.obs, spaces.act)) + latent_bytes(config)
        sys.stderr.write(
            f"starting: replay will take up to {nbytes(needed.memory_bytes)} of memory and {nbytes(needed.disk_bytes)} "
            f"of disk for {needed.steps} steps of {size} bytes; {nbytes(memory)} and {nbytes(disk)} are free\n"
        )
    return spaces


def project_run(config: Config, spaces: EnvSpaces, before: int = 0) -> Projection:
    """Project the size of both replays, starting at step `before`. Eval steps are proportional to environments."""
    layout = stored_layout(spaces.obs, spaces.act)
    steps = max(config.run.steps, before)
    evaluated = steps * config.run.eval_envs // max(1, config.run.envs)
    collected = {"train": (steps, config.run.envs), "eval": (evaluated, config.run.eval_envs)}
    train, evaluation = (
        project(layout, replay_options(config, Path(), mode), *collected[mode], latent_bytes(config)) for mode in MODES
    )
    return train + evaluation


def check_chunks(config: Config, spaces: EnvSpaces, mode: str) -> None:
    """Check for two chunks per environment: one being written and one that its windows still need."""
    options = replay_options(config, Path(), mode)
    envs = config.run.envs if mode == "train" else config.run.eval_envs
    chunksize = max(options.chunksize, options.length)
    if reserved_chunks(options.capacity, chunksize) < 2 * envs:
        share = "" if mode == "train" else ", of which the eval replay gets a tenth,"
        raise ConfigError(
            f"replay.size={_short(config.replay.size)}{share} has too few chunks of {chunksize} steps for {envs} "
            "environments, which need two each: set a larger replay.size, a smaller replay.chunksize or fewer "
            "environments"
        )
    needed = 2 * envs * chunk_bytes(stored_layout(spaces.obs, spaces.act), options, latent_bytes(config))
    if options.size_bytes and options.size_bytes < needed:
        share = "" if mode == "train" else ", of which the eval replay gets a tenth,"
        least = needed * (1 if mode == "train" else 10)
        raise ConfigError(
            f"replay.size_bytes={_short(config.replay.size_bytes)}{share} is less than two chunks of "
            f"{chunksize} steps for each of {envs} environments: "
            f"set replay.size_bytes={_short(least)} or more, or a smaller replay.chunksize"
        )


def steps_before(run_dir: Path) -> int:
    return int(Snapshots(run_dir).manifest().get("step", 0))


def free_memory() -> int:
    """Return the free memory available to this process. Containers may limit it."""
    return memory_bytes()[1]


def free_disk(run_dir: Path) -> int:
    """Return the free disk space, including the space of the run's existing replay."""
    own = sum(path.stat().st_size for path in (run_dir / "replay").rglob("*") if path.is_file())
    return shutil.disk_usage(run_dir).free + own


def _refusal(config: Config, need: str) -> str:
    replay, steps = config.replay, config.run.steps
    keys = [f"replay.size={_short(replay.size)}"]
    if steps < replay.size:
        keys.append(f"run.steps={_short(steps)}")
    if replay.size_bytes:
        keys.append(f"replay.size_bytes={_short(replay.size_bytes)}")
    remedy = "a smaller replay.size_bytes" if replay.size_bytes else "replay.size_bytes"
    return f"{' with '.join(keys)} needs {need}: set {remedy} or a smaller replay.size"


def _short(number: int) -> str:
    """Format 5000000 as 5e6, as a user would type it."""
    text = f"{number:.2g}".replace("e+0", "e").replace("e+", "e")
    return text if float(text) == number else str(number)
