"""Policies of saved runs: to act with in the same process, or to export."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dreamfleet.config.agent import hyperparameters
from dreamfleet.config.schema import Config
from dreamfleet.config.syntax import dump_yaml
from dreamfleet.core.errors import BadInput, CheckpointError, ConfigError
from dreamfleet.core.interfaces import Agent
from dreamfleet.core.spaces import EPISODE_FLAGS, Space, observed, without_log
from dreamfleet.launch.agents import find_agent
from dreamfleet.launch.factories import env_options, make_unadapted
from dreamfleet.runs.saved_run import SavedAgent, read_agent, read_config

if TYPE_CHECKING:
    from dreamfleet.agent.export.policy import Raw, SavedActor
    from dreamfleet.agent.export.policy_file import Policy


def load_policy(path: Path, deterministic: bool = False) -> Policy:
    """Of a run folder, or of a file that `export_policy` wrote."""
    if path.is_dir():
        config = read_config(path)
        saved = None if needs_no_agent(config) else read_agent(path)
        return make_policy(config, saved, *_look_at_env(config), deterministic=deterministic)
    if not path.exists():
        raise BadInput(f"{path} is neither a run folder nor an exported policy: there is no such file")
    from dreamfleet.agent.export import policy_file

    try:
        return policy_file.load(path, deterministic)
    except policy_file.PolicyError as error:
        raise BadInput(str(error)) from error


def run_export(run: Path, path: Path) -> int:
    """In a process that does nothing else: on the CPU, since the run may want its accelerator to itself."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    return export_policy(run, path)


def export_policy(run: Path, path: Path) -> int:
    """Returns the step of the run at which the exported policy was saved."""
    config = read_config(run)
    if config.agent.name != "dreamer":
        raise ConfigError(f"agent={config.agent.name} cannot be exported: only agent=dreamer is a program of JAX")
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise BadInput(f"cannot write {path}: name a file in a folder that exists, such as policy.zip")
    path = path.absolute()  # the environment may take this process to another folder
    saved = read_agent(run)
    obs_space, act_space, made = _look_at_env(config)
    actor = saved_actor(config, saved, obs_space, act_space)
    actor.export(path, describe_raw(config, made), dump_yaml(config.model_dump()), saved.step)
    return saved.step


def needs_no_agent(config: Config) -> bool:
    return config.agent.name == "random"


def make_policy(
    config: Config,
    saved: SavedAgent | None,
    obs_space: Mapping[str, Space],
    act_space: Mapping[str, Space],
    made: Any = None,
    deterministic: bool = False,
) -> Policy:
    """`made` is the environment as its author wrote it, where the policy is to take its observations as they are."""
    raw = describe_raw(config, made)
    if config.agent.name == "dreamer":
        assert saved is not None
        return saved_actor(config, saved, obs_space, act_space).policy(raw, deterministic)
    if deterministic:
        raise ConfigError(f"agent={config.agent.name} decides itself how it acts: leave deterministic out")
    return _policy_of_agent(_make_other_agent(config, saved, obs_space, act_space), config, obs_space, act_space, raw)


def saved_actor(
    config: Config, saved: SavedAgent, obs_space: Mapping[str, Space], act_space: Mapping[str, Space]
) -> SavedActor:
    from dreamfleet.agent.export.policy import SavedActor

    options, group = hyperparameters(config.agent), config.jax
    return SavedActor(obs_space, act_space, options, saved.arrays, group.compute_dtype, group.rng, config.seed)


def describe_raw(config: Config, made: Any) -> Raw:
    """How a Gymnasium environment shows observations and takes actions; nothing of one of our own interface."""
    from dreamfleet.agent.export.policy import Raw

    observation = getattr(made, "single_observation_space", None) or getattr(made, "observation_space", None)
    action = getattr(made, "single_action_space", None) or getattr(made, "action_space", None)
    if observation is None or action is None:
        return Raw()
    from dreamfleet.commands.evaluate.gym_spaces import describe_action, describe_observation

    observed = describe_observation(observation, config.env.name, env_options(config))
    return Raw(*observed, describe_action(action, config.env.name), config.env.clip)


def _look_at_env(config: Config) -> tuple[dict[str, Space], dict[str, Space], Any]:
    """The spaces of an environment made for this moment only, and the environment as its author wrote it, closed."""
    made = make_unadapted(config, "eval", 0)
    env = made.adapted()
    obs_space, act_space = dict(env.obs_space), dict(env.act_space)
    with contextlib.suppress(Exception):
        env.close()
    return obs_space, act_space, made.made


def _make_other_agent(
    config: Config, saved: SavedAgent | None, obs_space: Mapping[str, Space], act_space: Mapping[str, Space]
) -> Agent:
    seen = without_log(obs_space)
    if needs_no_agent(config):
        from dreamfleet.agent.random_agent import RandomAgent

        return RandomAgent(act_space, seed=config.seed)
    agent = find_agent(config.agent.name)(seen, dict(act_space), seed=config.seed)
    assert saved is not None
    try:
        agent.load(saved.arrays)
    except Exception as error:
        raise CheckpointError(f"agent={config.agent.name} cannot load what it saved: {error!r}") from error
    return agent


def _policy_of_agent(
    agent: Agent, config: Config, obs_space: Mapping[str, Space], act_space: Mapping[str, Space], raw: Raw
) -> Policy:
    """Random numbers are the agent's own business."""
    from dreamfleet.agent.export.policy_file import Policy

    seen = observed(obs_space)
    about = {
        "obs_space": {key: space.to_json() for key, space in seen.items()},
        "act_space": {key: space.to_json() for key, space in act_space.items() if key != "reset"},
        "observation": raw.observation,
        "layouts": raw.layouts or {},
        "encodings": raw.encodings or {},
        "clip": raw.clip,
        "action": raw.action,
        "seed": config.seed,
        "calls": 0,
        "key_words": 1,
    }

    def step(carry: Any, obs: Mapping[str, np.ndarray], seeds: np.ndarray) -> tuple[Any, Mapping[str, Any]]:
        rows = len(obs["is_first"])
        flags = {"reward": np.zeros(rows, np.float32), **{key: np.zeros(rows, bool) for key in EPISODE_FLAGS[1:]}}
        carry, actions, _ = agent.policy(carry, {**flags, **obs}, "eval")
        return carry, actions

    return Policy(about, agent.init_policy, step)
