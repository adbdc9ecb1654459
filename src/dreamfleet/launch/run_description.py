"""Description of a run before it starts, for its status and the banner."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dreamfleet.checkpoint.snapshot import Snapshots
from dreamfleet.config.args import FleetArgs
from dreamfleet.config.schema import Config, JaxGroup
from dreamfleet.core.spaces import Space, is_image, observed
from dreamfleet.launch.env_probe import EnvSpaces
from dreamfleet.launch.preflight import free_disk, free_memory, project_run
from dreamfleet.launch.worker_size import workers

MAX_SPACES = 4
MAX_CHOICES = 1 << 16  # integers with more values are numbers, not choices


def about_run(args: FleetArgs, folder: Path, config: Config | None, spaces: EnvSpaces | None) -> dict[str, Any]:
    """Return the description of a run.

    A fleet started from Python has no configuration, and an environment that cannot be created has no spaces. Their
    fields are omitted.
    """
    saved = Snapshots(folder).manifest()
    about: dict[str, Any] = {
        "folder": str(folder),
        "steps": args.steps,
        "duration": args.duration,
        "before": int(saved.get("step", 0)),
        "updates_before": int(saved.get("updates", 0)),
        "envs": args.envs,
        "eval_envs": args.eval_envs,
        "workers": 0 if args.remote_envs or args.script == "single" else workers(args),
        "actor_rows": args.actor_rows,
        "batches_ahead": args.batches_ahead,
        "batch_steps": args.batch_size * args.batch_length,
        "update_windows": args.batch_size / args.consec_train,
        "train_ratio": args.train_ratio,
        "seed": args.seed,
    }
    if config:
        about.update(task=config.env.name, agent=config.agent.name)
        if config.agent.name == "dreamer":
            about.update(agent=f"dreamer {config.agent.size}", devices=describe_devices(config.jax))
        about.update(tensorboard="tensorboard" in config.logger.sinks)
        about.update(replay_size=config.replay.size, replay_size_bytes=config.replay.size_bytes)
    if config and spaces:
        needed = project_run(config, spaces, about["before"])
        about.update(memory_bytes=needed.memory_bytes, disk_bytes=needed.disk_bytes)
        about.update(memory_free=free_memory(), disk_free=free_disk(folder))
        about.update(obs=list(describe_spaces(spaces.obs)), act=list(describe_spaces(spaces.act)))
        about.update(notes=list(spaces.notes))
    return about


def describe_devices(group: JaxGroup) -> str:
    """Return the configured devices. The agent's process reports the actual ones later."""
    platform = "the best device" if group.platform == "auto" else group.platform
    numbers = f" {', '.join(map(str, group.train_devices))}" if group.train_devices != (0,) else ""
    return f"{platform}{numbers} in {group.compute_dtype}"


def describe_spaces(spaces: Mapping[str, Space]) -> Iterator[str]:
    """Yield a line per space, and one for the remaining spaces."""
    shown = {key: space for key, space in observed(spaces).items() if key != "reset"}
    for key, space in list(shown.items())[:MAX_SPACES]:
        yield f"{key}: {describe_space(space)}"
    if len(shown) > MAX_SPACES:
        yield f"and {len(shown) - MAX_SPACES} more"


def describe_space(space: Space) -> str:
    shape = "x".join(map(str, space.shape))
    if is_image(space):
        return f"{shape} pixels"
    if space.discrete and space.classes.size and (space.classes == space.classes.flat[0]).all():
        number = int(space.classes.flat[0])
        if 0 < number <= MAX_CHOICES:  # the count of all values of an int64 overflows
            return f"{shape} of {number} choices each" if shape else f"{number} choices"
    if not shape:
        return f"one {space.dtype.name}"
    finite = np.isfinite(space.low).all() and np.isfinite(space.high).all() and not space.discrete
    bounds = f" from {space.low.min():g} to {space.high.max():g}" if finite else ""
    return f"{shape} {space.dtype.name}{bounds}"
