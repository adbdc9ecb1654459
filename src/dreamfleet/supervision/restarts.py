"""Whether and when a role that ended comes back. Only decides: the supervisor starts and ends the roles."""

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

STEADY_S = 5.0  # a role that was ready for this long has not died quickly
NO_FILES = "its process could not be started: too many open files"
AT_ONCE_S = 10.0  # a failure within this time of being ready, the first or the same again, would come back for ever


class Restartable(Protocol):
    """What a decision needs to know of a role."""

    alive: bool

    @property
    def name(self) -> str: ...

    @property
    def spec(self) -> RoleSpec: ...

    @property
    def incarnations(self) -> int: ...

    def ready_s(self) -> float | None:
        """For how long it has been ready in this incarnation; None if it never was."""

    def steps(self) -> int:
        """The steps of an env worker in this incarnation, as far as it has told of them; of others none."""


@dataclass
class _Record:
    """The deaths of one role."""

    failures: RecentFailures = field(default_factory=RecentFailures)
    quick: int = 0
    how: str = "together"  # in which way its present incarnation began; the first one did with all other roles
    line: str = ""
    in_vain: int = 0  # deaths of an env worker before its first step, from the first incarnation on
    steps: int = 0


@dataclass(frozen=True)
class PlannedRestart:
    """A restart of one role at a later time."""

    name: str
    how: str  # "alone" or "together"
    at: float
    reason: str
    count: int
    max_restarts: int

    def detail(self) -> dict[str, object]:
        return {"reason": self.reason, "how": self.how, "count": self.count, "most": self.max_restarts}


class RestartPlanner:
    """The planned restarts, and the deaths that were counted against each role's rule."""

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
        """Whether a role that failed like this may not come back, whatever its budget."""
        rule = role.spec.restart
        if rule is None or failure.bad_input or not failure.passing:
            return True
        if failure.from_outside or failure.symptom:
            return False  # nothing of its own that would come back
        ready_s = role.ready_s()
        if rule.stateless:
            return ready_s is None and role.incarnations == 1
        at_once = ready_s is None or ready_s < AT_ONCE_S
        return at_once and (role.incarnations == 1 or failure.line == self._records[role.name].line)

    def plan(self, role: Restartable, failure: Failure) -> Failure | None:
        """Plan the restart of a role that has ended; or return why the run must end."""
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
                vain = f"it died {record.in_vain} times before an environment of it made a step"
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
        """Return how it is restarted.

        A role that was not ready in its last incarnation is restarted in the way that one was: it may not have restored
        its snapshot yet.
        """
        if rule.restart_group:
            return "together"
        if rule.stateless or role.ready_s() is not None:
            return "alone"
        return self._records[role.name].how

    def put_off(self, role: Restartable, how: str) -> None:
        """Plans another try for a role that could not be started, which says nothing against it."""
        record = self._records[role.name]
        rule = role.spec.restart
        max_restarts = rule.max_restarts if rule else 0
        at = self._now() + MAX_DELAY_S
        self._planned[role.name] = PlannedRestart(role.name, how, at, NO_FILES, len(record.failures), max_restarts)

    def leaving(self) -> Iterator[str]:
        """Roles that are alive and must end first, since they come back together with one that died."""
        return (name for name in self._planned if self._roles[name].alive)

    def due(self) -> list[PlannedRestart]:
        """Take the restarts whose time has come, in the order in which the roles are listed."""
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
        """When the next restart is due; one that waits for others to leave is due with their end."""
        held = any(True for _ in self.leaving())
        times = [back.at for back in self._planned.values() if not (held and back.how == "together")]
        return min(times, default=math.inf)

    def hasten(self, needed: Callable[[RoleSpec], bool]) -> None:
        """For the end of the run: what `needed` says it needs comes back at once."""
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
    return f"it was restarted {rule.max_restarts} times{within} before, {rule.setting} allows no more"
