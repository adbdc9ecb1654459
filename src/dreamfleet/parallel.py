"""The fleet's functions: `combined` starts everything, each `parallel_*` runs one role in the calling thread.

Factories are callables, or the bytes that cloudpickle made of one. `args` has the keys of the `run` group and of the
batch shape (`dreamfleet.config.args.FleetArgs`), as an object with attributes or a mapping; what is missing gets its
default.

A `parallel_*` function that a script calls itself returns when the run has ended and everything is saved. `stop` is a
`Stop` whose `set` ends the role before that. docs/parallel.md has examples.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from os import PathLike
from pathlib import Path
from typing import Any

from dreamfleet.config.args import FleetArgs
from dreamfleet.core.errors import ConfigError, RoleFailed
from dreamfleet.core.factories import Factories, Factory, unpack
from dreamfleet.core.interfaces import Agent, Arrays, Env, EnvBatch, Logger, Replay
from dreamfleet.core.stop import Stop
from dreamfleet.roles import manual
from dreamfleet.supervision.exit_codes import EXIT_DONE, EXIT_INTERRUPTED
from dreamfleet.transport import security

__all__ = [
    "MakeStream",
    "Stop",
    "combined",
    "create_keys",
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


def parallel_agent(make_agent: Factory[Agent], args: Any, *, stop: Stop | None = None) -> None:
    """Build one agent and run actor and learner as threads that share it.

    Run by hand, it returns once the run has reached `args.steps` or `args.duration` and the last snapshot is saved.
    """
    from dreamfleet.envs.render.backend import prepare_drawing
    from dreamfleet.roles.agent import run_agent

    with manual.role("agent", args, stop) as (fleet, context):
        prepare_drawing()  # the agent's factory may make an environment, for its spaces
        run_agent(unpack(make_agent)(), fleet, context)


def parallel_actor(agent: Agent, barrier: threading.Barrier, args: Any, *, stop: Stop | None = None) -> None:
    """Serve actions to environments. The barrier holds it until the learner has restored the agent.

    Run by hand, it ends the run at `args.steps` or `args.duration`, and returns when every environment has its answer.
    Actor and learner, which share the barrier, end together.
    """
    from dreamfleet.roles.agent import run_actor

    with manual.role("actor", args, stop, barrier=barrier) as (fleet, context):
        run_actor(agent, barrier, fleet, context)


def parallel_learner(agent: Agent, barrier: threading.Barrier, args: Any, *, stop: Stop | None = None) -> None:
    """Train the agent on batches from replay.

    Run by hand, it returns when the actor has ended the run and the last snapshot is saved. Replay and logger end then.
    """
    from dreamfleet.roles.agent import run_learner

    with manual.role("learner", args, stop, barrier=barrier) as (fleet, context):
        run_learner(agent, barrier, fleet, context)


def parallel_replay(
    make_replay_train: Factory[Replay],
    make_replay_eval: Factory[Replay],
    make_stream: Factory[Any],
    args: Any,
    *,
    stop: Stop | None = None,
) -> None:
    """Keep the steps and serve batches at the train ratio. Run by hand, it returns when the agent has ended."""
    from dreamfleet.roles.replay import run_replay

    with manual.role("replay", args, stop) as (fleet, context):
        run_replay(unpack(make_replay_train), unpack(make_replay_eval), unpack(make_stream), fleet, context)


def parallel_logger(make_logger: Factory[Logger], args: Any, *, stop: Stop | None = None) -> None:
    """Collect the metrics of all roles and the statistics of episodes.

    Run by hand, it returns when the agent has ended.
    """
    from dreamfleet.roles.logger import LoggerRole

    with manual.role("logger", args, stop) as (fleet, context):
        if context.by_hand and fleet.goal is not None:
            raise ConfigError(
                f"goal={fleet.goal:g} ends a run that `combined` started, not roles run by hand: unset it"
            )
        LoggerRole(unpack(make_logger)(), fleet).run(context)


def parallel_env(
    make_env: Factory[Env | EnvBatch], index: int, args: Any, mode: str = "train", *, stop: Stop | None = None
) -> None:
    """Step one environment. Run by hand, it returns when the actor has ended the run."""
    parallel_env_group(make_env, [index], args, mode, stop=stop)


def parallel_envs(make_env_train: Factory[Env | EnvBatch], make_env_eval: Factory[Env | EnvBatch], args: Any) -> None:
    """Step all environments of `args.envs` and `args.eval_envs` in worker processes of this machine until the run
    ends.
    """
    from dreamfleet.launch.launcher import run_envs

    elsewhere = FleetArgs.coerce(args).model_copy(update={"remote_envs": True})  # than where the agent's supervisor is
    _raise_unless_done(run_envs(unpack(make_env_train), unpack(make_env_eval), elsewhere))


def parallel_env_group(
    make_env: Factory[Env | EnvBatch],
    indices: list[int],
    args: Any,
    mode: str = "train",
    *,
    stop: Stop | None = None,
) -> None:
    """Step several environments in the calling thread: what one env worker process does."""
    from dreamfleet.envs.render.backend import prepare_drawing
    from dreamfleet.roles.env_worker.role import make_worker

    prepare_drawing()
    with manual.role(f"env-{indices[0]}", args, stop, writes=False) as (fleet, context):
        make_worker(unpack(make_env), indices, mode, fleet).run(context)


def _raise_unless_done(code: int) -> None:
    if code == EXIT_INTERRUPTED:
        raise KeyboardInterrupt
    if code != EXIT_DONE:
        raise RoleFailed("a role of the fleet failed: its error was printed, and its log is in the run folder's logs/")
