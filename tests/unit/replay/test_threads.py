"""Many threads at once: no error, no row that is half of one step and half of another.

DREAMFLEET_SOAK_S=60 makes it last a minute.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dreamfleet.core.errors import ReplayError
from dreamfleet.core.interfaces import Arrays
from dreamfleet.replay.store import ReplayStore
from support.fleet_probe import wait_until
from support.replays import BFLOAT16, files_in, make_store, wait_for_writes

SOAK_S = float(os.environ.get("DREAMFLEET_SOAK_S", "3"))
INSERTERS, SAMPLERS = 8, 4
LENGTH, CONTEXT = 6, 2


def checked(shape: tuple[int, ...], salt: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Bytes that follow from `salt`, one per row, and their checksums."""
    size = int(np.prod(shape))
    data = ((salt[..., None] * 31 + np.arange(size)) % 251).astype(np.uint8).reshape(*salt.shape, *shape)
    return data, checksum(data, salt.ndim)


def checksum(data: np.ndarray, axes: int) -> np.ndarray:
    flat = data.reshape(*data.shape[:axes], -1).astype(np.int64)
    return np.asarray((flat * (1 + np.arange(flat.shape[-1]) % 97)).sum(-1))


def make_latents(salt: np.ndarray) -> Arrays:
    data, total = checked((40,), salt)
    return {"dyn/data": data, "dyn/low": (total % 128).astype(BFLOAT16), "dyn/sum": total}


def make_steps(streams: np.ndarray, index: int) -> Arrays:
    salt = streams * 100_003 + index
    image, total = checked((16, 100), salt)
    small, small_total = checked((30,), salt + 7)
    flags = {"is_first": np.zeros(len(streams), bool), "is_last": np.zeros(len(streams), bool)}
    content = {"image": image, "image_sum": total, "small": small, "small_sum": small_total, "salt": salt}
    return {"stream": streams, **content, **make_latents(salt), **flags}


def check_batch(batch: Arrays) -> None:
    streams, indices = batch["stepid"][..., 0], batch["stepid"][..., 1]
    assert (np.diff(indices, axis=1) == 1).all()
    assert (batch["salt"] == streams * 100_003 + indices).all(), "a window holds another step than it says"
    assert (checksum(batch["image"], 2) == batch["image_sum"]).all(), "torn image"
    assert (checksum(batch["small"], 2) == batch["small_sum"]).all(), "torn small row"
    assert (checksum(batch["dyn/data"], 2) == batch["dyn/sum"]).all(), "torn latents"
    assert (batch["dyn/low"].astype(np.int64) == batch["dyn/sum"] % 128).all(), "latents of two updates"


class Crew:
    """Threads that call their work until the time is over and enough was done, or until one of them fails."""

    def __init__(self, duration_s: float, enough: Callable[[], bool] = lambda: True) -> None:
        self._enough = enough
        self._over = threading.Event()
        self._end = time.monotonic() + duration_s
        self._threads: list[threading.Thread] = []
        self.errors: list[BaseException] = []

    def add(self, work: Callable[[int], None]) -> None:
        def run() -> None:
            turn = 0
            try:
                while not self._over.is_set() and (time.monotonic() < self._end or not self._enough()):
                    work(turn)
                    turn += 1
            except BaseException as error:
                self.errors.append(error)
                self._over.set()

        self._threads.append(threading.Thread(target=run, daemon=True))

    def pause(self, seconds: float) -> None:
        """Lets the others go first: Python's locks are not fair."""
        self._over.wait(seconds)

    def run(self) -> None:
        for thread in self._threads:
            thread.start()
        for thread in self._threads:
            thread.join(max(0.0, self._end - time.monotonic()) + 60)
            assert not thread.is_alive(), "a thread hangs"
        if self.errors:
            raise self.errors[0]


@pytest.fixture
def frequent_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    yield
    sys.setswitchinterval(before)


