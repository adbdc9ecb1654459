"""Entry points of the roles: one function per role, which takes its factories and arguments.

`dreamfleet.parallel` exports them for scripts, and the launcher adds them to role specs. Each function imports its own
role, so importing this module is cheap.
"""

from __future__ import annotations

import pickle
import random
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from dreamfleet.config.args import FleetArgs
from dreamfleet.core.context import current_context
from dreamfleet.core.errors import ConfigError
from dreamfleet.core.factories import Factories, Factory
from dreamfleet.core.interfaces import Agent, Env, EnvBatch, Logger, Replay
from dreamfleet.core.stop import Stop
from dreamfleet.roles import manual

T = TypeVar("T")


def parallel_agent(make_agent: Factory[Agent], args: Any, *, stop: Stop | None = None) -> None:
    """Build one agent and run actor and learner as threads that share it.

    If you start it yourself, it returns once the run has reached `args.steps` or `args.duration` and the final snapshot
    is saved.

    Args:
        make_agent: Factory of the agent.
        args: Arguments of the fleet, see `FleetArgs`.
        stop: Switch that ends the role early.

    Raises:
        DreamfleetError: The actor, the learner or a role that they need has failed.
    """
    from dreamfleet.envs.render.backend import prepare_drawing
    from dreamfleet.roles.agent import run_agent

    with manual.role("agent", args, stop) as (fleet, context):
        prepare_drawing()  # the agent's factory may create an environment for its spaces
        run_agent(unpack(make_agent)(), fleet, context)


def parallel_actor(agent: Agent, barrier: threading.Barrier, args: Any, *, stop: Stop | None = None) -> None:
    """Serve actions to environments, once the learner has restored the agent.

    If you start it yourself, it ends the run at `args.steps` or `args.duration`, and returns when every environment has
    its answer. Actor and learner end together.

    Args:
        agent: The agent, shared with the learner.
        barrier: Barrier of two parties, shared with the learner. Create a new one for each run.
        args: Arguments of the fleet, see `FleetArgs`.
        stop: Switch that ends the role early.

    Raises:
        DreamfleetError: The actor or a role that it needs has failed.
    """
    from dreamfleet.roles.agent import run_actor

    with manual.role("actor", args, stop, barrier=barrier) as (fleet, context):
        run_actor(agent, barrier, fleet, context)


def parallel_learner(agent: Agent, barrier: threading.Barrier, args: Any, *, stop: Stop | None = None) -> None:
    """Train the agent on batches from replay.

    If you start it yourself, it returns when the actor has ended the run and the final snapshot is saved. Replay and
    logger end afterwards.

    Args:
        agent: The agent, shared with the actor.
        barrier: Barrier of two parties, shared with the actor. Create a new one for each run.
        args: Arguments of the fleet, see `FleetArgs`.
        stop: Switch that ends the role early.

    Raises:
        DreamfleetError: The learner or a role that it needs has failed.
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
    """Store steps and serve batches at the train ratio.

    If you start it yourself, it returns when the agent has ended.

    Args:
        make_replay_train: Factory of the training replay.
        make_replay_eval: Factory of the evaluation replay.
        make_stream: Factory of batch streams, called with a replay and the mode.
        args: Arguments of the fleet, see `FleetArgs`.
        stop: Switch that ends the role early.

    Raises:
        RunFolderError: The run folder is missing or cannot be written.
    """
    from dreamfleet.roles.replay import run_replay

    with manual.role("replay", args, stop) as (fleet, context):
        run_replay(unpack(make_replay_train), unpack(make_replay_eval), unpack(make_stream), fleet, context)


def parallel_logger(make_logger: Factory[Logger], args: Any, *, stop: Stop | None = None) -> None:
    """Collect the metrics of all roles and the statistics of episodes.

    If you start it yourself, it returns when the agent has ended.

    Args:
        make_logger: Factory of the logger.
        args: Arguments of the fleet, see `FleetArgs`.
        stop: Switch that ends the role early.

    Raises:
        RunFolderError: The run folder is missing or cannot be written.
        ConfigError: `args.goal` is set, which only `combined` supports.
    """
    from dreamfleet.roles.logger import LoggerRole

    with manual.role("logger", args, stop) as (fleet, context):
        if context.by_hand and fleet.goal is not None:
            raise ConfigError(
                f"goal={fleet.goal:g} is only supported by `combined`, not by roles that you start yourself: unset it"
            )
        LoggerRole(unpack(make_logger)(), fleet).run(context)


def parallel_env(
    make_env: Factory[Env | EnvBatch], index: int, args: Any, mode: str = "train", *, stop: Stop | None = None
) -> None:
    """Step one environment until the actor ends the run.

    Args:
        make_env: Factory of the environment, called with `index`.
        index: Index of the environment.
        args: Arguments of the fleet, see `FleetArgs`.
        mode: "train" or "eval".
        stop: Switch that ends the role early.

    Raises:
        EnvFailed: The environment failed more often than `args.env_restarts` allows.
    """
    parallel_env_group(make_env, [index], args, mode, stop=stop)


def parallel_env_group(
    make_env: Factory[Env | EnvBatch],
    indices: list[int],
    args: Any,
    mode: str = "train",
    *,
    stop: Stop | None = None,
) -> None:
    """Step several environments in the calling thread, like one env worker process.

    Args:
        make_env: Factory of environments, called with an index.
        indices: Indices of the environments.
        args: Arguments of the fleet, see `FleetArgs`.
        mode: "train" or "eval".
        stop: Switch that ends the role early.

    Raises:
        EnvFailed: An environment failed more often than `args.env_restarts` allows.
    """
    from dreamfleet.envs.render.backend import prepare_drawing
    from dreamfleet.roles.env_worker.role import make_worker

    prepare_drawing()
    with manual.role(f"env-{indices[0]}", args, stop, writes=False) as (fleet, context):
        make_worker(unpack(make_env), indices, mode, fleet).run(context)


def run_single(factories: Factories, args: FleetArgs) -> None:
    from dreamfleet.envs.render.backend import prepare_drawing
    from dreamfleet.roles.lockstep.role import SingleParts, SingleRole

    prepare_drawing()
    random.seed(args.seed)  # for environments that use the global generators
    np.random.seed(args.seed % 2**32)
    parts = SingleParts(
        agent=unpack(factories.make_agent)(),
        replay_train=unpack(factories.make_replay_train)(),
        replay_eval=unpack(factories.make_replay_eval)(),
        make_stream=unpack(factories.make_stream),
        logger=unpack(factories.make_logger)(),
        make_env_train=unpack(factories.make_env_train),
        make_env_eval=unpack(factories.make_env_eval),
    )
    SingleRole(parts, args, current_context()).run()


def unpack(factory: Factory[T]) -> Callable[..., T]:
    """Return a callable, unpickled if the caller has cloudpickled it. Never use it on data from sockets or files."""
    if isinstance(factory, bytes):
        loaded: Any = pickle.loads(factory)
        return loaded  # type: ignore[no-any-return]
    return factory
