"""What the replay takes: bytes in memory and on disk, per step and in the long run."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dreamfleet.core.errors import ReplayError
from dreamfleet.core.interfaces import Arrays
from dreamfleet.replay.store import ReplayStore
from support.replays import WAIT_S, fill, make_rows, make_store, wait_for_writes, windows_of

STEP_BYTES = 8 + 1200 + 8 + 2 + 1 + 1  # of make_rows


def image_rows(streams: int) -> Arrays:
    return {
        "stream": np.arange(streams),
        "image": np.ones((streams, 64, 64, 3), np.uint8),
        "reward": np.ones(streams, np.float32),
        "dyn/deter": np.ones((streams, 64), np.float32),
        "is_first": np.zeros(streams, bool),
        "is_last": np.zeros(streams, bool),
    }


def disk_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def test_a_stored_step_takes_hardly_more_than_its_keys() -> None:
    store = make_store(5, 4000, chunksize=16)
    rows = image_rows(4)
    for _ in range(500):
        store.add_batch(rows)
    raw = 64 * 64 * 3 + 4 + 4 * 64 + 2
    stats = store.stats()
    assert stats["chunks"] >= 50
    assert stats["step_bytes"] == raw
    assert 1.0 <= stats["ram_gb"] * 1e9 / (2000 * raw) < 1.05


@pytest.mark.parametrize("length", [1, 5])
def test_size_bytes_is_never_exceeded_and_well_used(length: int) -> None:
    size_bytes = 50 * 4 * STEP_BYTES
    store = make_store(length, 10_000, chunksize=max(4, length), size_bytes=size_bytes)
    limit = size_bytes // (max(4, length) * STEP_BYTES)
    for index in range(400):
        store.add_batch(make_rows([1, 2], [index, index]))
        assert store.stats()["ram_gb"] * 1e9 <= size_bytes
        assert store.stats()["chunks"] <= limit
        if index > 300:
            assert len(store) >= 4 * limit - 64 - 4 * length - 8  # 64 windows are evicted at once
            batch = store.sample(5, "train")
            assert (batch["value"] == batch["stepid"][..., 1]).all()
    assert store.stats()["inserts"] == 800


def test_the_number_of_windows_bounds_first_if_it_is_reached_first() -> None:
    store = make_store(2, 10, chunksize=2, size_bytes=10**9)
    fill(store, 1, 100)
    assert len(store) == 10
    assert store.stats()["chunks"] <= 7


def test_size_bytes_too_small_for_two_chunks_is_refused_with_the_numbers() -> None:
    store = make_store(2, 10, chunksize=8, size_bytes=1000)
    needed = 2 * 8 * STEP_BYTES
    with pytest.raises(ReplayError, match=rf"size_bytes=1000 .*{needed} bytes.*larger replay\.size_bytes"):
        fill(store, 1, 1)


def test_more_streams_than_chunks_are_refused_with_what_to_change() -> None:
    store = make_store(2, 100, chunksize=4, size_bytes=8 * 4 * STEP_BYTES)
    with pytest.raises(ReplayError, match=r"streams do not fit into 8 chunks of 4 steps.*replay\.size_bytes"):
        store.add_batch(make_rows(list(range(9)), [0] * 9))


def grow(store: ReplayStore, folder: Path, rounds: int, capacity: int) -> tuple[list[float], list[int]]:
    """Inserts `rounds` times the capacity, with updates and four snapshots per round; chunks and disk after each."""
    chunks, disk = [], []
    for index in range(rounds * capacity // 2):
        store.add_batch(make_rows([1 + index // 300 * 2, 2 + index // 300 * 2], [index, index]))
        if index % (capacity // 8) == capacity // 8 - 1:
            stepid = store.sample(8, "train")["stepid"]
            store.update({"stepid": stepid, "dyn/deter": np.zeros((*stepid.shape[:2], 2), np.float32)})
            store.save()
            store.committed()
            wait_for_writes(store)
            chunks.append(store.stats()["chunks"])
            disk.append(disk_bytes(folder))
            assert store.stats()["disk_gb"] * 1e9 == pytest.approx(disk[-1])
    return chunks, disk


def test_memory_and_disk_stay_flat_after_three_times_the_capacity(tmp_path: Path) -> None:
    capacity = 800
    store = make_store(4, capacity, tmp_path, chunksize=8)
    chunks, disk = grow(store, tmp_path, 4, capacity)
    full, later = slice(4, 8), slice(8, None)  # the second round holds everything for the first time
    assert max(chunks[later]) <= 1.05 * max(chunks[full])
    assert max(disk[later]) <= 1.05 * max(disk[full])
    assert max(disk) <= 1.6 * capacity * STEP_BYTES  # files have headers, a good deal beside chunks as small as these
    store.close()


def test_disk_stays_bounded_without_any_snapshot(tmp_path: Path) -> None:
    store = make_store(4, 100, tmp_path, chunksize=8)
    fill(store, 1, 600)
    wait_for_writes(store)
    assert len(list(tmp_path.iterdir())) <= 100 // 8 + 2
    store.close()


def delay_writes(store: ReplayStore) -> threading.Event:
    """Files are written once the event is set."""
    files = store._persistence._files  # type: ignore[union-attr]
    write, go_on = files.write, threading.Event()

    def write_late(*args: Any) -> None:
        assert go_on.wait(WAIT_S)
        write(*args)

    files.write = write_late  # type: ignore[method-assign]
    return go_on


def test_a_disk_that_cannot_keep_up_holds_no_insert_and_no_chunk_back(tmp_path: Path) -> None:
    store = make_store(1, 20, tmp_path, chunksize=1)
    go_on = delay_writes(store)
    fill(store, 1, 800)
    assert windows_of(store) == [(1, t) for t in range(780, 800)]
    go_on.set()
    wait_for_writes(store)
    index = store.save()
    store.committed()
    assert len(list(tmp_path.iterdir())) == 2 * 20
    store.close()
    restored = make_store(1, 20, tmp_path, chunksize=1)
    restored.load(index)
    assert windows_of(restored) == [(1, t) for t in range(780, 800)]
    restored.close()


def test_inserts_wait_for_a_save_that_holds_all_chunks_and_evict_no_more(tmp_path: Path) -> None:
    """A save keeps what it has not written yet: when that is all there is, an insert waits for it to go on."""
    store = make_store(1, 600, tmp_path, chunksize=1)
    fill(store, 1, 600)
    wait_for_writes(store)
    go_on, waits, saved = delay_writes(store), threading.Event(), []
    wait = store._unpinned.wait

    def announce(timeout: float | None = None) -> bool:
        waits.set()
        return wait(timeout)

    store._unpinned.wait = announce  # type: ignore[method-assign]
    begun = store.begin_save()
    saver = threading.Thread(target=lambda: saved.append(begun.write()), daemon=True)
    inserter = threading.Thread(target=lambda: fill(store, 2, 600), daemon=True)
    saver.start()
    inserter.start()
    assert waits.wait(WAIT_S)
    with store._lock:
        assert len(store) == 600
    assert store.sample(5, "train")["value"].min() >= 1000
    go_on.set()
    for thread in (saver, inserter):
        thread.join(WAIT_S)
    assert windows_of(store) == [(2, t) for t in range(600)]
    store.committed()
    store.close()
    restored = make_store(1, 600, tmp_path, chunksize=1)
    restored.load(saved[0])
    assert windows_of(restored) == [(1, t) for t in range(600)]
    restored.close()
