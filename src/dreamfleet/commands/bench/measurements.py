"""What happened in a fleet between two of its statuses: rates, latencies, and what each stage did with its time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from dreamfleet.config.args import FleetArgs
from dreamfleet.core.latency import percentile
from dreamfleet.core.roles import RoleKind
from dreamfleet.core.waits import Wait
from dreamfleet.runs.status import AgentStatus, Report, RunStatus, WorkerStatus
from dreamfleet.supervision.throughput import while_idle

Totals = Mapping[str, Any]

ENVIRONMENTS, POLICY, LEARNER, REPLAY, LOGGER = STAGES = ("environments", "policy", "learner", "replay", "logger")
WORK = "work"  # what a stage waits for that has nothing to do


@dataclass(frozen=True)
class Stage:
    """Shares of the time: busy, and waiting by what for. `parts` say what it is busy with, and may overlap."""

    busy: float
    waits: Mapping[str, float] = field(default_factory=dict)
    parts: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Latency:
    """Milliseconds; None where nothing was measured."""

    p50: float | None
    p99: float | None


@dataclass(frozen=True)
class Measurements:
    seconds: float
    env_steps_per_s: float
    updates_per_s: float
    policy_ms: Latency  # a call of the policy, inside the actor
    actions_ms: Latency  # how long an env worker stands still for the actions to a message
    rows_per_call: float  # environments in a policy call
    step_ms: float  # of one environment, on average
    cores_used: float
    stages: Mapping[str, Stage]
    samples_held: float  # share of the time that the train ratio held sampling back: too few steps were inserted
    inserts_held: float  # and inserting: too few batches were trained on


class Span:
    """One role, or part of one, between two statuses. Each carries the time at which it was collected."""

    def __init__(self, first: Totals, last: Totals) -> None:
        self._first = first
        self._last = last
        self.seconds: float = max(1e-9, last["clock_s"] - first["clock_s"])

    def total(self, *path: str) -> float:
        """How much a count or a sum of seconds has grown; one that is missing has not begun."""
        return float(_at(self._last, path) or 0.0) - float(_at(self._first, path) or 0.0)

    def share(self, *path: str) -> float:
        """A sum of seconds as a part of the time."""
        return max(0.0, self.total(*path) / self.seconds)

    def counts(self, name: str) -> dict[str, int]:
        before = self._first.get(name, {})
        return {key: count - before.get(key, 0) for key, count in self._last.get(name, {}).items()}


def clocks(status: RunStatus) -> dict[str, float]:
    """When each role, and each part of the agent, has collected what the status says of it, by its own clock."""
    found = {name: role.status.clock_s for name, role in status.roles.items() if not isinstance(role, AgentStatus)}
    agent = status.agent
    return found | {"actor": _part(agent.actor).clock_s, "learner": _part(agent.learner).clock_s}


def measurements_between(first: RunStatus, last: RunStatus, args: FleetArgs) -> Measurements:
    """From two statuses as the supervisor writes them."""
    actor = _span(first.agent.actor, last.agent.actor)
    learner = _span(first.agent.learner, last.agent.learner)
    replay, logger = _span(first.replay, last.replay), _span(first.logger, last.logger)
    workers, evaluating = (list(_worker_spans(first, last, kind)) for kind in (RoleKind.ENV, RoleKind.EVAL_ENV))
    steps = sum(worker.total("steps") for worker in workers)
    calls = actor.counts("policy_s")
    return Measurements(
        seconds=actor.seconds,
        env_steps_per_s=actor.total("step") / actor.seconds,
        updates_per_s=learner.total("updates") / learner.seconds,
        policy_ms=_latency([calls]),
        actions_ms=_latency([worker.counts("actions_s") for worker in workers]),
        rows_per_call=actor.total("server", "rows") / max(1, sum(calls.values())),
        step_ms=1e3 * sum(worker.total("step_s") for worker in workers) / max(1.0, steps),
        cores_used=sum(span.share("usage", "cpu_total_s") for span in (actor, replay, logger, *workers, *evaluating)),
        stages={
            ENVIRONMENTS: _environments(workers),
            POLICY: _policy(actor, args.actor_threads),
            LEARNER: _learner(learner),
            REPLAY: _replay(replay),
            LOGGER: _logger(logger),
        },
        samples_held=replay.share("limiter", "sample_wait_s"),
        inserts_held=replay.share("limiter", "insert_wait_s"),
    )


def _part(report: Report | None) -> Report:
    return report or Report()


def _span(first: Report | None, last: Report | None) -> Span:
    return Span(_part(first).model_dump(), _part(last).model_dump())


def _worker_spans(first: RunStatus, last: RunStatus, kind: RoleKind) -> Iterator[Span]:
    for name, role in last.roles.items():
        if isinstance(role, WorkerStatus) and role.kind is kind:
            before = first.roles[name]
            yield _span(before.status if isinstance(before, WorkerStatus) else None, role.status)


def _environments(workers: list[Span]) -> Stage:
    """The mean of all workers. What is neither stepping nor waiting is copying and sending observations."""
    count = max(1, len(workers))
    waits = min(1.0, sum(worker.share("actions_wait_s") for worker in workers) / count)
    stepping = min(1.0, sum(worker.share("step_s") for worker in workers) / count)
    return Stage(1 - waits, {"actions": waits}, {"stepping": stepping, "messages": max(0.0, 1 - waits - stepping)})


def _policy(actor: Span, threads: int) -> Stage:
    """After a batch is answered it is passed on, which may wait for replay or the logger to take it."""
    blocked = {"replay to take steps": actor.share("wait_s", Wait.REPLAY), "logger": actor.share("wait_s", Wait.LOGGER)}
    answering = actor.share("server", "handler_s") / threads
    passing = max(0.0, actor.share("server", "post_s") - sum(blocked.values())) / threads
    busy = min(1.0, answering + passing)
    idle = max(0.0, 1 - busy - sum(blocked.values()) / threads)
    return Stage(busy, {"observations": idle, **blocked}, {"answering": answering, "passing on": passing})


def _learner(learner: Span) -> Stage:
    waits = {
        "batches": min(1.0, learner.share("waited_s", Wait.REPLAY_TO_SAMPLE)),
        "replay to take latents": min(1.0, learner.share("waited_s", Wait.REPLAY_TO_ACCEPT_LATENTS)),
    }
    busy, idle = (min(1.0, learner.share("device_s", name)) for name in ("busy", "idle"))
    if not busy + idle:  # an agent that does not measure it
        return Stage(max(0.0, 1 - sum(waits.values())), waits)
    waits = while_idle(waits, idle)
    # What the device idles for without a wait is the learner's own work: dispatching, metrics, snapshots.
    waiting = sum(waits.values())
    return Stage(1 - waiting, waits, {"computing": 1 - idle, "on the host": max(0.0, idle - waiting)})


def _replay(replay: Span) -> Stage:
    """Each of its methods has a thread: the one with the least room left is the stage's."""

    def busy(method: str, *held: str) -> float:
        waited = replay.total(*held) if held else 0.0
        return min(1.0, max(0.0, replay.total("server", f"{method}/busy_s") - waited) / replay.seconds)

    parts = {
        "inserting": busy("add_batch", "limiter", "insert_wait_s"),
        "sampling": busy("sample_batch_train", "limiter", "sample_wait_s"),
        "updating": busy("update"),
    }
    most = max(parts.values())
    return Stage(most, {WORK: 1 - most}, parts)


def _logger(logger: Span) -> Stage:
    """One lock guards all that it does."""
    busy = min(1.0, sum(logger.share("server", f"{method}/busy_s") for method in ("tran", "tran_eval", "add")))
    return Stage(busy, {WORK: 1 - busy})


def _latency(parts: list[dict[str, int]]) -> Latency:
    counts: dict[str, int] = {}
    for part in parts:
        for key, count in part.items():
            counts[key] = counts.get(key, 0) + count
    p50, p99 = (percentile(counts, share) for share in (0.5, 0.99))
    return Latency(None if p50 is None else 1e3 * p50, None if p99 is None else 1e3 * p99)


def _at(status: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        status = status.get(name, {}) if isinstance(status, Mapping) else {}
    return 0.0 if isinstance(status, Mapping) else status
