"""Notices that a run stands still, and says which role is silent and what the others wait for. Only looks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

WORTH_TELLING_S = 1.0  # shorter waits are part of a run that goes on
HELD_BACK = "replay to accept steps"  # what the actor waits for while the learner is behind
LIMITED = ("replay to sample", HELD_BACK)  # waits that end when the limiter allows it
TO_BE_STOPPED = "the supervisor to stop it"  # what `roles.env` waits for at the end of a run
IN_STEP = ("in step", "being made anew")  # how `roles.env_seats` calls what an environment does


class Watched(Protocol):
    """What the watchdog sees of a role."""

    alive: bool
    ready: bool
    last_status: dict[str, Any]

    @property
    def name(self) -> str: ...

    def silent_s(self) -> float: ...


@dataclass(frozen=True)
class Stall:
    """`what` stands still is a role, or "steps" or "updates"; `roles` are those whose stacks may tell why."""

    what: str
    text: str
    roles: tuple[str, ...]
    culprit: str = ""  # the role that would go on after a restart, where it is clear


class Watchdog:
    """`look` is called about once a second, while the run should go on.

    A role is silent when its last report is `timeout_s` old. Roles that are not ready are not looked at: their start
    has a deadline of its own, and while one of those that steps pass through is starting, nothing else need move. An
    environment that takes its time in a step is known: `env.step_timeout_s` tells of it. Steps that replay holds back
    are no stall while the learner makes updates. A worker that waits to be stopped in a run that
    goes on is one at once.
    """

    def __init__(self, timeout_s: float, now: Callable[[], float] = time.monotonic) -> None:
        self._timeout_s = timeout_s
        self._now = now
        self._counts: dict[str, tuple[Any, float]] = {}  # each count, and since when it has been that
        self._open: dict[str, float] = {}  # what stands still, and since when that is known

    def look(self, roles: Sequence[Watched]) -> tuple[list[Stall], dict[str, float]]:
        """The stalls that are new, and what goes on again, with the seconds after which it does."""
        if not self._timeout_s:
            return [], {}
        now = self._now()
        found = {stall.what: stall for stall in self._find(roles, now)}
        ended = {what: now - since for what, since in self._open.items() if what not in found}
        new = [stall for what, stall in found.items() if what not in self._open]
        self._open = {what: self._open.get(what, now) for what in found}
        return new, ended

    def _find(self, roles: Sequence[Watched], now: float) -> Iterator[Stall]:
        seen = [role for role in roles if role.alive and role.ready]
        silent = [role for role in seen if role.silent_s() >= self._timeout_s]
        around = describe_waits([role for role in seen if role not in silent])
        for role in silent:
            words = [f"{role.name} silent for {role.silent_s():.0f} s", *around]
            yield Stall(role.name, "; ".join(words), (role.name,), role.name)
        for role in seen:
            waits_s = role.last_status.get("waiting", {}).get(TO_BE_STOPPED, 0.0)
            if waits_s >= WORTH_TELLING_S and role not in silent:
                text = f"{role.name} has waited {waits_s:.0f} s for {TO_BE_STOPPED}, but the run goes on"
                yield Stall(role.name, text, (role.name,), role.name)
        status = {role.name: role.last_status for role in seen}
        resting = any(not role.ready for role in roles if not _is_worker(role.name))
        stands_s = self._standing(status, now, resting or bool(silent))
        agent = status.get("agent", {})
        late = stands_s["updates"] >= self._timeout_s
        held_back = not late and HELD_BACK in agent.get("actor", {}).get("waiting", {})
        if stands_s["steps"] >= self._timeout_s and not held_back and not _steps_are_known(status):
            words = [f"no step for {stands_s['steps']:.0f} s", *around]
            yield Stall("steps", "; ".join(words), tuple(status), _stuck_learner(agent, late))
        elif _stuck_learner(agent, late):
            words = [f"no update for {stands_s['updates']:.0f} s", *around]
            yield Stall("updates", "; ".join(words), ("agent",), "agent")

    def _standing(self, status: Mapping[str, Mapping[str, Any]], now: float, resting: bool) -> dict[str, float]:
        """For how many seconds steps and updates have stood still."""
        agent = status.get("agent", {})
        counts = {"steps": agent.get("actor", {}).get("step"), "updates": agent.get("learner", {}).get("updates")}
        for what, count in counts.items():
            if resting or count is None or self._counts.get(what, (None,))[0] != count:
                self._counts[what] = count, now
        return {what: now - self._counts[what][1] for what in counts}


def describe_waits(roles: Sequence[Watched]) -> list[str]:
    """What each role waits for, env workers of one mind together."""
    status = {role.name: role.last_status for role in roles}
    limiter = status.get("replay", {}).get("limiter", {}).get("waits_for", "")
    agent = status.get("agent", {})
    parts = {"learner": agent.get("learner", {}), "actor": agent.get("actor", {}), "replay": status.get("replay", {})}
    words = []
    for part, reported in parts.items():
        for name, seconds in reported.get("waiting", {}).items():
            if seconds >= WORTH_TELLING_S:
                held = f": {limiter}" if name in LIMITED and limiter not in ("", "nothing") else ""
                words.append(f"{part} waits for {name} for {seconds:.0f} s{held}")
    workers: dict[str, list[tuple[str, float]]] = {}
    for worker, reported in status.items():
        for name, seconds in reported.get("waiting", {}).items() if _is_worker(worker) else ():
            if seconds >= WORTH_TELLING_S:
                workers.setdefault(name, []).append((worker, seconds))
    for name, waiting in workers.items():
        who = f"{waiting[0][0]} waits" if len(waiting) == 1 else f"{len(waiting)} env workers wait"
        words.append(f"{who} for {name} for {max(seconds for _, seconds in waiting):.0f} s")
    if agent.get("actor") and agent["actor"].get("envs") == 0:
        words.append("actor hears of no environment")
    return words


def _is_worker(name: str) -> bool:
    return name.startswith(("env-", "eval-"))


def _steps_are_known(status: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether a worker is inside of an environment: it waits, but not for another role."""
    waits = [name for worker, reported in status.items() if _is_worker(worker) for name in reported.get("waiting", {})]
    return any(name.endswith(IN_STEP) for name in waits)


def _stuck_learner(agent: Mapping[str, Any], stands: bool) -> str:
    """The agent, if its learner has begun to train, makes no update, and waits for nobody."""
    learner = agent.get("learner", {})
    return "agent" if stands and learner.get("updates", 0) > 0 and not learner.get("waiting") else ""
