"""The fleet's functions: `combined` starts everything, each `parallel_*` runs one role in the calling thread.

`make_agent`, `make_env`, `make_replay`, `make_stream` and `make_logger` make the parts of a configuration: the
factories of the command line.

Factories are callables, or the bytes that cloudpickle made of one. `args` has the keys of the `run` group and of the
batch shape (`dreamfleet.config.args.FleetArgs`), as an object with attributes or a mapping; what is missing gets its
default.

A `parallel_*` function that a script calls itself returns when the run has ended and everything is saved. `stop` is a
`Stop` whose `set` ends the role before that. docs/parallel.md has examples.
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
    """Starts every role as a process and blocks until the run has ended.

    The factories of environments are called with the number of an environment; `roles.env_worker.role.make_worker`
    says what else they may take and return.

    Returns when the run reached its steps or duration. Raises `RoleFailed` when a role failed, after all others were
    stopped, and `KeyboardInterrupt` when it was interrupted.
    """
    from dreamfleet.launch.launcher import run_fleet

    factories = Factories(
        make_agent, make_replay_train, make_replay_eval, make_env_train, make_env_eval, make_stream, make_logger
    )
    _raise_unless_done(run_fleet(factories, FleetArgs.coerce(args)))


def create_keys(logdir: str | PathLike[str]) -> dict[str, str]:
    """Create the keys that the roles of a run need for tcp addresses; existing ones are kept.

    `combined` does so itself. Call this before the first role run by hand starts, unless all addresses are local.

    Args:
        logdir: The run folder; the keys are in its folder `keys`.

    Returns:
        The public keys by name: `args.public_keys` of a role on another machine, which has the file of its own pair
        alone, such as `worker.json` of an env worker.
    """
    return security.create_keys(Path(logdir) / "keys")


def parallel_envs(make_env_train: Factory[Env | EnvBatch], make_env_eval: Factory[Env | EnvBatch], args: Any) -> None:
    """Step all environments of `args.envs` and `args.eval_envs` in worker processes of this machine until the run
    ends.
    """
    from dreamfleet.launch.launcher import run_envs

    elsewhere = FleetArgs.coerce(args).model_copy(update={"remote_envs": True})  # than where the agent's supervisor is
    _raise_unless_done(run_envs(unpack(make_env_train), unpack(make_env_eval), elsewhere))


def _raise_unless_done(code: int) -> None:
    if code == EXIT_INTERRUPTED:
        raise KeyboardInterrupt
    if code != EXIT_DONE:
        raise RoleFailed("a role of the fleet failed: its error was printed, and its log is in the run folder's logs/")
