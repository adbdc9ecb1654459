"""Find the bottleneck of a fleet from the time use of each stage.

The train ratio couples collecting and training: replay's limiter blocks the side that is ahead. The limiter therefore
shows which side is slower. Within that side, the bottleneck is the stage with the least idle time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dreamfleet.commands.bench.measurements import ENVIRONMENTS, LEARNER, LOGGER, POLICY, REPLAY, Measurements
from dreamfleet.config.args import FleetArgs
from dreamfleet.launch.worker_size import envs_per_worker

COLLECTING, TRAINING, BOTH = "collecting", "training", "both"
HELD = 0.05  # the share of the time from which on the limiter is taken to hold a side back
CORES_FULL = 0.9
CLEAR = 0.5  # a stage that is busy for less of the time is not all that bounds the speed
UNEVEN, SHARED = 10.0, 0.3  # p99 over p50 of policy calls, and a learner as busy, that tell of a shared device


@dataclass(frozen=True)
class Bottleneck:
    side: str  # what the stage bounds
    stage: str
    reason: str
    change: str


def decide(measurements: Measurements, args: FleetArgs, cores: float) -> list[Bottleneck]:
    """The binding stage; without a train ratio one for each side, since neither waits for the other.

    `cores` are those that the fleet could have used.
    """
    if args.train_ratio <= 0:
        return [_bottleneck(measurements, args, cores, side) for side in (COLLECTING, TRAINING)]
    return [_bottleneck(measurements, args, cores, bounding_side(measurements))]


def bounding_side(measurements: Measurements) -> str:
    held = {COLLECTING: measurements.samples_held, TRAINING: measurements.inserts_held}
    side = max(held, key=lambda name: held[name])
    return side if held[side] >= HELD else BOTH


def binding_stage(measurements: Measurements, side: str) -> str:
    """Of the stages on this side, the one that was busy for most of the time."""
    stages = measurements.stages
    inserting, *others = (stages[REPLAY].parts[name] for name in ("inserting", "sampling", "updating"))
    collecting = {
        ENVIRONMENTS: stages[ENVIRONMENTS].busy,
        POLICY: stages[POLICY].busy,
        REPLAY: inserting,
        LOGGER: stages[LOGGER].busy,
    }
    training = {LEARNER: stages[LEARNER].busy, REPLAY: max(others)}
    if side == COLLECTING:
        busy = collecting
    elif side == TRAINING:
        busy = training
    else:
        busy = {**collecting, **training, REPLAY: stages[REPLAY].busy}
    return max(busy, key=lambda name: busy[name])


def _bottleneck(measurements: Measurements, args: FleetArgs, cores: float, side: str) -> Bottleneck:
    stage = binding_stage(measurements, side)
    reason, change = WORDS[stage](measurements, args)
    if measurements.stages[stage].busy < CLEAR:
        reason += "; no stage is busy for half of it, the rest passes on the way between them"
        more = "choose larger batches" if side == TRAINING else "raise run.envs, so that more is on the way at once"
        change = f"{more}; or {change}"
    if stage != LEARNER and measurements.cores_used >= CORES_FULL * cores:
        change = f"{change}. All cores are in use: more processes alone will not help"
    return Bottleneck(side, stage, reason, change)


def _environments(measurements: Measurements, args: FleetArgs) -> tuple[str, str]:
    stage = measurements.stages[ENVIRONMENTS]
    reason = (
        f"a step takes {measurements.step_ms:.3g} ms; workers step for {stage.parts['stepping']:.0%} of the time and "
        f"wait for actions for {stage.waits['actions']:.0%}"
    )
    size = envs_per_worker(args)
    if size > 1:
        change = (
            f"set run.envs_per_worker below {size}, so that more processes step at once, raise run.envs, or use a "
            "faster environment"
        )
    else:
        change = "raise run.envs, so that more of them step at once, or use a faster environment"
    return reason, change


def _policy(measurements: Measurements, args: FleetArgs) -> tuple[str, str]:
    stage = measurements.stages[POLICY]
    reason = (
        f"the actor is busy for {stage.busy:.0%} of the time, with {measurements.rows_per_call:.1f} environments a call"
    )
    change = "choose a smaller agent.size, or give acting a device of its own with jax.policy_devices"
    if waits_for_updates(measurements):
        reason += ", of which some wait for an update that the device is at"
        change = f"lower run.train_ratio (now {args.train_ratio:g}), {change}"
    if measurements.rows_per_call < 0.9 * args.actor_rows:
        change = f"raise run.envs, as a call takes up to {args.actor_rows} environments, {change}"
    else:
        change = f"raise run.actor_batch (now {args.actor_rows}) for fewer and larger calls, {change}"
    return reason, change


def waits_for_updates(measurements: Measurements) -> bool:
    """Acting and training share a device: a call that comes during an update takes as long as what is left of it."""
    calls = measurements.policy_ms
    uneven = calls.p50 is not None and calls.p99 is not None and calls.p99 > UNEVEN * calls.p50
    return uneven and measurements.stages[LEARNER].busy > SHARED


def _learner(measurements: Measurements, args: FleetArgs) -> tuple[str, str]:
    stage = measurements.stages[LEARNER]
    reason = f"the learner is busy for {stage.busy:.0%} of the time; replay holds steps back until it has trained"
    if args.train_ratio <= 0:
        return f"the learner is busy for {stage.busy:.0%} of the time", "choose a smaller agent.size or a faster device"
    return reason, (
        f"choose a smaller agent.size, a run.train_ratio below {args.train_ratio:g} (fewer updates per step), or a "
        "faster device"
    )


def _replay(measurements: Measurements, args: FleetArgs) -> tuple[str, str]:
    parts = measurements.stages[REPLAY].parts
    part = max(parts, key=lambda name: parts[name])
    reason = f"its {part} is busy for {parts[part]:.0%} of the time, and the others wait for it"
    changes = {
        "inserting": "raise run.actor_batch, so that steps come in larger batches",
        "sampling": "choose a smaller batch_size or batch_length, or draw uniformly (replay.fracs)",
        "updating": "choose a smaller batch_size or batch_length",
    }
    return reason, f"{changes[part]}; or make observations smaller (env.size), or use a machine with faster memory"


def _logger(measurements: Measurements, args: FleetArgs) -> tuple[str, str]:
    reason = f"the logger is busy for {measurements.stages[LOGGER].busy:.0%} of the time, and the actor waits for it"
    return reason, "raise run.actor_batch, so that steps come in larger batches, and run.log_every"


WORDS: dict[str, Callable[[Measurements, FleetArgs], tuple[str, str]]] = {
    ENVIRONMENTS: _environments,
    POLICY: _policy,
    LEARNER: _learner,
    REPLAY: _replay,
    LOGGER: _logger,
}
