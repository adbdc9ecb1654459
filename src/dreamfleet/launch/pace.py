"""How fast a run is going and what its parts wait for, from what the roles report, over the last half minute."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

WINDOW_S = 30.0


class _Reading(NamedTuple):
    time: float
    step: int
    updates: int
    waited_s: dict[str, dict[str, float]]
    idle_s: float | None  # of the training device, where the agent measures it
    reported: bool  # whether the agent said how far it is


class Pace:
    """Turns counts that only grow into rates. A count that jumps, because a role was restarted, restarts the window.

    `step` and `updates` are those that the run goes on from. While the agent reports none, the last ones stay.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic, step: int = 0, updates: int = 0) -> None:
        self._now = now
        self._step = step
        self._updates = updates
        self._readings: deque[_Reading] = deque()

    def read(self, roles: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """Takes every role's status by its name. `waits` has, per part, the share of time spent on each wait."""
        status = {name: role.get("status") or {} for name, role in roles.items()}
        agent = status.get("agent", {})
        reported = "step" in agent.get("actor", {})
        step = self._step = int(agent.get("actor", {}).get("step", self._step))
        updates = self._updates = int(agent.get("learner", {}).get("updates", self._updates))
        idle_s = agent.get("learner", {}).get("device_s", {}).get("idle")
        reading = _Reading(self._now(), step, updates, dict(_waited(status)), idle_s, reported)
        self._keep(reading)
        first, elapsed = self._readings[0], reading.time - self._readings[0].time
        if elapsed <= 0:
            return {"step": step, "updates": updates, "env_per_s": 0.0, "updates_per_s": 0.0, "waits": {}}
        waits = {
            part: _shares(first.waited_s.get(part, {}), waited, elapsed) for part, waited in reading.waited_s.items()
        }
        if reading.idle_s is not None:
            waits["learner"] = while_idle(waits["learner"], (reading.idle_s - (first.idle_s or 0.0)) / elapsed)
        return {
            "step": step,
            "updates": updates,
            "env_per_s": round((step - first.step) / elapsed, 3),
            "updates_per_s": round((updates - first.updates) / elapsed, 3),
            "waits": waits,
        }

    def _keep(self, reading: _Reading) -> None:
        readings = self._readings
        if readings and _begins_anew(readings[-1], reading):
            readings.clear()
        readings.append(reading)
        while len(readings) > 2 and readings[1].time <= reading.time - WINDOW_S:
            readings.popleft()


def while_idle(waits: Mapping[str, float], idle: float) -> dict[str, float]:
    """Return the shares of the learner's waits, lowered to the share of the time in which the device had no work.

    Updates are asynchronous: a wait for a batch while the update before it is computed costs nothing.
    """
    waited = sum(waits.values())
    part = min(1.0, idle / waited) if waited else 1.0
    return {name: round(part * share, 3) for name, share in waits.items()}


def _begins_anew(last: _Reading, reading: _Reading) -> bool:
    jumps = _jumps(last.step, reading.step) or _jumps(last.updates, reading.updates)
    return jumps or last.reported != reading.reported


def _jumps(old: int, new: int) -> bool:
    """Back, or up from nothing: a run that is continued has counts from before, which are no speed."""
    return new < old or old == 0 < new


def _waited(status: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, dict[str, float]]]:
    """Seconds waited by part and name; env workers of a kind are one part, with their mean."""
    agent = status.get("agent", {})
    yield "actor", {**_idle(agent.get("actor", {})), **agent.get("actor", {}).get("wait_s", {})}
    yield "learner", dict(agent.get("learner", {}).get("wait_s", {}))
    limiter = status.get("replay", {}).get("limiter", {})
    names = {"actor to insert": "sample_wait_s", "learner to sample": "insert_wait_s"}
    yield "replay", {name: limiter[key] for name, key in names.items() if key in limiter}
    for part, prefix in (("envs", "env-"), ("eval envs", "eval-")):
        workers = [worker for name, worker in status.items() if name.startswith(prefix)]
        waits = [worker["actions_wait_s"] for worker in workers if "actions_wait_s" in worker]
        if waits:
            yield part, {"actions": sum(waits) / len(waits)}


def _idle(actor: Mapping[str, Any]) -> dict[str, float]:
    """The actor answers whatever arrives: what is left of its time it waits for observations."""
    server = actor.get("server", {})
    if "clock_s" not in actor or "handler_s" not in server:
        return {}
    return {"observations": actor["clock_s"] - server["handler_s"] - server["post_s"]}


def _shares(before: Mapping[str, float], after: Mapping[str, float], elapsed: float) -> dict[str, float]:
    """Several threads of a part may wait at once: together they wait all the time at most."""
    return {
        name: round(min(1.0, max(0.0, (total - before.get(name, 0.0)) / elapsed)), 3) for name, total in after.items()
    }
