"""Steps that tell where they belong, a brute-force model of the store, and a chi-square test, for replay tests."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from dreamfleet.core.interfaces import Arrays
from dreamfleet.replay.store import ReplayOptions, ReplayStore

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
WAIT_S = 30.0


def make_rows(
    streams: list[int], values: list[int], firsts: list[bool] | None = None, lasts: list[bool] | None = None
) -> Arrays:
    """One step per row. The image is larger than what the store gathers by address, the other keys are smaller."""
    value = np.array(values, np.int64)
    return {
        "stream": np.array(streams, np.int64),
        "value": value,
        "image": np.repeat((value % 251).astype(np.uint8), 1200).reshape(-1, 40, 30),
        "dyn/deter": np.stack([value, -value], 1).astype(np.float32),
        "dyn/stoch": (value[:, None] % 200).astype(BFLOAT16),
        "is_first": np.array(firsts or [False] * len(values)),
        "is_last": np.array(lasts or [False] * len(values)),
    }


def fill(store: ReplayStore, stream: int, count: int, start: int = 0) -> None:
    """Steps whose value is their stream times 1000 plus their index."""
    for index in range(start, start + count):
        store.add_batch(make_rows([stream], [1000 * stream + index]))


def make_store(length: int, capacity: int, folder: Path | None = None, **more: Any) -> ReplayStore:
    return ReplayStore(ReplayOptions(length, capacity, folder=folder, **more))


def windows_of(store: ReplayStore) -> list[tuple[int, int]]:
    """The windows held, oldest first, as (stream, index of the first step)."""
    windows = store._copy_index(store._memory).windows
    return [tuple(pair) for pair in windows.indices().tolist()] if windows else []


def wait_for_writes(store: ReplayStore) -> None:
    assert store._persistence is not None
    store._persistence._writer.wait(WAIT_S)


def files_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


class Model:
    """Keeps every step ever added in a list per stream, and the windows that can be sampled in another."""

    def __init__(self, length: int, capacity: int) -> None:
        self.length, self.capacity = length, capacity
        self.steps: dict[int, list[dict[str, Any]]] = {}
        self.first: dict[int, int] = {}
        self.touched: dict[int, int] = {}
        self.items: list[tuple[int, int]] = []
        self.fresh: list[tuple[int, int]] = []
        self.inserts = self.updated = self.missed = 0

    def copy(self) -> Model:
        return copy.deepcopy(self)

    def add(self, rows: Arrays) -> None:
        for row, stream in enumerate(rows["stream"].tolist()):
            steps = self.steps.setdefault(stream, [])
            first = self.first.setdefault(stream, 0)
            steps.append({key: value[row].copy() for key, value in rows.items() if key != "stream"})
            self.inserts += 1
            self.touched[stream] = self.inserts
            start = len(steps) - self.length
            if start >= first:
                self.items.append((stream, start))
                if start % self.length == 0:
                    self.fresh.append((stream, start))
        for stream, start in self.items[: -self.capacity]:
            self.first[stream] = start + 1
        del self.items[: -self.capacity]

    def next_fresh(self) -> tuple[int, int] | None:
        while self.fresh:
            stream, start = self.fresh.pop(0)
            if start >= self.first[stream]:
                return stream, start
        return None

    def window(self, stream: int, start: int, context: int) -> dict[str, list[Any]]:
        steps = self.steps[stream][start : start + self.length]
        window = {key: [step[key].tolist() for step in steps] for key in steps[0]}
        window["is_first"][0] = True
        for t in range(self.length - 1):
            window["is_last"][t] = window["is_last"][t] or window["is_first"][t + 1]
        for key in [key for key in window if key.startswith("dyn/")]:
            window[key] = window[key][:context]
            if not context:
                del window[key]
        return window

    def may_be_dropped(self, stream: int) -> bool:
        """Long without a step and without windows: the store forgets such a stream when it next needs a chunk."""
        return self.inserts - self.touched[stream] >= self.capacity and all(s != stream for s, _ in self.items)

    def update(self, stream: int, start: int, latents: Arrays) -> tuple[int, int]:
        """Returns the least and the largest number of steps that can be gone."""
        count = len(latents["dyn/deter"])
        held = [t for t in range(count) if self.first[stream] <= start + t < len(self.steps[stream])]
        for t in held:
            self.steps[stream][start + t].update({key: value[t].copy() for key, value in latents.items()})
        return count - len(held), count if self.may_be_dropped(stream) else count - len(held)


def chi_square_p(observed: Any, weights: Any) -> float:
    """How likely draws are at least this far from `weights`, by the Wilson-Hilferty approximation.

    Cells that are expected less than ten times are counted as one.
    """
    counts, shares = np.asarray(observed, np.float64), np.asarray(weights, np.float64)
    expected = shares / shares.sum() * counts.sum()
    assert (counts[expected == 0] == 0).all(), "something without weight was drawn"
    rare = expected < 10
    counts = np.append(counts[~rare], counts[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    counts, expected = counts[expected > 0], expected[expected > 0]
    freedom = len(counts) - 1
    statistic = float(((counts - expected) ** 2 / expected).sum())
    z = ((statistic / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / math.sqrt(2 / (9 * freedom))
    return 0.5 * math.erfc(z / math.sqrt(2))
