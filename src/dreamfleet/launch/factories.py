"""Factories of a fleet, made from a configuration."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dreamfleet.config.schema import Config
from dreamfleet.core.context import current_context
from dreamfleet.core.factories import Factories
from dreamfleet.core.interfaces import Agent, Arrays, Env, EnvBatch, HasRowSpace, Logger, Replay
from dreamfleet.core.spaces import without_log
from dreamfleet.launch.agents import BUILT_IN_AGENTS, find_agent
from dreamfleet.launch.replay_options import replay_options

if TYPE_CHECKING:
    from dreamfleet.envs.options import EnvOptions
    from dreamfleet.envs.registry import Made


def make_factories(config: Config, run_dir: Path) -> Factories:
    return Factories(
        make_agent=partial(make_agent, config, run_dir),
        make_replay_train=partial(make_replay, config, run_dir, "train"),
        make_replay_eval=partial(make_replay, config, run_dir, "eval"),
        make_env_train=partial(make_env, config, "train"),
        make_env_eval=partial(make_env, config, "eval"),
        make_stream=partial(make_stream, config),
        make_logger=partial(make_logger, config, run_dir),
    )


def check_names(config: Config) -> None:
    """Check the names of the agent and environment before any process starts."""
    from dreamfleet.envs.registry import find_env

    find_env(config.env.name)
    if config.agent.name not in BUILT_IN_AGENTS:
        find_agent(config.agent.name)


def make_env(
    config: Config,
    mode: str,
    index: int,
    room: int = 1,
    restart: int = 0,
    life: int = 0,
    notes: list[str] | None = None,
) -> Env | EnvBatch:
    from dreamfleet.envs.construction_error import construction

    with construction(f"environment {config.env.name!r}"):
        return make_unadapted(config, mode, index, room, restart, life).adapted(notes)


def make_unadapted(config: Config, mode: str, index: int, room: int = 1, restart: int = 0, life: int = 0) -> Made:
    """Create the environment without adapters. Raise `EnvFailed` if its constructor fails."""
    from dreamfleet.envs import registry
    from dreamfleet.envs.construction_error import construction
    from dreamfleet.envs.render.backend import prepare_drawing

    prepare_drawing()
    env, options = config.env, env_options(config)
    with construction(f"environment {env.name!r}"):
        return registry.make_unadapted(
            env.name, index, config.seed, env.kwargs, mode, options=options, room=room, restart=restart, life=life
        )


def env_options(config: Config) -> EnvOptions:
    """Return the keys of `env` that apply to every environment."""
    from dreamfleet.envs.options import EnvOptions

    return EnvOptions(**{option.name: getattr(config.env, option.name) for option in fields(EnvOptions)})


def make_agent(config: Config, run_dir: Path | None = None) -> Agent:
    """Create the agent. A temporary environment provides the spaces, without the keys for the logger."""
    env = make_env(config, "train", 0)
    obs_space = without_log(env.obs_space)
    act_space = dict(env.act_space)
    with contextlib.suppress(Exception):  # workers report errors of close as events; they never end a run
        env.close()
    if config.agent.name == "random":
        from dreamfleet.agent.random_agent import RandomAgent

        return RandomAgent(act_space, config.seed, obs_space)
    if config.agent.name == "dreamer":
        from dreamfleet.launch.dreamer import make_dreamer

        return make_dreamer(config, obs_space, act_space, run_dir)
    from dreamfleet.agent.checks import finite

    agent: Any = find_agent(config.agent.name)(obs_space, act_space, seed=config.seed)
    if not isinstance(agent, HasRowSpace):  # provide the row space for agents without it
        with contextlib.suppress(AttributeError):  # a class with slots: the actor uses the first rows instead
            agent.row_space = finite(obs_space)
    made: Agent = agent
    return made


def make_replay(config: Config, run_dir: Path, mode: str) -> Replay:
    from dreamfleet.replay.store import ReplayStore

    return ReplayStore(replay_options(config, run_dir, mode))


def make_stream(config: Config, replay: Replay, mode: str) -> Iterator[Arrays]:
    from dreamfleet.replay.stream import ReplayStream

    if mode == "train":
        length, consec = config.batch_length, config.consec_train
    else:
        length, consec = config.report_length, config.consec_report
    return ReplayStream(replay, mode, config.batch_size, length, consec, config.replay_context)


def make_logger(config: Config, run_dir: Path) -> Logger:
    from dreamfleet.metrics.aggregate import MetricsLogger
    from dreamfleet.metrics.sinks.catalog import make_sinks
    from dreamfleet.metrics.sinks.jsonl import JsonlSink

    warn = current_context().warn
    record = JsonlSink(run_dir / "metrics.jsonl", warn)
    isolated = make_sinks(config.logger.sinks, run_dir, config.model_dump(), config.logger.keep_videos, warn)
    return MetricsLogger([record], isolated=isolated)
