"""Figures of env workers, brought together for a whole fleet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PREFIX = {"train": "episode", "eval": "eval"}


class WorkerFigures:
    """Takes what each worker sends about once a second and gives out metrics of all of them.

    Means are taken over all steps or episodes since the last `take`, whichever worker they come from. Restarts are
    counted by the workers since their start, so the newest count of each replaces its last one.
    """

    def __init__(self) -> None:
        self._restarts: dict[str, int] = {}
        self._steps = 0
        self._step_ms = 0.0
        self._slowest_ms = 0.0
        self._means: dict[str, tuple[float, int]] = {}
        self._fresh = False

    def add(self, message: Mapping[str, Any]) -> None:
        """`worker` names the worker for as long as it lives; `step_ms` is the sum over `steps` steps, `logs` has a
        sum and a count for every name.
        """
        mode = message["mode"]
        self._restarts[message["worker"]] = message["restarts"]
        self._steps += message["steps"]
        self._step_ms += message["step_ms"]
        self._slowest_ms = max(self._slowest_ms, message["slowest_ms"])
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
        metrics.update({name: total / count for name, (total, count) in self._means.items()})
        self._steps, self._step_ms, self._slowest_ms, self._means, self._fresh = 0, 0.0, 0.0, {}, False
        return metrics
