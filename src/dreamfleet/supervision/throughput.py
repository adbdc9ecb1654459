"""Throughput and waits of a run over the last 30 seconds, computed from reports."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple, TypeVar

from dreamfleet.core.roles import WORKERS, RoleKind
from dreamfleet.core.text.words import wait_words
from dreamfleet.core.waits import Wait
from dreamfleet.runs.status import (
    ActorReport,
    AgentReport,
    AgentStatus,
    LearnerReport,
    LimiterReport,
    Pace,
    ReplayStatus,
    Role,
    WorkerStatus,
)

WINDOW_S = 30.0
PART_WORDS = {RoleKind.ENV.value: "envs", RoleKind.EVAL_ENV.value: "eval envs"}  # names in `pace.waits`

Name = TypeVar("Name", bound=str)
Waited = dict[str, dict[Wait, float]]


class _Reading(NamedTuple):
    time: float
    step: int
    updates: int
    waited_s: Waited
    idle_s: float | None  # of the training device, if the agent measures it
    reported: bool  # whether the agent reported its progress


class ThroughputMeter:
    """Computes rates from growing counts. A jump in a count, caused by a restart, resets the window.

    `step` and `updates` are the initial counts of a resumed run. The last counts are kept until the agent reports.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic, step: int = 0, updates: int = 0) -> None:
        self._now = now
        self._step = step
        self._updates = updates
        self._readings: deque[_Reading] = deque()

    def read(self, roles: Mapping[str, Role]) -> Pace:
        """Return the throughput since the start of the window, from the status of every role by name."""
        agent = next((role.status for role in roles.values() if isinstance(role, AgentStatus)), AgentReport())
        actor, learner = agent.actor or ActorReport(), agent.learner or LearnerReport()
        step = self._step = self._step if actor.step is None else actor.step
        updates = self._updates = self._updates if learner.updates is None else learner.updates
        idle_s = learner.device_s.get("idle")
        reported = actor.step is not None
        reading = _Reading(self._now(), step, updates, dict(_waited(roles.values())), idle_s, reported)
        self._keep(reading)
        first, elapsed = self._readings[0], reading.time - self._readings[0].time
        if elapsed <= 0:
            return Pace(step=step, updates=updates, env_per_s=0.0, updates_per_s=0.0, waits={}, shares={})
        shares = {
            part: _shares(first.waited_s.get(part, {}), waited, elapsed) for part, waited in reading.waited_s.items()
        }
        if reading.idle_s is not None:
            shares["learner"] = while_idle(shares["learner"], (reading.idle_s - (first.idle_s or 0.0)) / elapsed)
        return Pace(
            step=step,
            updates=updates,
            env_per_s=round((step - first.step) / elapsed, 3),
            updates_per_s=round((updates - first.updates) / elapsed, 3),
            waits={PART_WORDS.get(part, part): in_words(waits) for part, waits in shares.items()},
            shares=shares,
        )

    def _keep(self, reading: _Reading) -> None:
        readings = self._readings
        if readings and _starts_over(readings[-1], reading):
            readings.clear()
        readings.append(reading)
        while len(readings) > 2 and readings[1].time <= reading.time - WINDOW_S:
            readings.popleft()


def while_idle(waits: Mapping[Name, float], idle: float) -> dict[Name, float]:
    """Return the shares of the learner's waits, scaled down to the device's idle time.

    Updates are asynchronous, so waiting for a batch during the previous update costs nothing.
    """
    waited = sum(waits.values())
    part = min(1.0, idle / waited) if waited else 1.0
    return {name: round(part * share, 3) for name, share in waits.items()}


def _starts_over(last: _Reading, reading: _Reading) -> bool:
    jumps = _jumps(last.step, reading.step) or _jumps(last.updates, reading.updates)
    return jumps or last.reported != reading.reported


def _jumps(old: int, new: int) -> bool:
    """Return whether the count went back, or up from zero when a resumed run restores its counts."""
    return new < old or old == 0 < new


def in_words(waits: Mapping[Wait, float]) -> dict[str, float]:
    return {wait_words(wait): share for wait, share in waits.items()}


def _waited(roles: Iterable[Role]) -> Iterator[tuple[str, dict[Wait, float]]]:
    """Yield the seconds of each wait by part. Env workers of a kind are combined into one part with their mean."""
    workers: dict[str, list[float]] = {kind: [] for kind in WORKERS}
    parts: dict[str, dict[Wait, float]] = {"actor": {}, "learner": {}, "replay": {}}
    for role in roles:
        match role:
            case AgentStatus(status=agent):
                parts["actor"] = _actor_waits(agent.actor) if agent.actor else {}
                parts["learner"] = dict(agent.learner.waited_s) if agent.learner else {}
            case ReplayStatus(status=replay):
                limiter = replay.limiter or LimiterReport()
                waited = {Wait.ACTOR_TO_INSERT: limiter.sample_wait_s, Wait.LEARNER_TO_SAMPLE: limiter.insert_wait_s}
                parts["replay"] = {wait: seconds for wait, seconds in waited.items() if seconds is not None}
            case WorkerStatus(kind=kind, status=worker) if worker.actions_wait_s is not None:
                workers[kind].append(worker.actions_wait_s)
    parts.update({kind: {Wait.ACTIONS: sum(waits) / len(waits)} for kind, waits in workers.items() if waits})
    yield from parts.items()


def _actor_waits(actor: ActorReport) -> dict[Wait, float]:
    """Return the waits of the actor. It waits for observations whenever it does nothing else."""
    waits = {wait: actor.wait_s[wait] for wait in (Wait.REPLAY, Wait.LOGGER) if wait in actor.wait_s}
    if actor.clock_s and "handler_s" in actor.server:
        waits[Wait.OBSERVATIONS] = actor.clock_s - actor.server["handler_s"] - actor.server["post_s"]
    return waits


def _shares(before: Mapping[Wait, float], after: Mapping[Wait, float], elapsed: float) -> dict[Wait, float]:
    """Return the shares of waits, limited to 1 because several threads of a part may wait at once."""
    return {
        name: round(min(1.0, max(0.0, (total - before.get(name, 0.0)) / elapsed)), 3) for name, total in after.items()
    }
