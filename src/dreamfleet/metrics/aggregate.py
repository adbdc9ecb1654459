"""Collects metrics between two writes and hands their means to the sinks."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np


class Sink(Protocol):
    def write(self, row: Mapping[str, Any]) -> None: ...

    def close(self) -> None: ...


class MetricsLogger:
    """The standard `Logger`: every scalar added under a name is averaged until the next `write`."""

    def __init__(self, sinks: Sequence[Sink], step: int = 0) -> None:
        self.step = step
        self._sinks = list(sinks)
        self._sums: dict[str, float] = {}
        self._counts: dict[str, int] = {}

    def add(self, metrics: Mapping[str, Any], prefix: str | None = None) -> None:
        for key, value in metrics.items():
            array = np.asarray(value)
            if array.ndim == 0 and array.dtype.kind in "fiub":
                name = f"{prefix}/{key}" if prefix else key
                self._sums[name] = self._sums.get(name, 0.0) + float(array)
                self._counts[name] = self._counts.get(name, 0) + 1

    def write(self) -> None:
        if not self._sums:
            return
        means = {name: total / self._counts[name] for name, total in self._sums.items()}
        self._sums, self._counts = {}, {}
        row = {"step": self.step, "time": time.time(), **means}
        for sink in self._sinks:
            sink.write(row)

    def close(self) -> None:
        for sink in self._sinks:
            sink.close()
