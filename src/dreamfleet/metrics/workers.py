"""Figures of env workers, brought together for a whole fleet."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

from dreamfleet.core.errors import ProtocolError
from dreamfleet.metrics.sections import section
from dreamfleet.metrics.values import LONGEST_NAME, is_name

PREFIX = {"train": "episode", "eval": "eval"}
GONE_AFTER_S = 5.0  # a worker tells its figures about once a second
COUNTS = ("restarts", "steps")
TIMES = ("step_ms", "slowest_ms", "elapsed_s")
USAGE = ("cpu_percent", "cpu_total_s", "ram_gb", "threads")
KEYS = {"worker", "mode", "logs", "usage", *COUNTS, *TIMES}
MAX_METRICS_BYTES = 64 << 10  # of one message
MAX_NAMES = 10_000  # of means, between two writes
MAX_WORKERS = 10_000  # whose restarts are counted
LARGEST = 2**53  # of a count: beyond, floats have gaps


def check_worker_metrics(message: Any) -> None:
    """Raise ProtocolError unless this is what a worker sends: see `WorkerMetrics.add`."""
    if not isinstance(message, dict):
        raise ProtocolError(f"figures are a {type(message).__name__} instead of a dictionary")
    if unknown := [key[:LONGEST_NAME] for key in message if key not in KEYS]:
        raise ProtocolError(f"figures have an unknown {unknown[0]!r}: start the worker with the release of the run")
    worker, logs, usage = message.get("worker"), message.get("logs"), message.get("usage")
    if not isinstance(worker, str | int) or len(str(worker)) > LONGEST_NAME:
        raise ProtocolError("figures do not name their worker")
    if message.get("mode") not in tuple(PREFIX):
        raise ProtocolError(f"figures name neither mode, {' or '.join(PREFIX)}")
    for key in COUNTS:
        if type(count := message.get(key)) is not int or not 0 <= count < LARGEST:
            raise ProtocolError(f"figures lack a valid count of {key}")
    for key in TIMES:
        value = message.get(key)
        if value is None or not _is_number(value) or not 0 <= value < math.inf:
            raise ProtocolError(f"figures lack a valid {key}")
    if not isinstance(usage, dict) or not all(map(_is_number, usage.values())):
        raise ProtocolError("figures lack a valid usage, a dictionary of numbers")
    if not isinstance(logs, dict) or not all(map(_is_sum, logs.values())):
        raise ProtocolError("figures lack valid logs, a dictionary of sums and counts")


def _is_number(value: Any) -> bool:
    return type(value) is float or (type(value) is int and abs(value) < LARGEST)


def _is_sum(value: Any) -> bool:
    if not isinstance(value, list | tuple) or len(value) != 2:
        return False
    return _is_number(value[0]) and type(value[1]) is int and 0 < value[1] < LARGEST


class WorkerMetrics:
    """Takes what each worker sends about once a second and gives out metrics of all of them.

    Means are taken over all steps or episodes since the last `take`, whichever worker they come from. Restarts are
    counted by the workers since their start, so the newest count of each replaces its last one. Usage is the sum over
    the workers that are there.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._restarts: dict[str, int] = {}
        self._usage: dict[str, tuple[float, dict[str, float]]] = {}  # the worker that was heard of last at the end
        self._steps = 0
        self._step_ms = 0.0
        self._slowest_ms = 0.0
        self._elapsed_s = 0.0
        self._means: dict[str, tuple[float, int]] = {}
        self._fresh = False

    def add(self, message: Mapping[str, Any]) -> None:
        """`worker` names the worker for as long as it lives; `step_ms` is the sum over `steps` steps within `elapsed_s`
        seconds, `logs` has a sum and a count for every name. Names that not every sink could write are left out, and so
        is what exceeds `MAX_NAMES`.

        Raises:
            ProtocolError: The message is something else.
        """
        check_worker_metrics(message)
        mode = message["mode"]
        self._add_worker(str(message["worker"]), message["restarts"], message["usage"])
        self._steps += message["steps"]
        self._step_ms += message["step_ms"]
        self._slowest_ms = max(self._slowest_ms, message["slowest_ms"])
        self._elapsed_s += message["elapsed_s"]
        for key, (total, count) in message["logs"].items():
            name = f"{PREFIX[mode]}/{key}"
            if name not in self._means and (len(self._means) >= MAX_NAMES or not is_name(key)):
                continue
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

    def _add_worker(self, worker: str, restarts: int, usage: Mapping[str, float]) -> None:
        if len(self._restarts) >= MAX_WORKERS and worker not in self._restarts:
            del self._restarts[next(iter(self._restarts))]
        self._restarts[worker] = restarts
        self._usage.pop(worker, None)
        self._drop_silent(MAX_WORKERS - 1)
        self._usage[worker] = self._now(), {name: usage[name] for name in USAGE if name in usage}

    def _drop_silent(self, most: int) -> None:
        """Forgets the usage of workers that are gone, and of the longest silent ones beyond so many."""
        since = self._now() - GONE_AFTER_S
        while self._usage and (len(self._usage) > most or next(iter(self._usage.values()))[0] < since):
            del self._usage[next(iter(self._usage))]

    def _sum_usage(self) -> dict[str, float]:
        self._drop_silent(MAX_WORKERS)
        there = [usage for _, usage in self._usage.values()]
        names = [name for name in USAGE if any(name in usage for usage in there)]
        sums = {f"usage/env/{name}": sum(usage.get(name, 0.0) for usage in there) for name in names}
        return {**sums, "env/workers": len(there)}
