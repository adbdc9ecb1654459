"""Collects metrics between two writes and hands them to the sinks."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from dreamfleet.metrics.sinks.isolated import IsolatedSink
from dreamfleet.metrics.values import MARKS, Row, is_name, is_number, is_values, is_video

MAX_NAMES = 100_000  # of numbers between two writes
MAX_VALUES = 100_000  # of one distribution between two writes


class Sink(Protocol):
    def write(self, row: Row) -> None: ...

    def close(self) -> None: ...


class MetricsLogger:
    """The standard `Logger`.

    Numbers added under a name are averaged until the next `write`, and one-dimensional arrays are put together, of
    which sinks that can show it get the distribution. A video goes to the sinks at once. What is neither is left out,
    and so are metrics named `step` or `time`, which every row has already, and names that are long or not printable.

    `sinks` are written by the calling thread: the files that are the record of a run. `isolated` ones each have their
    own thread and can neither slow nor stop anything.
    """

    def __init__(self, sinks: Sequence[Sink], isolated: Sequence[IsolatedSink] = ()) -> None:
        self.step = 0
        self._sinks = list(sinks)
        self._isolated = list(isolated)
        self._sums: dict[str, float] = {}
        self._counts: dict[str, int] = {}
        self._values: dict[str, list[np.ndarray]] = {}
        self._sizes: dict[str, int] = {}

    def add(self, metrics: Mapping[str, Any], prefix: str | None = None) -> None:
        videos = {}
        for key, value in metrics.items():
            name = f"{prefix}/{key}" if prefix else key
            if name not in self._sums and (len(self._sums) >= MAX_NAMES or not is_name(name)):
                continue
            if is_number(value):
                self._sums[name] = self._sums.get(name, 0.0) + float(value)
                self._counts[name] = self._counts.get(name, 0) + 1
            elif is_values(value):
                self._add_values(name, value)
            elif is_video(value):
                videos[name] = value
        if videos:
            self._hand_out(videos)

    def write(self) -> None:
        if not self._sums and not self._values:
            return
        row: dict[str, Any] = {name: total / self._counts[name] for name, total in self._sums.items()}
        row.update({name: np.concatenate(parts) for name, parts in self._values.items()})
        self._sums, self._counts, self._values, self._sizes = {}, {}, {}, {}
        self._hand_out(row)

    def sinks(self) -> dict[str, str]:
        """What has become of each isolated sink: "ok", or why it was dropped."""
        return {sink.label: sink.state() for sink in self._isolated}

    def close(self, timeout_s: float = 5.0) -> None:
        """Isolated sinks have so many seconds, all of them together, for what they have not written yet."""
        for sink in self._isolated:
            sink.end()
        deadline = time.monotonic() + timeout_s
        for sink in self._isolated:
            sink.wait_ended(max(0.0, deadline - time.monotonic()))
        for record in self._sinks:
            record.close()

    def _add_values(self, name: str, values: np.ndarray) -> None:
        size = self._sizes.get(name, 0)
        if size < MAX_VALUES:
            self._sizes[name] = size + len(values)
            self._values.setdefault(name, []).append(values[: MAX_VALUES - size])

    def _hand_out(self, metrics: Mapping[str, Any]) -> None:
        row = {"step": self.step, "time": time.time(), **{k: v for k, v in metrics.items() if k not in MARKS}}
        for sink in self._sinks:
            sink.write(row)
        for isolated in self._isolated:
            isolated.write(row)
