"""Figures of env workers, brought together for a whole fleet."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from dreamfleet.metrics.sections import section

PREFIX = {"train": "episode", "eval": "eval"}
GONE_AFTER_S = 5.0  # a worker tells its figures about once a second


class WorkerFigures:
    """Takes what each worker sends about once a second and gives out metrics of all of them.

    Means are taken over all steps or episodes since the last `take`, whichever worker they come from. Restarts are
    counted by the workers since their start, so the newest count of each replaces its last one. Usage is the sum over
    the workers that are there.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._restarts: dict[str, int] = {}
        self._usage: dict[str, tuple[float, Mapping[str, float]]] = {}
        self._steps = 0
        self._step_ms = 0.0
        self._slowest_ms = 0.0
        self._elapsed_s = 0.0
        self._means: dict[str, tuple[float, int]] = {}
        self._fresh = False

    def add(self, message: Mapping[str, Any]) -> None:
        """`worker` names the worker for as long as it lives; `step_ms` is the sum over `steps` steps within `elapsed_s`
        seconds, `logs` has a sum and a count for every name.
        """
        mode = message["mode"]
        self._restarts[message["worker"]] = message["restarts"]
        self._usage[message["worker"]] = self._now(), message["usage"]
        self._steps += message["steps"]
        self._step_ms += message["step_ms"]
        self._slowest_ms = max(self._slowest_ms, message["slowest_ms"])
        self._elapsed_s += message["elapsed_s"]
        for key, (total, count) in message["logs"].items():
            name = f"{PREFIX[mode]}/{key}"
            before, counted = self._means.get(name, (0.0, 0))
            self._means[name] = before + total, counted + count
        self._fresh = True

    def take(self) -> dict[str, float]:
        """The metrics since the last call; nothing while no worker has sent anything."""
        if not self._fresh:
            return {}
        metrics: dict[str, float] = {"env/restarts": sum(self._restarts.values())}
        if self._steps:
            metrics["env/step_ms/avg"] = self._step_ms / self._steps
            metrics["env/step_ms/max"] = self._slowest_ms
        metrics.update(section("timer/env/step", self._steps, self._step_ms / 1e3, self._elapsed_s))
        metrics.update(self._sum_usage())
        metrics.update({name: total / count for name, (total, count) in self._means.items()})
        self._steps, self._step_ms, self._slowest_ms, self._elapsed_s = 0, 0.0, 0.0, 0.0
        self._means, self._fresh = {}, False
        return metrics

    def _sum_usage(self) -> dict[str, float]:
        now = self._now()
        self._usage = {worker: heard for worker, heard in self._usage.items() if now - heard[0] <= GONE_AFTER_S}
        there = [usage for _, usage in self._usage.values()]
        sums = {f"usage/env/{name}": sum(usage[name] for usage in there) for name in (there[0] if there else ())}
        return {**sums, "env/workers": len(there)}
