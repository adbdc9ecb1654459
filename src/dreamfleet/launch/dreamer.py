"""Build the Dreamer agent of a configuration, in the agent's process."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path

import ml_dtypes
import numpy as np

from dreamfleet.agent.checks import check_spaces
from dreamfleet.config.agent import hyperparameters
from dreamfleet.config.args import FleetArgs
from dreamfleet.config.schema import Config, JaxGroup
from dreamfleet.core.errors import ConfigError, EnvError
from dreamfleet.core.interfaces import Agent
from dreamfleet.core.spaces import Space
from dreamfleet.model.spaces import image_keys, map_size
from dreamfleet.transport.batching import bucket_sizes

MIN_SLOTS = 64


def make_dreamer(
    config: Config, obs_space: Mapping[str, Space], act_space: Mapping[str, Space], run_dir: Path | None
) -> Agent:
    set_environment(config.jax)
    from dreamfleet.agent.device.learner_client import open_second_client

    if acts_beside_updates(config.jax):
        open_second_client()
    from dreamfleet.agent.device.placement import DeviceOptions
    from dreamfleet.agent.dreamer import ComputeOptions, DreamerAgent, DreamerShape

    group = config.jax
    compute = ComputeOptions(
        dtype=group.compute_dtype,
        rng=group.rng,
        unroll_observe=group.unroll_observe,
        unroll_imagine=group.unroll_imagine,
        accumulate=group.accumulate,
        priorities=config.replay.fracs.priority > 0,
        cache=group.cache,
        best_eval_action=config.agent.best_eval_action,
        devices=DeviceOptions(group.train_devices, group.policy_devices, group.fsdp, group.concurrent),
    )
    shape = DreamerShape(
        batch_size=config.batch_size,
        batch_length=config.batch_length,
        report_length=config.report_length if config.agent.report else 0,
        replay_context=config.replay_context,
        policy_rows=_policy_rows(config),
        slots=MIN_SLOTS + 4 * (config.run.envs + config.run.eval_envs),
    )
    try:
        check_dreamer(config, obs_space, act_space)
        options = hyperparameters(config.agent)
        return DreamerAgent(obs_space, act_space, options, shape, compute, config.seed, run_dir)
    except EnvError as error:  # about the spaces of the user's environment
        raise ConfigError(f"environment {config.env.name!r} does not suit agent=dreamer: {error}") from error


def _policy_rows(config: Config) -> tuple[int, ...]:
    """Return the policy batch sizes. In lock step, all environments of a kind form one batch."""
    run = config.run
    if run.script == "single":
        return tuple(sorted({run.envs, run.eval_envs} - {0}))
    return tuple(bucket_sizes(FleetArgs.from_config(config, "").actor_rows))


def check_dreamer(config: Config, obs_space: Mapping[str, Space], act_space: Mapping[str, Space]) -> None:
    """Raise an error if the agent does not support the spaces with this configuration."""
    seen, _ = check_spaces(obs_space, act_space)
    if not image_keys(seen):
        return
    for coder in (config.agent.enc, config.agent.dec):
        map_size(seen, len(coder.mults))
    deter, dec = config.agent.dyn.deter, config.agent.dec
    channels = dec.depth * dec.mults[-1]
    if deter % dec.bspace or channels % dec.bspace:
        raise ConfigError(
            f"agent.dec.bspace={dec.bspace} must divide agent.dyn.deter={deter} and the {channels} channels of "
            f"agent.dec.depth times the last of agent.dec.mults: set agent.dec.bspace={math.gcd(deter, channels)}"
        )


def acts_beside_updates(group: JaxGroup) -> bool:
    """Return whether to act during updates. Several devices need the memory of a second client for training."""
    return group.concurrent and len(group.train_devices) == 1 and group.train_devices == group.policy_devices


def set_environment(group: JaxGroup) -> None:
    """Set the environment variables that JAX reads on import."""
    if group.platform != "auto":
        os.environ["JAX_PLATFORMS"] = group.platform
    if not group.prealloc:
        os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    if group.mock_devices:
        flags = os.environ.get("XLA_FLAGS", "")
        os.environ["XLA_FLAGS"] = f"{flags} --xla_force_host_platform_device_count={group.mock_devices}".strip()


def latent_spaces(config: Config) -> dict[str, Space]:
    """Return the spaces of the latents that the agent stores with every step in replay."""
    if config.agent.name != "dreamer":
        return {}
    dyn = config.agent.dyn
    return {"dyn/deter": Space(ml_dtypes.bfloat16, (dyn.deter,)), "dyn/stoch": Space(np.uint8, (dyn.stoch,))}


def latent_bytes(config: Config) -> int:
    return sum(math.prod(space.shape) * space.dtype.itemsize for space in latent_spaces(config).values())
