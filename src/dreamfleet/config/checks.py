"""Checks that involve several keys. Every message names the fix."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dreamfleet.config.schema import Config, JaxGroup

TOLERANCE = 4  # batches that the learner may lag or lead the train ratio by


def problems(config: Config) -> Iterator[str]:
    """Yield the problems of a configuration. The options of Dreamer are only checked if the agent is Dreamer."""
    yield from _replay(config)
    if config.agent.name == "dreamer":
        yield from _devices(config.jax, config.batch_size)
        yield from _agent(config.agent, config.batch_length)
        yield from _replay_critic(config)


def notes(config: Config) -> Iterator[str]:
    """Yield warnings about values that are valid but probably not intended."""
    run = config.run
    here = run.envs + run.eval_envs
    if run.actor_batch > here and not run.remote_envs:
        yield (
            f"run.actor_batch={run.actor_batch} exceeds the {here} environments of this run, which only makes sense if "
            f"others join: set run.actor_batch={here} or less for a faster start"
        )


def first_update(config: Config) -> int:
    """Return the number of collected steps before the rate limiter releases the first batch.

    Replay first needs enough steps for one batch. From then on, each step adds `train_ratio / batch_length` windows to
    a balance. It starts at minus the number of these first steps. A batch is released once it is within the tolerance.
    """
    per_sample = config.consec_train * config.batch_length
    enough = config.batch_size * (per_sample + config.replay_context)
    if config.run.train_ratio <= 0:
        return enough
    owed = enough - TOLERANCE * config.batch_size
    return enough + max(0, math.floor(owed * per_sample / config.run.train_ratio))


def _replay(config: Config) -> Iterator[str]:
    needed = config.batch_size * config.sample_length
    if config.replay.size < needed:
        yield (
            f"replay.size={config.replay.size} is smaller than one batch of {config.batch_size} x "
            f"{config.sample_length} steps: set replay.size={needed} or more, or a smaller batch_size or batch_length"
        )


def budget_problems(config: Config) -> Iterator[str]:
    """Yield problems with the number of steps of a new run. A resumed run already had its first update."""
    if config.agent.name != "dreamer":
        return
    run, first = config.run, first_update(config)
    batch = f"{config.batch_size} x {config.batch_length} steps"
    if run.steps < config.batch_size * (config.consec_train * config.batch_length + config.replay_context):
        yield (
            f"run.steps={run.steps} is less than one batch of {batch}, so nothing would be learned: set "
            f"run.steps={first} or more, or a smaller batch_size or batch_length"
        )
    elif run.steps < first:
        yield (
            f"run.steps={run.steps} ends the run before the first update, which run.train_ratio={run.train_ratio:g} "
            f"and batches of {batch} allow at step {first}: increase run.steps or run.train_ratio, or use smaller "
            "batches"
        )


def _devices(jax: JaxGroup, batch_size: int) -> Iterator[str]:
    for key, devices in (("train_devices", jax.train_devices), ("policy_devices", jax.policy_devices)):
        if not devices:
            yield f"jax.{key} is empty: name at least one device, such as jax.{key}=[0]"
        elif min(devices) < 0 or len(set(devices)) < len(devices):
            yield f"jax.{key}={list(devices)} must list each device once, starting at 0: set it to a list such as [0]"
        elif jax.mock_devices and max(devices) >= jax.mock_devices:
            yield (
                f"jax.{key}={list(devices)}: device {max(devices)} does not exist with jax.mock_devices="
                f"{jax.mock_devices}: set jax.mock_devices={max(devices) + 1} or choose other devices"
            )
    if len(jax.policy_devices) > 1:
        yield f"jax.policy_devices={list(jax.policy_devices)}: only one policy device is supported: choose one"
    for count, what in (
        (len(jax.train_devices) or 1, "across the {} devices of jax.train_devices"),
        (jax.accumulate, "into jax.accumulate={} equal parts"),
    ):
        if batch_size % count:
            near = max(count, batch_size - batch_size % count)
            yield (
                f"batch_size={batch_size} cannot be split {what.format(count)}: set batch_size={near} or another "
                f"multiple of {count}"
            )


def _agent(agent: Any, batch_length: int) -> Iterator[str]:
    dyn, opt = agent.dyn, agent.opt
    if dyn.deter % dyn.blocks:
        yield (
            f"agent.dyn.blocks={dyn.blocks} does not divide agent.dyn.deter={dyn.deter}: set agent.dyn.deter="
            f"{_multiple(dyn.deter, dyn.blocks)} or change agent.dyn.blocks"
        )
    for key, bins in (("rewhead", agent.rewhead.bins), ("value", agent.value.bins)):
        if bins % 2 == 0:
            yield f"agent.{key}.bins={bins} must be odd: set an odd number, such as {bins + 1}"
    for key, mults in (("enc", agent.enc.mults), ("dec", agent.dec.mults)):
        if not mults or min(mults) < 1:
            yield f"agent.{key}.mults={list(mults)} must be positive numbers, one per layer, such as [2, 3, 4, 4]"
    if agent.policy.minstd > agent.policy.maxstd:
        yield (
            f"agent.policy.minstd={agent.policy.minstd:g} is above "
            f"agent.policy.maxstd={agent.policy.maxstd:g}: swap them"
        )
    for key in ("retnorm", "valnorm", "advnorm"):
        norm = getattr(agent, key)
        if norm.perclo >= norm.perchi:
            yield f"agent.{key}.perclo={norm.perclo:g} must be below agent.{key}.perchi={norm.perchi:g}: lower it"
    if opt.schedule != "const" and opt.anneal <= opt.warmup:
        yield (
            f"agent.opt.schedule={opt.schedule} ends at update agent.opt.anneal={opt.anneal}, not after "
            f"agent.opt.warmup={opt.warmup}: set agent.opt.anneal to the number of updates"
        )
    if agent.imag_last > batch_length:
        yield (
            f"agent.imag_last={agent.imag_last} exceeds the sequence length of batch_length={batch_length} steps: "
            f"set agent.imag_last={batch_length} or less"
        )


def _replay_critic(config: Config) -> Iterator[str]:
    """Check that sequences have at least two steps. The replay critic learns from pairs of consecutive steps."""
    if not config.agent.repval_loss:
        return
    for key, steps in (
        ("agent.imag_last", config.agent.imag_last),
        ("batch_length", config.batch_length),
        ("report_length", config.report_length),
    ):
        if steps == 1:
            yield (
                f"{key}=1 is too short for the replay critic, which needs two steps: set {key}=2 or more, "
                "or agent.repval_loss=false"
            )


def _multiple(number: int, of: int) -> int:
    return max(of, number - number % of)
