"""Streams that end while chunks are short, many streams at once, and snapshots loaded with other options."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dreamfleet.core.errors import ReplayError
from dreamfleet.core.interfaces import Arrays
from dreamfleet.replay import priorities
from dreamfleet.replay.memory import WindowReader
from dreamfleet.replay.store import ReplayStore
from dreamfleet.replay.streams import NONE, ChunkTable, StreamTable
from support.replays import fill, make_store, windows_of


def tiny(streams: list[int], value: int = 0) -> Arrays:
    """One step of 10 bytes each."""
    count = len(streams)
    return {
        "stream": np.array(streams),
        "value": np.full(count, value),
        "is_first": np.zeros(count, bool),
        "is_last": np.zeros(count, bool),
    }


def run(store: ReplayStore, streams: list[int], steps: int) -> None:
    for _ in range(steps):
        store.add_batch(tiny(streams))


def chunks_for(count: int, chunksize: int) -> int:
    return count * chunksize * 10


def test_many_short_incarnations_keep_the_replay_full() -> None:
    """Each leaves a chunk that is mostly empty: the capacity is never reached, the chunks are."""
    store = make_store(65, 20_000)
    rows = [tiny([stream] * 100) for stream in range(600)]
    for row in rows:
        store.add_batch(row)
    assert 530 <= store.stats()["chunks"] <= 20 + 512
    assert len(store) >= 36 * (532 - 4)
    assert windows_of(store)[-1] == (599, 35)


def test_incarnations_come_and_go_within_a_limit_in_bytes() -> None:
    store = make_store(3, 10_000, chunksize=8, size_bytes=chunks_for(6, 8))
    for stream in range(100):
        run(store, [2 * stream, 2 * stream + 1], 20)
        assert store.stats()["chunks"] <= 6
        assert windows_of(store)[-1] == (2 * stream + 1, 17)
    assert store.sample(4, "train")["value"].shape == (4, 3)


def test_only_streams_older_than_every_window_go_before_windows() -> None:
    store = make_store(3, 10_000, chunksize=8, size_bytes=chunks_for(6, 8))
    run(store, [1], 2)  # never had a window, and is older than any
    run(store, [2], 36)  # fills the rest
    run(store, [3], 2)  # has none yet, but is newer than the windows of 2
    assert store._memory is not None
    streams = store._memory.streams
    assert streams.number(1) is None
    assert windows_of(store)[0] == (2, 0)
    run(store, [2], 20)
    assert streams.number(3) is not None
    run(store, [3], 1)
    assert windows_of(store)[-1] == (3, 0)


def test_without_any_window_the_least_recent_stream_goes() -> None:
    store = make_store(3, 10_000, chunksize=8, size_bytes=chunks_for(3, 8))
    for stream in (1, 2, 3, 1, 4):
        run(store, [stream], 1)
    assert store._memory is not None
    assert [store._memory.streams.number(stream) is not None for stream in (1, 2, 3, 4)] == [True, False, True, True]


def test_a_stream_given_up_for_others_goes_on_with_its_next_index() -> None:
    store = make_store(3, 10_000, chunksize=8, size_bytes=chunks_for(3, 8))
    run(store, [1], 5)
    run(store, [2], 30)
    run(store, [1], 3)
    assert (1, 5) in windows_of(store)
    assert all(index >= 5 for stream, index in windows_of(store) if stream == 1)


def test_a_batch_that_cannot_fit_is_refused_before_anything_is_given_up() -> None:
    store = make_store(3, 10_000, chunksize=8, size_bytes=chunks_for(7, 8))
    run(store, [1, 2, 3, 4], 8)
    held = windows_of(store)
    with pytest.raises(ReplayError, match="4 streams do not fit into 7 chunks of 8 steps"):
        run(store, [1, 2, 3, 4], 1)
    assert windows_of(store) == held


def test_two_chunks_per_stream_are_enough() -> None:
    store = make_store(3, 10_000, chunksize=8, size_bytes=chunks_for(8, 8))
    run(store, [1, 2, 3, 4], 200)
    assert len(store) >= 4 * (8 - 2)


def test_one_chunk_per_stream_is_enough_for_windows_of_one_step() -> None:
    store = make_store(1, 10_000, chunksize=8, size_bytes=chunks_for(4, 8))
    run(store, [1, 2, 3, 4], 50)
    assert len(store) == 4 * 2


def test_ended_streams_are_looked_for_once_per_batch_and_only_for_a_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    drop_ended = StreamTable.drop_ended
    monkeypatch.setattr(
        StreamTable, "drop_ended", lambda self, before: calls.append(before) or drop_ended(self, before)
    )
    store = make_store(3, 1000, chunksize=8)
    run(store, list(range(20)), 17)
    assert len(calls) == 3


def test_thousands_of_streams_are_found_again_in_time() -> None:
    count, size = 20_000, 4
    table = ChunkTable(count)
    streams = StreamTable(table, size)
    streams.restore([(stream, stream, 0, size) for stream in range(count)])
    windows = np.stack([np.arange(count), np.ones(count, np.int64)], 1)
    began = time.perf_counter()
    begins, present = streams.find(windows, 2)
    streams.recount(begins, 2)
    streams.touched[:] = 0
    assert time.perf_counter() - began < 5.0  # a scan of all streams for each takes minutes
    assert present.all()
    assert (begins == np.arange(count) * size + 1).all()
    assert (streams.windows[:count] == 1).all()
    assert (streams.first[:count] == 1).all()
    assert (streams.window_at[:count] == np.arange(count) * size + 3).all()
    assert (streams.write_at[:count] == NONE).all()


PRIORITY: dict[str, Any] = {"exponent": 1.0, "maxfrac": 0.0, "initial": 1.0, "zero_on_sample": False}


def weights(store: ReplayStore) -> list[float]:
    assert store._prioritized is not None
    assert store._priorities is not None
    store._priorities.weigh_added()  # as before a draw
    windows = np.arange(store._first, store._end)
    return list(store._prioritized._tree.get(windows % store._prioritized._size).tolist())


def test_windows_are_weighed_in_parts_when_restored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"chunksize": 8, "fracs": {"priority": 1.0}, "priority": PRIORITY}
    store = make_store(3, 100, tmp_path, **options)
    fill(store, 1, 50)
    stepid = np.stack([np.full(50, 1), np.arange(50)], 1)[None]
    store.update({"stepid": stepid, "priority": np.arange(50.0)[None]})
    saved = store.save()
    store.committed()
    expected = weights(store)
    store.close()
    sizes = []

    def reader(memory: Any, begins: np.ndarray, length: int) -> WindowReader:
        sizes.append(len(begins))
        return WindowReader(memory, begins, length)

    monkeypatch.setattr(priorities, "WindowReader", reader)
    monkeypatch.setattr(priorities, "WEIGHED_AT_ONCE", 20)
    restored = make_store(3, 100, tmp_path, **options)
    restored.load(saved)
    assert sizes == [20, 20, 8]
    assert weights(restored) == expected == [float(t + 1) for t in range(48)]
    restored.close()


def test_with_a_shorter_length_than_saved_priorities_stay_with_their_windows(tmp_path: Path) -> None:
    options: dict[str, Any] = {"chunksize": 8, "fracs": {"priority": 1.0}, "priority": PRIORITY}
    store = make_store(6, 100, tmp_path, **options)
    fill(store, 1, 20)
    saved = store.save()
    store.committed()
    store.close()
    restored = make_store(3, 100, tmp_path, **options)
    restored.load(saved)
    stepid = np.stack([np.full(5, 1), np.arange(15, 20)], 1)[None]
    restored.update({"stepid": stepid, "priority": np.full((1, 5), 7.0)})
    held = windows_of(restored)
    assert held == [(1, t) for t in range(15)]  # windows 15 to 17 were not complete when it was saved
    inside = [sum(7.0 if step >= 15 else 1.0 for step in range(t, t + 3)) / 3 for _, t in held]
    assert weights(restored) == pytest.approx(inside)
    fill(restored, 1, 3, start=20)
    assert windows_of(restored)[-3:] == [(1, 18), (1, 19), (1, 20)]
    assert weights(restored)[-3:] == pytest.approx([5.0, 3.0, 1.0])
    restored.close()
