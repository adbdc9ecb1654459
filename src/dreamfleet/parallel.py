"""The fleet's functions: `combined` starts everything, each `parallel_*` runs one role in the calling thread.

Factories are callables, or the bytes that cloudpickle made of one. `args` has the keys of the `run` group and of the
batch shape (`dreamfleet.config.args.FleetArgs`), as an object with attributes or a mapping; what is missing gets its
default.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

from dreamfleet.config.args import FleetArgs
from dreamfleet.core.context import current_context
from dreamfleet.core.errors import RoleFailed
from dreamfleet.core.interfaces import Agent, Arrays, Env, EnvBatch, Logger, Replay
from dreamfleet.launch.exit_codes import EXIT_DONE, EXIT_INTERRUPTED
from dreamfleet.launch.factories import Factories, Factory, unpack

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

    The factories of environments are called with the number of an environment; `roles.env.make_worker` says what else
    they may take and return.

    Returns when the run reached its steps or duration. Raises `RoleFailed` when a role failed, after all others were
    stopped, and `KeyboardInterrupt` when it was interrupted.
    """
    from dreamfleet.launch.launcher import run_fleet

    factories = Factories(
        make_agent, make_replay_train, make_replay_eval, make_env_train, make_env_eval, make_stream, make_logger
    )
    _raise_unless_done(run_fleet(factories, FleetArgs.coerce(args)))


def parallel_agent(make_agent: Factory[Agent], args: Any) -> None:
    """Builds one agent and runs actor and learner as threads that share it."""
    from dreamfleet.roles.agent import run_agent

    run_agent(unpack(make_agent)(), FleetArgs.coerce(args), current_context())


def parallel_actor(agent: Agent, barrier: threading.Barrier, args: Any) -> None:
    """Serves actions to environments. The barrier holds it until the learner has restored the agent."""
    from dreamfleet.roles.agent import run_actor

    run_actor(agent, barrier, FleetArgs.coerce(args), current_context())


def parallel_learner(agent: Agent, barrier: threading.Barrier, args: Any) -> None:
    """Trains the agent on batches from replay."""
    from dreamfleet.roles.agent import run_learner

    run_learner(agent, barrier, FleetArgs.coerce(args), current_context())


def parallel_replay(
    make_replay_train: Factory[Replay],
    make_replay_eval: Factory[Replay],
    make_stream: Factory[Any],
    args: Any,
) -> None:
    """Keeps the steps and serves batches at the train ratio."""
    from dreamfleet.roles.replay import ReplayRole

    train, evaluation = unpack(make_replay_train)(), unpack(make_replay_eval)()
    ReplayRole(train, evaluation, unpack(make_stream), FleetArgs.coerce(args)).run(current_context())


def parallel_logger(make_logger: Factory[Logger], args: Any) -> None:
    """Collects the metrics of all roles and the statistics of episodes."""
    from dreamfleet.roles.logger import LoggerRole

    LoggerRole(unpack(make_logger)(), FleetArgs.coerce(args)).run(current_context())


def parallel_env(make_env: Factory[Env | EnvBatch], index: int, args: Any, mode: str = "train") -> None:
    """Steps one environment."""
    _run_envs(make_env, [index], args, mode)


def parallel_envs(make_env_train: Factory[Env | EnvBatch], make_env_eval: Factory[Env | EnvBatch], args: Any) -> None:
    """Steps all environments of `args.envs` and `args.eval_envs` in worker processes of this machine until the run
    ends.
    """
    from dreamfleet.launch.launcher import run_envs

    _raise_unless_done(run_envs(unpack(make_env_train), unpack(make_env_eval), FleetArgs.coerce(args)))


def parallel_env_group(make_env: Factory[Env | EnvBatch], indices: list[int], args: Any, mode: str = "train") -> None:
    """Steps several environments in the calling thread: what one env worker process does."""
    _run_envs(make_env, indices, args, mode)


def _run_envs(make_env: Factory[Env | EnvBatch], indices: list[int], args: Any, mode: str) -> None:
    from dreamfleet.roles.env import make_worker

    make_worker(unpack(make_env), indices, mode, FleetArgs.coerce(args)).run(current_context())


def _raise_unless_done(code: int) -> None:
    if code == EXIT_INTERRUPTED:
        raise KeyboardInterrupt
    if code != EXIT_DONE:
        raise RoleFailed("a role of the fleet failed: its error was printed, and its log is in the run folder's logs/")
