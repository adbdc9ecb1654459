"""What a fleet chooses for itself where the configuration leaves it open."""

from __future__ import annotations

import math
from os import PathLike

from dreamfleet.config.args import FleetArgs
from dreamfleet.config.schema import Config
from dreamfleet.envs.catalog import is_quick
from dreamfleet.supervision.machine import usable_cores

QUICK_ENVS = 8  # of which a step takes microseconds: one message for so many costs little more than one for each


def fleet_args(config: Config, logdir: str | PathLike[str]) -> FleetArgs:
    return FleetArgs.from_config(config, logdir).model_copy(update={"env_quick": is_quick(config.env.name)})


def envs_per_worker(args: FleetArgs) -> int:
    """Unless configured, as many workers as there are cores to use; fewer where messages would take longer than steps,
    but two at least, so that one steps while the other waits for its actions.
    """
    if args.envs_per_worker > 0:
        return args.envs_per_worker
    spread = math.ceil(args.envs / max(1, int(usable_cores())))
    together = min(QUICK_ENVS, args.envs // 2) if args.env_quick else 1
    return max(1, spread, together)


def workers(args: FleetArgs) -> int:
    """Processes of training environments."""
    return math.ceil(args.envs / envs_per_worker(args))
