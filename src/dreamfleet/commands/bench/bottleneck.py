"""Names the stage that bounds a fleet's speed, from what every stage did with its time.

The train ratio ties collecting and training together: whichever is ahead is held back by replay's limiter. So the
limiter tells which side bounds the other one, and within a side it is the stage that has the least time left.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dreamfleet.commands.bench.measurements import ENVIRONMENTS, LEARNER, LOGGER, POLICY, REPLAY, Figures
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


def decide(figures: Figures, args: FleetArgs, cores: float) -> list[Bottleneck]:
    """The binding stage; without a train ratio one for each side, since neither waits for the other.

    `cores` are those that the fleet could have used.
    """
    if args.train_ratio <= 0:
        return [_verdict(figures, args, cores, side) for side in (COLLECTING, TRAINING)]
    return [_verdict(figures, args, cores, bounding_side(figures))]


def bounding_side(figures: Figures) -> str:
    held = {COLLECTING: figures.samples_held, TRAINING: figures.inserts_held}
    side = max(held, key=lambda name: held[name])
    return side if held[side] >= HELD else BOTH


def binding_stage(figures: Figures, side: str) -> str:
    """Of the stages on this side, the one that was busy for most of the time."""
    stages = figures.stages
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


def _verdict(figures: Figures, args: FleetArgs, cores: float, side: str) -> Bottleneck:
    stage = binding_stage(figures, side)
    reason, change = WORDS[stage](figures, args)
    if figures.stages[stage].busy < CLEAR:
        reason += "; no stage is busy for half of it, the rest passes on the way between them"
        more = "choose larger batches" if side == TRAINING else "raise run.envs, so that more is on the way at once"
        change = f"{more}; or {change}"
    if stage != LEARNER and figures.cores_used >= CORES_FULL * cores:
        change = f"{change}. All cores are in use: more processes alone will not help"
    return Bottleneck(side, stage, reason, change)


def _environments(figures: Figures, args: FleetArgs) -> tuple[str, str]:
    stage = figures.stages[ENVIRONMENTS]
    reason = (
        f"a step takes {figures.step_ms:.3g} ms; workers step for {stage.parts['stepping']:.0%} of the time and wait "
        f"for actions for {stage.waits['actions']:.0%}"
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


def _policy(figures: Figures, args: FleetArgs) -> tuple[str, str]:
    stage = figures.stages[POLICY]
    reason = f"the actor is busy for {stage.busy:.0%} of the time, with {figures.rows_per_call:.1f} environments a call"
    change = "choose a smaller agent.size, or give acting a device of its own with jax.policy_devices"
    if waits_for_updates(figures):
        reason += ", of which some wait for an update that the device is at"
        change = f"lower run.train_ratio (now {args.train_ratio:g}), {change}"
    if figures.rows_per_call < 0.9 * args.actor_rows:
        change = f"raise run.envs, as a call takes up to {args.actor_rows} environments, {change}"
    else:
        change = f"raise run.actor_batch (now {args.actor_rows}) for fewer and larger calls, {change}"
    return reason, change


def waits_for_updates(figures: Figures) -> bool:
    """Acting and training share a device: a call that comes during an update takes as long as what is left of it."""
    calls = figures.policy_ms
    uneven = calls.p50 is not None and calls.p99 is not None and calls.p99 > UNEVEN * calls.p50
    return uneven and figures.stages[LEARNER].busy > SHARED


def _learner(figures: Figures, args: FleetArgs) -> tuple[str, str]:
    stage = figures.stages[LEARNER]
    reason = f"the learner is busy for {stage.busy:.0%} of the time; replay holds steps back until it has trained"
    if args.train_ratio <= 0:
        return f"the learner is busy for {stage.busy:.0%} of the time", "choose a smaller agent.size or a faster device"
    return reason, (
        f"choose a smaller agent.size, a run.train_ratio below {args.train_ratio:g} (fewer updates per step), or a "
        "faster device"
    )


def _replay(figures: Figures, args: FleetArgs) -> tuple[str, str]:
    parts = figures.stages[REPLAY].parts
    part = max(parts, key=lambda name: parts[name])
    reason = f"its {part} is busy for {parts[part]:.0%} of the time, and the others wait for it"
    changes = {
        "inserting": "raise run.actor_batch, so that steps come in larger batches",
        "sampling": "choose a smaller batch_size or batch_length, or draw uniformly (replay.fracs)",
        "updating": "choose a smaller batch_size or batch_length",
    }
    return reason, f"{changes[part]}; or make observations smaller (env.size), or use a machine with faster memory"


def _logger(figures: Figures, args: FleetArgs) -> tuple[str, str]:
    reason = f"the logger is busy for {figures.stages[LOGGER].busy:.0%} of the time, and the actor waits for it"
    return reason, "raise run.actor_batch, so that steps come in larger batches, and run.log_every"


WORDS: dict[str, Callable[[Figures, FleetArgs], tuple[str, str]]] = {
    ENVIRONMENTS: _environments,
    POLICY: _policy,
    LEARNER: _learner,
    REPLAY: _replay,
    LOGGER: _logger,
}