@pytest.mark.timeout(SOAK_S + 120)
@pytest.mark.usefixtures("frequent_switches")
@pytest.mark.parametrize("fracs", [{"uniform": 1.0}, {"uniform": 0.4, "priority": 0.3, "recency": 0.3}], ids=str)
def test_no_row_is_torn_while_threads_insert_sample_update_and_save(tmp_path: Path, fracs: dict[str, float]) -> None:
    options: dict[str, Any] = {"context": CONTEXT, "chunksize": 8, "online": True, "fracs": fracs}
    store = make_store(LENGTH, 400, tmp_path, **options)
    crew = Crew(SOAK_S / 2, lambda: store._counts["inserts"] > 4 * 400 and store._counts["updates"] > 0)
    updates: list[np.ndarray] = []  # appended and popped by several threads, which a list allows

    def insert(me: int, turn: int) -> None:
        generation, index = divmod(turn, 500)  # streams end and new ones begin
        first = 1 + 2 * (me + INSERTERS * generation)
        store.add_batch(make_steps(np.array([first, first + 1]), index))

    def sample(turn: int) -> None:
        if not len(store):
            crew.pause(0.001)
        else:
            batch = store.sample(4, "train" if turn % 4 else "report")
            check_batch(batch)
            updates.append(batch["stepid"])
            del updates[:-20]

    def update(turn: int) -> None:
        if not updates:
            crew.pause(0.001)
            return
        stepid = updates[-1]
        priority = np.full(stepid.shape[:2], turn % 5, np.float32)
        store.update({"stepid": stepid, **make_latents(stepid[..., 1] * 17 + turn), "priority": priority})
        assert store.stats()["ram_gb"] > 0

    def save(turn: int) -> None:
        crew.pause(0.02)
        store.save()
        if turn % 3 < 2:
            store.committed()

    for number in range(INSERTERS):
        crew.add(lambda turn, number=number: insert(number, turn))
    for _ in range(SAMPLERS):
        crew.add(sample)
    crew.add(update)
    crew.add(save)
    crew.run()
    wait_for_writes(store)
    stats = store.stats()
    assert stats["items"] == 400
    assert stats["write_errors"] == 0
    index = store.save()
    store.committed()
    expect_all_returned(store)
    store.close()
    restore_and_check(tmp_path, index, options)


def expect_all_returned(store: ReplayStore) -> None:
    wait_for_writes(store)
    assert store._memory is not None
    assert not store._memory.pins.any()
    assert not store._memory.doomed


def restore_and_check(folder: Path, index: Arrays, options: dict[str, Any]) -> None:
    before = files_in(folder)
    restored = make_store(LENGTH, 400, folder, **options)
    restored.load(index)
    assert files_in(folder) == before
    assert restored.stats()["chunks_damaged"] == 0
    assert len(restored) == 400
    for _ in range(50):
        check_batch(restored.sample(8, "train"))
    restored.close()


def test_a_failed_insert_leaves_the_others_alone() -> None:
    store = make_store(LENGTH, 400, context=CONTEXT)
    crew = Crew(0.3)

    def insert(turn: int) -> None:
        store.add_batch(make_steps(np.array([1, 2]), turn))

    def insert_nonsense(turn: int) -> None:
        if len(store):
            with pytest.raises(ReplayError, match="differ from the first"):
                store.add_batch({"stream": np.array([3]), "salt": np.zeros(1)})

    def sample(turn: int) -> None:
        if len(store):
            check_batch(store.sample(4, "report"))

    for work in (insert, insert_nonsense, sample):
        crew.add(work)
    crew.run()
    assert store.stats()["streams"] == 2


class WatchedLock:
    """A lock that knows which threads have come to it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.came: list[int] = []

    def __enter__(self) -> None:
        self.came.append(threading.get_ident())
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()


def test_a_full_chunk_is_written_once_by_the_writer_and_a_snapshot_at_the_same_time(tmp_path, monkeypatch) -> None:
    """A file that is written again after the snapshot waited for the disk may be lost with the power."""
    store = make_store(LENGTH, 400, tmp_path, chunksize=8)
    assert store._persistence is not None
    files = store._persistence._files
    done: list[str] = []
    write, sync = files.write, files.sync
    monkeypatch.setattr(files, "write", lambda name, arrays: [done.append(f"write {name.file()}"), write(name, arrays)])
    monkeypatch.setattr(files, "sync", lambda names: [done.extend(f"sync {n.file()}" for n in names), sync(names)])
    for index in range(7):
        store.add_batch(make_steps(np.array([1]), index))
    lock = WatchedLock()
    monkeypatch.setattr(store._persistence, "_files_lock", lock)
    with lock:  # both wait for it with the same file to write
        store.add_batch(make_steps(np.array([1]), 7))
        saving = threading.Thread(target=store.save)
        saving.start()
        wait_until(lambda: len(set(lock.came)) == 3, 20, "writer and snapshot at the lock")
    saving.join(20)
    wait_for_writes(store)
    name = "1-0-steps-8.safetensors"
    assert [what for what in done if what.endswith(name)] == [f"write {name}", f"sync {name}"]
    store.close()
