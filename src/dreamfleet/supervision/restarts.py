"""Decisions on whether and when an ended role is restarted. The supervisor carries them out."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from dreamfleet.core.restarts import MAX_DELAY_S, MAX_IN_VAIN, RecentFailures, back_off_s
from dreamfleet.supervision.failures import Failure
from dreamfleet.supervision.role_spec import RestartRule, RoleSpec

STEADY_S = 5.0  # a role that was ready for this long did not die quickly
NO_FILES = "its process could not be started: too many open files"
AT_ONCE_S = 10.0  # a first or repeated failure within this time of being ready would repeat forever


class Restartable(Protocol):
    """The properties of a role that decisions depend on."""

    alive: bool

    @property
    def name(self) -> str: ...

    @property
    def spec(self) -> RoleSpec: ...

    @property
    def incarnations(self) -> int: ...

    def ready_s(self) -> float | None:
        """Return the seconds since it became ready, or None if it has not."""

    def steps(self) -> int:
        """Return the reported steps of an env worker since its last start, or 0 for other roles."""


@dataclass
class _Record:
    """The failures of one role."""

    failures: RecentFailures = field(default_factory=RecentFailures)
    quick: int = 0
    how: str = "together"  # how it was last started; initially together with all other roles
    line: str = ""
    in_vain: int = 0  # failures of an env worker since the first start without a single step
    steps: int = 0


@dataclass(frozen=True)
class PlannedRestart:
    """A planned restart of one role at a later time."""

    name: str
    how: str  # "alone" or "together"
    at: float
    reason: str
    count: int
    max_restarts: int

    def detail(self) -> dict[str, object]:
        return {"reason": self.reason, "how": self.how, "count": self.count, "most": self.max_restarts}


class RestartPlanner:
    """Planned restarts, and the failures counted against each role's rule."""

    def __init__(self, roles: Sequence[Restartable], now: Callable[[], float] = time.monotonic) -> None:
        self._roles: Mapping[str, Restartable] = {role.name: role for role in roles}
        self._now = now
        self._records = {role.name: _Record() for role in roles}
        self._planned: dict[str, PlannedRestart] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._planned

    def __bool__(self) -> bool:
        return bool(self._planned)

    def refuses(self, role: Restartable, failure: Failure) -> bool:
        """Return whether this failure rules out a restart, regardless of the budget."""
        rule = role.spec.restart
        if rule is None or failure.bad_input or not failure.passing:
            return True
        if failure.from_outside or failure.symptom:
            return False  # not caused by the role, so it should not repeat
        ready_s = role.ready_s()
        if rule.stateless:
            return ready_s is None and role.incarnations == 1
        at_once = ready_s is None or ready_s < AT_ONCE_S
        return at_once and (role.incarnations == 1 or failure.line == self._records[role.name].line)

    def plan(self, role: Restartable, failure: Failure) -> Failure | None:
        """Plan the restart of an ended role. Return the reason to end the run if that is not possible."""
        rule = role.spec.restart
        if rule is None or self.refuses(role, failure):
            return failure
        record, now = self._records[role.name], self._now()
        record.failures.forget_until(now - rule.window_s)
        if len(record.failures) >= rule.max_restarts:
            return dataclasses.replace(failure, line=f"{failure.line}; {_budget(rule)}")
        if rule.stateless and not failure.from_outside and not failure.symptom:
            record.steps += role.steps()
            record.in_vain += 1
            if record.steps == 0 and record.in_vain >= MAX_IN_VAIN:
                vain = f"it died {record.in_vain} times before any of its environments made a step"
                return dataclasses.replace(failure, line=f"{failure.line}; {vain}")
        record.failures.add(now, failure.line)
        record.line = failure.line
        ready_s = role.ready_s()
        record.quick = 0 if ready_s is not None and ready_s >= STEADY_S else record.quick + 1
        how = self._how(role, rule)
        at = now + back_off_s(record.quick)
        back = PlannedRestart(role.name, how, at, failure.line, len(record.failures), rule.max_restarts)
        self._planned[role.name] = back
        for name in rule.restart_group:
            if name in self._roles:
                self._planned[name] = dataclasses.replace(back, name=name, reason=f"together with {role.name}")
        return None

    def _how(self, role: Restartable, rule: RestartRule) -> str:
        """Return how to restart the role.

        A role that was not ready since its last start may not have restored its snapshot yet, so it is restarted in the
        way in which it was started.
        """
        if rule.restart_group:
            return "together"
        if rule.stateless or role.ready_s() is not None:
            return "alone"
        return self._records[role.name].how

    def put_off(self, role: Restartable, how: str) -> None:
        """Plan another attempt for a role that could not be started, without counting a failure."""
        record = self._records[role.name]
        rule = role.spec.restart
        max_restarts = rule.max_restarts if rule else 0
        at = self._now() + MAX_DELAY_S
        self._planned[role.name] = PlannedRestart(role.name, how, at, NO_FILES, len(record.failures), max_restarts)

    def leaving(self) -> Iterator[str]:
        """Return roles that must end first because they are restarted together with a failed one."""
        return (name for name in self._planned if self._roles[name].alive)

    def due(self) -> list[PlannedRestart]:
        """Remove and return the restarts that are due, in the order of the roles."""
        now = self._now()
        held = any(True for _ in self.leaving())
        ripe = [
            self._planned[name]
            for name in self._roles
            if name in self._planned
            and self._planned[name].at <= now
            and not (held and self._planned[name].how == "together")
        ]
        for back in ripe:
            del self._planned[back.name]
            self._records[back.name].how = back.how
        return ripe

    def next_at(self) -> float:
        """Return when the next restart is due, excluding those that wait for other roles to end."""
        held = any(True for _ in self.leaving())
        times = [back.at for back in self._planned.values() if not (held and back.how == "together")]
        return min(times, default=math.inf)

    def hasten(self, needed: Callable[[RoleSpec], bool]) -> None:
        """Make the restarts that `needed` selects due immediately, for the end of the run."""
        now = self._now()
        self._planned = {
            name: dataclasses.replace(back, at=now) if needed(self._roles[name].spec) else back
            for name, back in self._planned.items()
        }

    def cancel(self) -> None:
        self._planned.clear()


def _budget(rule: RestartRule) -> str:
    if rule.max_restarts == 0:
        return f"{rule.setting}=0 allows no restart"
    within = "" if rule.window_s == math.inf else f" within {rule.window_s:g} s"
    return f"it was already restarted {rule.max_restarts} times{within}, and {rule.setting} allows no more"
