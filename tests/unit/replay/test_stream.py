"""How windows are cut into batches."""

from __future__ import annotations

import numpy as np
import pytest

from dreamfleet.core.errors import ReplayError
from dreamfleet.core.interfaces import Arrays, Replay
from dreamfleet.replay.store import ReplayOptions, ReplayStore
from dreamfleet.replay.stream import ReplayStream
from support.replays import fill, make_store


class Windows:
    """Serves windows of `length` steps that count on: [0, 1, ...], then [100, 101, ...]."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.asked: list[tuple[int, str]] = []

    def sample(self, n: int, mode: str) -> Arrays:
        start = 100 * len(self.asked)
        self.asked.append((n, mode))
        time = np.tile(start + np.arange(self.length), (n, 1))
        return {"time": time, "is_first": time == start, "image": np.zeros((n, self.length, 2, 2), np.uint8)}


def cut(length: int, consec: int, context: int, window: int) -> tuple[ReplayStream, Windows]:
    windows = Windows(window)
    return ReplayStream(windows, "train", 2, length, consec, context), windows  # type: ignore[arg-type]


def test_the_store_follows_the_protocol() -> None:
    store = ReplayStore(ReplayOptions(2, 2))
    assert isinstance(store, Replay)


def test_without_context_a_batch_is_a_window() -> None:
    stream, windows = cut(length=3, consec=1, context=0, window=3)
    assert [next(stream)["time"][0].tolist() for _ in range(2)] == [[0, 1, 2], [100, 101, 102]]
    assert windows.asked == [(2, "train"), (2, "train")]


def test_every_chunk_of_a_window_comes_with_its_context_in_front() -> None:
    stream, windows = cut(length=3, consec=2, context=1, window=7)
    assert stream.window_length == 7
    batches = [next(stream) for _ in range(3)]
    assert [batch["time"][1].tolist() for batch in batches] == [[0, 1, 2, 3], [3, 4, 5, 6], [100, 101, 102, 103]]
    assert [batch["consec"].tolist() for batch in batches] == [[0, 0], [1, 1], [0, 0]]
    assert [batch["is_first"][0, 0] for batch in batches] == [True, False, True]
    assert len(windows.asked) == 2


def test_a_longer_window_is_used_from_its_beginning() -> None:
    stream, _ = cut(length=2, consec=1, context=1, window=9)
    assert [next(stream)["time"][0].tolist() for _ in range(2)] == [[0, 1, 2], [100, 101, 102]]


def test_batches_are_contiguous_in_memory() -> None:
    stream, _ = cut(length=2, consec=2, context=1, window=5)
    for _ in range(2):
        assert all(array.flags["C_CONTIGUOUS"] for array in next(stream).values())


def test_windows_that_are_too_short_say_what_is_needed() -> None:
    stream, _ = cut(length=3, consec=2, context=1, window=6)
    with pytest.raises(ReplayError, match=r"windows of 6 steps are too short for mode 'train', which needs 7"):
        next(stream)


def test_latents_of_the_context_come_with_every_chunk() -> None:
    """The store delivers them for the first steps of a window alone."""
    store = make_store(7, 100, context=1)
    fill(store, 1, 7)
    stream = ReplayStream(store, "train", 2, length=3, consec=2, context=1)
    for consec in range(2):
        batch = next(stream)
        assert batch["dyn/deter"].tolist() == [[[1000, -1000]]] * 2
        assert batch["value"][0].tolist() == list(range(1000 + 3 * consec, 1004 + 3 * consec))
        assert batch["stepid"][0, :, 1].tolist() == list(range(3 * consec, 3 * consec + 4))
