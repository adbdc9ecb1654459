"""What the process of a role runs: one function for each role, with its factories and arguments.

`dreamfleet.parallel` has them for scripts, and the launcher puts them into role specs. Loading this module loads no
role: each function imports its own.
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


def run_single(factories: Factories, args: FleetArgs) -> None:
    from dreamfleet.envs.render.backend import prepare_drawing
    from dreamfleet.roles.lockstep.role import SingleParts, SingleRole

    prepare_drawing()
    random.seed(args.seed)  # for environments that draw from a generator of the whole process
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
    """Accepts a callable, or one that the caller has cloudpickled itself. Never used on anything from a socket or a
    file.
    """
    if isinstance(factory, bytes):
        loaded: Any = pickle.loads(factory)
        return loaded  # type: ignore[no-any-return]
    return factory
