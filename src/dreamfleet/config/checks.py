"""Checks across keys: what each key allows by itself, but not together. Every problem is said with its way out."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dreamfleet.config.schema import Config, JaxGroup

TOLERANCE = 4  # batches by which the learner may be behind or ahead of the train ratio


def problems(config: Config) -> Iterator[str]:
    """Nothing for a configuration that can be run. The agent's own keys count only where it is Dreamer."""
    yield from _replay(config)
    if config.agent.name == "dreamer":
        yield from _devices(config.jax, config.batch_size)
        yield from _agent(config.agent, config.batch_length)
        yield from _replay_critic(config)


def notes(config: Config) -> Iterator[str]:
    """What is allowed, but may not be meant."""
    run = config.run
    here = run.envs + run.eval_envs
    if run.actor_batch > here and not run.remote_envs:
        yield (
            f"run.actor_batch={run.actor_batch} is more than the {here} environments of this run, and used only if "
            f"others join: set run.actor_batch={here} or less to start sooner"
        )


def first_update(config: Config) -> int:
    """Collected steps after which the rate limiter lets the first batch through.

    It needs steps enough for a batch, and counts up from minus that many windows by `train_ratio / batch_length` with
    every step from then on, until the learner is behind by less than the tolerance.
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
            f"replay.size={config.replay.size} is less than one batch of {config.batch_size} x {config.sample_length} "
            f"steps: set replay.size={needed} or more, or a smaller batch_size or batch_length"
        )


def budget_problems(config: Config) -> Iterator[str]:
    """For a run that begins: one that goes on has its updates behind it."""
    if config.agent.name != "dreamer":
        return
    run, first = config.run, first_update(config)
    batch = f"{config.batch_size} x {config.batch_length} steps"
    if run.steps < config.batch_size * (config.consec_train * config.batch_length + config.replay_context):
        yield (
            f"run.steps={run.steps} collects less than one batch of {batch}, so nothing would be learnt: set "
            f"run.steps={first} or more, or a smaller batch_size or batch_length"
        )
    elif run.steps < first:
        yield (
            f"run.steps={run.steps} ends before the first update, which run.train_ratio={run.train_ratio:g} and "
            f"batches of {batch} allow at step {first}: set a larger run.steps or run.train_ratio, or smaller batches"
        )


def _devices(jax: JaxGroup, batch_size: int) -> Iterator[str]:
    for key, devices in (("train_devices", jax.train_devices), ("policy_devices", jax.policy_devices)):
        if not devices:
            yield f"jax.{key} is empty: name at least one device, such as jax.{key}=[0]"
        elif min(devices) < 0 or len(set(devices)) < len(devices):
            yield f"jax.{key}={list(devices)} must name each device once, from 0 on, such as jax.{key}=[0]"
        elif jax.mock_devices and max(devices) >= jax.mock_devices:
            yield (
                f"jax.{key}={list(devices)}: there is no device {max(devices)} among jax.mock_devices="
                f"{jax.mock_devices}: set jax.mock_devices={max(devices) + 1} or name others"
            )
    if len(jax.policy_devices) > 1:
        yield f"jax.policy_devices={list(jax.policy_devices)}: acting takes one device, name one"
    for count, what in (
        (len(jax.train_devices) or 1, "over the {} devices of jax.train_devices"),
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
            f"{_multiple(dyn.deter, dyn.blocks)} or other blocks"
        )
    for key, bins in (("rewhead", agent.rewhead.bins), ("value", agent.value.bins)):
        if bins % 2 == 0:
            yield f"agent.{key}.bins={bins} have no middle: set an odd number, such as {bins + 1}"
    for key, mults in (("enc", agent.enc.mults), ("dec", agent.dec.mults)):
        if not mults or min(mults) < 1:
            yield f"agent.{key}.mults={list(mults)} must be numbers from 1 on, one per layer, such as [2, 3, 4, 4]"
    if agent.policy.minstd > agent.policy.maxstd:
        yield f"agent.policy.minstd={agent.policy.minstd:g} is above agent.policy.maxstd={agent.policy.maxstd:g}: swap"
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
            f"agent.imag_last={agent.imag_last} is more than the batch_length={batch_length} steps of a sequence: "
            f"set agent.imag_last={batch_length} or less"
        )


def _replay_critic(config: Config) -> Iterator[str]:
    """It learns from each step and the one after it."""
    if not config.agent.repval_loss:
        return
    for key, steps in (
        ("agent.imag_last", config.agent.imag_last),
        ("batch_length", config.batch_length),
        ("report_length", config.report_length),
    ):
        if steps == 1:
            yield f"{key}=1 leaves the critic no step after another: set {key}=2 or more, or agent.repval_loss=false"


def _multiple(number: int, of: int) -> int:
    return max(of, number - number % of)
