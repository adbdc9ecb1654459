"""The functions of the fleet: `combined` starts all roles, and each `parallel_*` runs one role in the calling thread.

`make_agent`, `make_env`, `make_replay`, `make_stream` and `make_logger` are the factories of the command line. They
create the parts of a configuration.

Factories are callables or cloudpickled callables. `args` is a mapping or an object with attributes. It has the keys of
the `run` group and of the batch shape (`dreamfleet.config.args.FleetArgs`). Missing keys get their defaults.

A `parallel_*` function returns when the run has ended and everything is saved. Call `set` of its `Stop` to end the role
earlier. See docs/parallel.md for examples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from os import PathLike
from pathlib import Path
from typing import Any

from dreamfleet.config.args import FleetArgs
from dreamfleet.core.errors import RoleFailed
from dreamfleet.core.factories import Factories, Factory
from dreamfleet.core.interfaces import Agent, Arrays, Env, EnvBatch, Logger, Replay
from dreamfleet.core.stop import Stop
from dreamfleet.launch.factories import make_agent, make_env, make_logger, make_replay, make_stream
from dreamfleet.roles.entry import (
    parallel_actor,
    parallel_agent,
    parallel_env,
    parallel_env_group,
    parallel_learner,
    parallel_logger,
    parallel_replay,
    unpack,
)
from dreamfleet.supervision.exit_codes import EXIT_DONE, EXIT_INTERRUPTED
from dreamfleet.transport import security

__all__ = [
    "MakeStream",
    "Stop",
    "combined",
    "create_keys",
    "make_agent",
    "make_env",
    "make_logger",
    "make_replay",
    "make_stream",
    "parallel_actor",
    "parallel_agent",
    "parallel_env",
    "parallel_env_group",
    "parallel_envs",
    "parallel_learner",
    "parallel_logger",
    "parallel_replay",
]

MakeStream = Callable[[Replay, str], Iterator[Arrays]]


def combined(
    make_agent: Callable[[], Agent],
    make_replay_train: Callable[[], Replay],
    make_replay_eval: Callable[[], Replay],
    make_env_train: Callable[..., Env | EnvBatch],
    make_env_eval: Callable[..., Env | EnvBatch],
    make_stream: MakeStream,
    make_logger: Callable[[], Logger],
    args: Any,
) -> None:
    """Start every role as a process and block until the run has reached its steps or duration.

    Args:
        make_agent: Factory of the agent.
        make_replay_train: Factory of the training replay.
        make_replay_eval: Factory of the evaluation replay.
        make_env_train: Factory of training environments, called with the index of an environment. See
            `roles.env_worker.role.make_worker` for optional parameters and results.
        make_env_eval: Factory of evaluation environments, like `make_env_train`.
        make_stream: Factory of batch streams, called with a replay and the mode.
        make_logger: Factory of the logger.
        args: Arguments of the fleet, see `FleetArgs`.

    Raises:
        RoleFailed: A role failed. All others have been stopped.
        KeyboardInterrupt: The run was interrupted.
    """
    from dreamfleet.launch.launcher import run_fleet

    factories = Factories(
        make_agent, make_replay_train, make_replay_eval, make_env_train, make_env_eval, make_stream, make_logger
    )
    _raise_unless_done(run_fleet(factories, FleetArgs.coerce(args)))


def create_keys(logdir: str | PathLike[str]) -> dict[str, str]:
    """Create the keys for roles with tcp addresses. Existing keys are kept.

    `combined` calls this function. If you start roles yourself, call it before the first one, unless all addresses are
    local.

    Args:
        logdir: The run folder. The keys are in its subfolder `keys`.

    Returns:
        The public keys by name. Pass them as `args.public_keys` to roles on other machines, which only need the file of
        their own key pair, such as `worker.json` for env workers.
    """
    return security.create_keys(Path(logdir) / "keys")


def parallel_envs(make_env_train: Factory[Env | EnvBatch], make_env_eval: Factory[Env | EnvBatch], args: Any) -> None:
    """Run all environments of a fleet in worker processes on this machine until the run ends.

    Args:
        make_env_train: Factory of training environments.
        make_env_eval: Factory of evaluation environments.
        args: Arguments of the fleet. `envs` and `eval_envs` are the numbers of environments.

    Raises:
        RoleFailed: A worker failed too often.
        KeyboardInterrupt: The workers were interrupted.
    """
    from dreamfleet.launch.launcher import run_envs

    elsewhere = FleetArgs.coerce(args).model_copy(update={"remote_envs": True})  # not started by the agent's supervisor
    _raise_unless_done(run_envs(unpack(make_env_train), unpack(make_env_eval), elsewhere))


def _raise_unless_done(code: int) -> None:
    if code == EXIT_INTERRUPTED:
        raise KeyboardInterrupt
    if code != EXIT_DONE:
        raise RoleFailed("a role of the fleet failed: see the error above and the logs in the run folder's logs/")
