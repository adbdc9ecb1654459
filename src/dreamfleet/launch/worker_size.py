"""Number of environments per worker, if the configuration does not set it."""

from __future__ import annotations

import math
from os import PathLike

from dreamfleet.config.args import FleetArgs
from dreamfleet.config.schema import Config
from dreamfleet.envs.catalog import is_quick
from dreamfleet.supervision.machine import usable_cores

QUICK_ENVS = 8  # per message, if a step takes microseconds: a message for several costs little more than for one


def fleet_args(config: Config, logdir: str | PathLike[str]) -> FleetArgs:
    return FleetArgs.from_config(config, logdir).model_copy(update={"env_quick": is_quick(config.env.name)})


def envs_per_worker(args: FleetArgs) -> int:
    """Return the number of environments per worker.

    Unless configured, there is one worker per core, or fewer if messages take longer than steps. There are at least
    two, so that one steps while the other waits for actions.
    """
    if args.envs_per_worker > 0:
        return args.envs_per_worker
    spread = math.ceil(args.envs / max(1, int(usable_cores())))
    together = min(QUICK_ENVS, args.envs // 2) if args.env_quick else 1
    return max(1, spread, together)


def workers(args: FleetArgs) -> int:
    """Return the number of worker processes for training environments."""
    return math.ceil(args.envs / envs_per_worker(args))
