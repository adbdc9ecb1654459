"""Stall detection: finds silent roles, missing progress, and what the other roles wait for."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from dreamfleet.core.roles import RoleKind
from dreamfleet.core.text.words import limiter_words, wait_words
from dreamfleet.core.waits import IN_ENV, LIMITED, LimiterState, Wait
from dreamfleet.runs.status import (
    ActorReport,
    AgentReport,
    AnyReport,
    LearnerReport,
    ReplayReport,
    Report,
    WorkerReport,
    read_report,
)

WORTH_TELLING_S = 1.0  # shorter waits are normal


class MonitoredRole(Protocol):
    """The properties of a role that stall detection uses."""

    alive: bool
    ready: bool
    last_status: dict[str, Any]

    @property
    def name(self) -> str: ...

    @property
    def kind(self) -> RoleKind: ...

    def silent_s(self) -> float: ...


@dataclass(frozen=True)
class Stall:
    """A stall. `what` is a role, "steps" or "updates", and the stacks of `roles` may show the cause."""

    what: str
    text: str
    roles: tuple[str, ...]
    culprit: str = ""  # the role to restart, if it is known


class Watchdog:
    """Detector of stalls. Call `look` about once a second during the run.

    A role is silent when its last report is `timeout_s` old. Roles that are not ready are skipped, because their start
    has its own deadline. While a role that steps pass through is starting, no progress is expected. Slow environment
    steps are reported by `env.step_timeout_s` instead. A lack of steps is not a stall if replay blocks them while the
    learner makes updates. A worker that waits for its stop during the run is an immediate stall.
    """

    def __init__(self, timeout_s: float, now: Callable[[], float] = time.monotonic) -> None:
        self._timeout_s = timeout_s
        self._now = now
        self._counts: dict[str, tuple[Any, float]] = {}  # each count, and since when it has not changed
        self._open: dict[str, float] = {}  # open stalls, and when they were detected

    def look(self, roles: Sequence[MonitoredRole]) -> tuple[list[Stall], dict[str, float]]:
        """Return new stalls, and the duration of those that have ended."""
        if not self._timeout_s:
            return [], {}
        now = self._now()
        found = {stall.what: stall for stall in self._find(roles, now)}
        ended = {what: now - since for what, since in self._open.items() if what not in found}
        new = [stall for what, stall in found.items() if what not in self._open]
        self._open = {what: self._open.get(what, now) for what in found}
        return new, ended

    def _find(self, roles: Sequence[MonitoredRole], now: float) -> Iterator[Stall]:
        seen = [role for role in roles if role.alive and role.ready]
        silent = [role for role in seen if role.silent_s() >= self._timeout_s]
        reports = {role.name: read_report(role.kind, role.last_status) for role in seen}
        around = describe_waits({role.name: reports[role.name] for role in seen if role not in silent})
        for role in silent:
            words = f"{role.name} silent for {role.silent_s():.0f} s"
            yield Stall(role.name, "; ".join([words, *around]), (role.name,), role.name)
        for role in seen:
            if role in silent or not isinstance(report := reports[role.name], WorkerReport):
                continue
            if (waits_s := report.longest_s(Wait.SUPERVISOR_TO_STOP)) >= WORTH_TELLING_S:
                words = f"{wait_words(Wait.SUPERVISOR_TO_STOP)}, but the run continues"
                text = f"{role.name} has waited {waits_s:.0f} s for {words}"
                yield Stall(role.name, text, (role.name,), role.name)
        resting = any(not role.ready for role in roles if not role.kind.is_worker)
        name, agent = _agent(seen, reports)
        actor, learner = agent.actor or ActorReport(), agent.learner or LearnerReport()
        stands_s = self._standing({"steps": actor.step, "updates": learner.updates}, now, resting or bool(silent))
        late = stands_s["updates"] >= self._timeout_s
        held_back = not late and actor.is_waiting_for(Wait.REPLAY_TO_ACCEPT_STEPS)
        culprit = name if late and _is_stuck(learner) else ""
        in_env = any(isinstance(report, WorkerReport) and report.is_waiting_for(*IN_ENV) for report in reports.values())
        if stands_s["steps"] >= self._timeout_s and not held_back and not in_env:
            words = f"no step for {stands_s['steps']:.0f} s"
            yield Stall("steps", "; ".join([words, *around]), tuple(reports), culprit)
        elif culprit:
            words = f"no update for {stands_s['updates']:.0f} s"
            yield Stall("updates", "; ".join([words, *around]), (culprit,), culprit)

    def _standing(self, counts: Mapping[str, int | None], now: float, resting: bool) -> dict[str, float]:
        """Return the seconds since the last step and the last update."""
        for what, count in counts.items():
            if resting or count is None or self._counts.get(what, (None,))[0] != count:
                self._counts[what] = count, now
        return {what: now - self._counts[what][1] for what in counts}


def describe_waits(reports: Mapping[str, AnyReport]) -> list[str]:
    """Describe what each role waits for. Env workers with the same wait are combined."""
    words: list[str] = []
    for part, report in _parts(reports):
        for one in report.waits:
            if one.seconds >= WORTH_TELLING_S:
                held = f": {limited}" if one.wait in LIMITED and (limited := _limiter_words(reports)) else ""
                words.append(f"{part} waits for {wait_words(one.wait)} for {one.seconds:.0f} s{held}")
    workers: dict[str, list[tuple[str, float]]] = {}
    for name, worker in reports.items():
        for one in worker.waits if isinstance(worker, WorkerReport) else ():
            if one.seconds >= WORTH_TELLING_S:
                workers.setdefault(wait_words(one.wait, one.env), []).append((name, one.seconds))
    for what, waiting in workers.items():
        who = f"{waiting[0][0]} waits" if len(waiting) == 1 else f"{len(waiting)} env workers wait"
        words.append(f"{who} for {what} for {max(seconds for _, seconds in waiting):.0f} s")
    if any(isinstance(agent, AgentReport) and agent.actor and agent.actor.envs == 0 for agent in reports.values()):
        words.append("no environments are connected to the actor")
    return words


def _parts(reports: Mapping[str, AnyReport]) -> Iterator[tuple[str, Report]]:
    """Yield all parts of a fleet except env workers, most relevant first."""
    for agent in reports.values():
        if isinstance(agent, AgentReport):
            yield "learner", agent.learner or LearnerReport()
            yield "actor", agent.actor or ActorReport()
    yield from (("replay", replay) for replay in reports.values() if isinstance(replay, ReplayReport))


def _limiter_words(reports: Mapping[str, AnyReport]) -> str:
    for report in reports.values():
        limiter = report.limiter if isinstance(report, ReplayReport) else None
        if limiter and limiter.state not in (None, LimiterState.OPEN):
            return limiter_words(limiter.state, limiter.missing, limiter.inserts)
    return ""


def _agent(roles: Sequence[MonitoredRole], reports: Mapping[str, AnyReport]) -> tuple[str, AgentReport]:
    """Return the agent's name and report, or empty ones if there is none."""
    for role in roles:
        if isinstance(report := reports[role.name], AgentReport):
            return role.name, report
    return "", AgentReport()


def _is_stuck(learner: LearnerReport) -> bool:
    """Return whether the learner has started training and is not waiting for another role."""
    return bool(learner.updates) and not learner.waits
