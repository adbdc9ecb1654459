"""What an env worker measures: how long steps take, which one is stuck, and the `log/` keys of each episode."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dreamfleet.core.spaces import LOG_PREFIX
from dreamfleet.core.text.words import wait_words
from dreamfleet.core.waits import Wait
from dreamfleet.metrics.values import LONGEST_NAME
from dreamfleet.metrics.workers import MAX_METRICS_BYTES

if TYPE_CHECKING:
    from dreamfleet.roles.env_worker.instance import EnvInstance

LOGS_BYTES = MAX_METRICS_BYTES * 3 // 4  # of one message, so that the other metrics fit, too
ENTRY_BYTES = 60  # at most, of the numbers beside a name
SHOWN_AFTER_S = 1.0  # a step that takes longer shows in the status


class StepClock:
    """Says which environment is inside a step. The worker's thread writes it, the status thread reads it."""

    __slots__ = ("_reported", "_timeout_s", "running")

    def __init__(self, timeout_s: float) -> None:
        self.running: tuple[EnvInstance, int] | None = None  # and since when, by perf_counter_ns; replaced as a whole
        self._timeout_s = timeout_s
        self._reported: tuple[EnvInstance, int] | None = None

    def waiting(self) -> tuple[Wait, str, float] | None:
        """The step that takes long: what the environment of this name does, and for how many seconds so far."""
        running = self.running
        if running is None or _seconds(running) < min(SHOWN_AFTER_S, self._timeout_s):
            return None
        instance, _ = running
        return instance.doing, instance.name, round(_seconds(running), 1)

    def stall(self) -> dict[str, Any] | None:
        """What to report of a step that takes longer than it may; once for every such step."""
        running = self.running
        if running is None or running is self._reported or _seconds(running) <= self._timeout_s:
            return None
        self._reported = running
        instance, _ = running
        seconds = round(_seconds(running), 1)
        return {
            "env": instance.number,
            "name": instance.name,
            "seconds": seconds,
            "reason": f"{instance.name}: {wait_words(instance.doing)} for {seconds:g} s, "
            "longer than env.step_timeout_s",
        }


class StepTimes:
    """Step times of a worker's environments between two calls of `take`, and the last ones for the status."""

    def __init__(self, instances: Sequence[EnvInstance]) -> None:
        self._instances = instances
        self._steps = 0
        self._step_ns = 0
        self._since = time.perf_counter_ns()
        self.shown: dict[str, Any] = {}
        self.busy = 1.0  # the part of the time that passed inside of environments

    def take(self) -> dict[str, float]:
        """Sums since the last call; for the thread that steps."""
        steps, step_ns = (
            sum(instance.steps for instance in self._instances),
            sum(instance.step_ns for instance in self._instances),
        )
        slowest = max(self._instances, key=lambda instance: instance.slowest_ns)
        taken = {
            "steps": steps - self._steps,
            "step_ms": (step_ns - self._step_ns) / 1e6,
            "slowest_ms": slowest.slowest_ns / 1e6,
        }
        if taken["steps"]:
            mean, worst = taken["step_ms"] / taken["steps"], taken["slowest_ms"]
            self.shown = {"avg": round(mean, 3), "max": round(worst, 3), "slowest": slowest.name}
        now = time.perf_counter_ns()
        taken["elapsed_s"] = (now - self._since) / 1e9
        self.busy = (step_ns - self._step_ns) / max(1, now - self._since)
        self._steps, self._step_ns, self._since = steps, step_ns, now
        for instance in self._instances:
            instance.slowest_ns = 0
        return taken


class EpisodeLogs:
    """Sums the `log/` keys of every episode, declared or not; they may come and go from step to step.

    Values that are no number (a batch has NaN for a row without the key) are left out.
    """

    def __init__(self) -> None:
        self.used = False  # whether there was ever such a key: without one nothing needs to be done
        self._open: dict[int, dict[str, list[float]]] = {}  # by environment: total, highest, count
        self._ended: dict[str, tuple[float, int]] = {}  # sums over the episodes that ended since `take`

    def add(self, env: int, obs: Mapping[str, Any]) -> None:
        """One step of one environment."""
        self.used = True
        if obs["is_first"]:
            self.drop((env,))
        for key, value in obs.items():
            if key.startswith(LOG_PREFIX) and np.ndim(value) == 0:
                self._add(env, key, float(value))
        if obs["is_last"]:
            self._end(env)

    def add_rows(self, envs: Sequence[int], obs: Mapping[str, np.ndarray], rows: np.ndarray) -> None:
        """One step of those rows of a batch; `envs` names the environments of all rows."""
        self.used = True
        self.drop([envs[row] for row in rows[obs["is_first"][rows]]])
        for key, values in obs.items():
            if key.startswith(LOG_PREFIX) and values.ndim == 1:
                for row in rows:
                    self._add(envs[row], key, float(values[row]))
        for row in rows[obs["is_last"][rows]]:
            self._end(envs[row])

    def drop(self, envs: Iterable[int]) -> None:
        """Forgets episodes that nobody will see the end of."""
        for env in envs:
            self._open.pop(env, None)

    def take(self) -> dict[str, tuple[float, int]]:
        """Per name the sum over the episodes since the last call, and their number.

        As many names as fit into a message: the others come with the next one.
        """
        taken: dict[str, tuple[float, int]] = {}
        room = LOGS_BYTES
        for name in list(self._ended):
            room -= len(json.dumps(name)) + ENTRY_BYTES
            if room < 0:
                break
            taken[name] = self._ended.pop(name)
        return taken

    def _add(self, env: int, key: str, value: float) -> None:
        if not math.isfinite(value):
            return
        sums = self._open.setdefault(env, {}).setdefault(key, [0.0, -math.inf, 0])
        sums[0] += value
        sums[1] = max(sums[1], value)
        sums[2] += 1

    def _end(self, env: int) -> None:
        for key, (total, highest, count) in self._open.pop(env, {}).items():
            if len(key) > LONGEST_NAME:  # which no sink would get
                continue
            for name, value in (("avg", total / count), ("max", highest), ("sum", total)):
                before, episodes = self._ended.get(f"{key}/{name}", (0.0, 0))
                self._ended[f"{key}/{name}"] = before + value, episodes + 1


def _seconds(running: tuple[Any, int]) -> float:
    return (time.perf_counter_ns() - running[1]) / 1e9
