"""Saving and loading a replay: nothing more, nothing less, nothing older and nothing newer."""

from __future__ import annotations

import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dreamfleet.checkpoint.arrays import load_arrays, save_arrays
from dreamfleet.core.errors import ReplayError
from dreamfleet.core.interfaces import Arrays
from dreamfleet.replay import files
from dreamfleet.replay.store import ReplayStore
from support.replays import BFLOAT16, WAIT_S, files_in, fill, make_rows, make_store, wait_for_writes, windows_of

FRACS = [{"uniform": 1.0}, {"priority": 1.0}, {"recency": 1.0}, {"uniform": 0.4, "priority": 0.3, "recency": 0.3}]


def exercise(store: ReplayStore, base: int, rounds: int = 30) -> list[Arrays]:
    """Inserts, samples and updates in a way that depends on what is sampled; returns all that was."""
    batches = []
    for index in range(rounds):
        store.add_batch(make_rows([base, base + 1], [1000 * base + index, 1000 * base + 500 + index]))
        if len(store) and index % 3 == 0:
            batch = store.sample(5, "train" if index % 2 else "report")
            batches.append(batch)
            deter = (batch["value"][..., None] + np.array([index, 0.5])).astype(np.float32)
            priority = (batch["value"] % 5).astype(np.float32)
            store.update({"stepid": batch["stepid"], "dyn/deter": deter, "priority": priority})
    return batches


@pytest.mark.parametrize("zero_on_sample", [True, False])
@pytest.mark.parametrize("fracs", FRACS, ids=str)
def test_a_restored_replay_goes_on_exactly_as_the_saved_one(
    tmp_path: Path, fracs: dict[str, float], zero_on_sample: bool
) -> None:
    """Same windows, latents, weights, online queue and random numbers: what is sampled from there on is the same."""
    priority = {"exponent": 0.8, "maxfrac": 0.5, "initial": float("inf"), "zero_on_sample": zero_on_sample}
    options: dict[str, Any] = {"context": 2, "chunksize": 5, "online": True, "fracs": fracs, "priority": priority}
    store = make_store(3, 40, tmp_path / "a", seed=3, **options)
    exercise(store, 1)
    save_arrays(tmp_path / "index", store.save())
    store.committed()
    wait_for_writes(store)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    restored = make_store(3, 40, tmp_path / "b", seed=99, **options)
    restored.load(load_arrays(tmp_path / "index"))
    assert windows_of(restored) == windows_of(store)
    for key in ("inserts", "samples", "updates", "updates_missed", "items", "chunks", "streams", "disk_gb"):
        assert restored.stats()[key] == store.stats()[key], key
    expected, found = exercise(store, 11), exercise(restored, 11)
    for before, after in zip(expected, found, strict=True):
        for key in before:
            assert before[key].dtype == after[key].dtype
            np.testing.assert_array_equal(before[key], after[key], key)
    store.close()
    restored.close()


def test_an_empty_replay_can_be_saved_and_loaded_and_drops_what_came_later(tmp_path: Path) -> None:
    store = make_store(3, 8, tmp_path, chunksize=3)
    index = store.save()
    store.committed()
    fill(store, 1, 7)
    store.close()
    assert files_in(tmp_path)
    restored = make_store(3, 8, tmp_path)
    restored.load(index)
    assert len(restored) == 0
    assert not files_in(tmp_path)
    fill(restored, 2, 3)
    assert len(restored) == 1
    restored.close()


def test_what_came_after_the_snapshot_is_gone_with_its_files(tmp_path: Path) -> None:
    store = make_store(2, 100, tmp_path, chunksize=4)
    fill(store, 1, 10)
    index = store.save()
    store.committed()
    kept = files_in(tmp_path)
    fill(store, 1, 30, start=10)
    store.save()  # never committed
    store.close()
    assert files_in(tmp_path) > kept
    restored = make_store(2, 100, tmp_path, chunksize=4)
    restored.load(index)
    assert windows_of(restored) == [(1, t) for t in range(9)]
    assert files_in(tmp_path) == kept
    restored.close()


def test_a_committed_snapshot_survives_eviction_of_all_it_holds_until_the_next(tmp_path: Path) -> None:
    store = make_store(2, 20, tmp_path, chunksize=4)
    fill(store, 1, 20)
    index = store.save()
    store.committed()
    kept = files_in(tmp_path)
    fill(store, 2, 100)
    wait_for_writes(store)
    assert kept <= files_in(tmp_path)
    restored = make_store(2, 20, shutil.copytree(tmp_path, tmp_path.parent / "copy"), chunksize=4)
    restored.load(index)
    assert windows_of(restored) == [(1, t) for t in range(19)]
    restored.close()
    store.save()
    store.committed()
    assert not kept & files_in(tmp_path)
    store.close()


def test_a_snapshot_that_was_saved_but_not_committed_does_not_replace_the_committed_one(tmp_path: Path) -> None:
    store = make_store(2, 20, tmp_path, chunksize=4)
    fill(store, 1, 20)
    index = store.save()
    store.committed()
    go_on = threading.Event()
    store._persistence._writer.submit(lambda: go_on.wait(WAIT_S))  # type: ignore[arg-type,return-value,union-attr]
    fill(store, 2, 60)
    store.save()
    go_on.set()  # only now the writer comes to what was evicted
    store.close()
    restored = make_store(2, 20, tmp_path, chunksize=4)
    restored.load(index)
    assert windows_of(restored) == [(1, t) for t in range(19)]
    restored.close()


def test_chunks_evicted_while_they_are_saved_belong_to_the_snapshot_all_the_same(tmp_path: Path) -> None:
    store = make_store(2, 20, tmp_path, chunksize=4)
    fill(store, 1, 22)
    files = store._persistence._files  # type: ignore[union-attr]
    write = files.write
    me = threading.get_ident()
    busy = [True]

    def evict_first(*args: Any) -> None:
        if threading.get_ident() == me and busy.pop() if busy else False:
            fill(store, 2, 60)
        write(*args)

    files.write = evict_first  # type: ignore[method-assign]
    index = store.save()
    store.committed()
    wait_for_writes(store)
    assert not busy
    assert windows_of(store)[0][0] == 2
    store.close()
    restored = make_store(2, 20, tmp_path, chunksize=4)
    restored.load(index)
    assert windows_of(restored) == [(1, t) for t in range(1, 21)]
    restored.close()


def test_updates_after_the_moment_of_the_snapshot_do_not_reach_it(tmp_path: Path) -> None:
    store = make_store(1, 50, tmp_path, chunksize=4, context=1)
    fill(store, 1, 10)
    stepid = np.array([[[1, t] for t in range(10)]])

    def set_latents(value: float) -> None:
        latents = {
            "dyn/deter": np.full((1, 10, 2), value, np.float32),
            "dyn/stoch": np.full((1, 10, 1), value, BFLOAT16),
        }
        assert store.update({"stepid": stepid, **latents}) == 0

    set_latents(1.0)
    store.save()
    store.committed()
    set_latents(2.0)
    files = store._persistence._files  # type: ignore[union-attr]
    write = files.write

    def update_first(*args: Any) -> None:
        set_latents(3.0)
        write(*args)

    files.write = update_first  # type: ignore[method-assign]
    index = store.save()
    store.committed()
    files.write = write  # type: ignore[method-assign]
    following = store.save()
    shutil.copytree(tmp_path, tmp_path.parent / "later")
    store.close()
    for state, folder, value in ((index, tmp_path, 2.0), (following, tmp_path.parent / "later", 3.0)):
        restored = make_store(1, 50, folder, chunksize=4, context=1)
        restored.load(state)
        batch = restored.sample(40, "train")
        assert set(batch["dyn/deter"].ravel().tolist()) == {value}
        assert set(batch["dyn/stoch"].ravel().tolist()) == {value}
        restored.close()


def test_a_save_holds_the_replay_as_it_was_when_it_began(tmp_path: Path) -> None:
    """Whatever comes before it is written: inserts, evictions, updates, samples, and by another thread."""
    store = make_store(1, 20, tmp_path, chunksize=4, context=1)
    fill(store, 1, 20)
    wait_for_writes(store)
    begun = store.begin_save()
    stepid = np.array([[[1, t] for t in range(20)]])
    store.update({"stepid": stepid, "dyn/deter": np.full((1, 20, 2), 7, np.float32)})
    store.sample(5, "train")
    fill(store, 2, 30)
    assert windows_of(store) == [(2, t) for t in range(10, 30)]
    with ThreadPoolExecutor(1) as pool:
        index = pool.submit(begun.write).result(20)
    store.committed()
    store.close()
    restored = make_store(1, 20, tmp_path, chunksize=4, context=1)
    restored.load(index)
    assert windows_of(restored) == [(1, t) for t in range(20)]
    assert (restored.stats()["inserts"], restored.stats()["samples"]) == (20, 0)
    batch = restored.sample(40, "report")
    assert (batch["dyn/deter"][:, 0, 0] == batch["value"][:, 0]).all()
    restored.close()


def test_a_save_that_could_not_be_written_lets_go_of_its_chunks(tmp_path: Path) -> None:
    store = make_store(1, 20, tmp_path, chunksize=4)
    fill(store, 1, 20)
    wait_for_writes(store)
    files = store._persistence._files  # type: ignore[union-attr]

    def fail(*args: object) -> None:
        raise ReplayError("no space left")

    write, files.write = files.write, fail  # type: ignore[method-assign, assignment]
    with pytest.raises(ReplayError, match="no space left"):
        store.begin_save().write()
    files.write = write  # type: ignore[method-assign]
    assert store._memory is not None
    assert not store._memory.pins.any()
    index = store.save()
    assert len(index["windows"]) == 20
    store.close()


@pytest.mark.parametrize("fracs", [{"uniform": 1.0}, {"priority": 1.0}], ids=str)
def test_a_smaller_capacity_keeps_the_newest_windows_and_frees_what_was_before(
    tmp_path: Path, fracs: dict[str, float]
) -> None:
    store = make_store(2, 60, tmp_path, chunksize=4)
    fill(store, 1, 30)
    fill(store, 2, 30)
    index = store.save()
    store.committed()
    store.close()
    restored = make_store(2, 40, tmp_path, chunksize=4, fracs=fracs)
    restored.load(index)
    assert windows_of(restored) == [(1, t) for t in range(18, 29)] + [(2, t) for t in range(29)]
    stepid = np.array([[[1, t] for t in range(30)]])
    for left in range(11, 0, -1):  # stream 1 loses its windows one by one
        update = {
            "stepid": stepid,
            "dyn/deter": np.ones((1, 30, 2), np.float32),
            "priority": np.ones((1, 30), np.float32),
        }
        assert restored.update(update) == 29 - left
        assert set(restored.sample(20, "train")["stepid"][:, 0, 0].tolist()) <= {1, 2, 3}
        fill(restored, 3, 2 if left == 11 else 1, start=0 if left == 11 else 13 - left)
    fill(restored, 4, 100)
    assert restored.stats()["chunks"] <= 40 // 4 + 3
    restored.close()


def test_windows_of_another_length_are_found_again_in_the_same_steps(tmp_path: Path) -> None:
    store = make_store(4, 60, tmp_path, chunksize=6)
    fill(store, 1, 20)
    index = store.save()
    store.committed()
    store.close()
    for length, windows in ((6, range(15)), (2, range(17))):
        folder = shutil.copytree(tmp_path, tmp_path.parent / f"length{length}")
        restored = make_store(length, 60, folder, chunksize=6, fracs={"priority": 1.0})
        restored.load(index)
        assert windows_of(restored) == [(1, t) for t in windows]
        stepid = np.array([[[1, t] for t in range(20)]])
        restored.update({"stepid": stepid, "priority": np.ones((1, 20), np.float32)})
        for _ in range(10):
            batch = restored.sample(5, "train")
            assert (batch["value"] == 1000 + batch["stepid"][..., 1]).all()
        restored.close()


def test_chunks_keep_their_size_when_the_configured_one_changes(tmp_path: Path) -> None:
    store = make_store(3, 60, tmp_path, chunksize=6)
    fill(store, 1, 20)
    index = store.save()
    store.committed()
    store.close()
    for chunksize in (3, 50):
        folder = shutil.copytree(tmp_path, tmp_path.parent / f"size{chunksize}")
        restored = make_store(3, 60, folder, chunksize=chunksize)
        restored.load(index)
        fill(restored, 2, 20)
        batch = restored.sample(200, "train")
        assert (batch["value"] == 1000 * batch["stepid"][..., 0] + batch["stepid"][..., 1]).all()
        restored.close()
    restored = make_store(7, 60, tmp_path, chunksize=3)
    with pytest.raises(ReplayError, match="chunks of 6 steps, too short for windows of 7"):
        restored.load(index)
    restored.close()


def test_a_snapshot_that_exceeds_the_capacity_by_far_is_refused_with_what_to_raise(tmp_path: Path) -> None:
    store = make_store(1, 100, tmp_path, chunksize=2)
    fill(store, 1, 100)
    index = store.save()
    store.committed()
    store.close()
    restored = make_store(1, 100, tmp_path, chunksize=2, size_bytes=2 * 2 * 1220)
    with pytest.raises(ReplayError, match=r"more steps than replay\.size or replay\.size_bytes allow: raise them"):
        restored.load(index)
    restored.close()


def test_without_a_folder_saving_and_loading_say_so() -> None:
    store = make_store(1, 10)
    with pytest.raises(ReplayError, match="no folder"):
        store.save()
    with pytest.raises(ReplayError, match="no folder"):
        store.load({})
    store.committed()
    store.close()


def test_the_disk_has_every_file_of_a_save_and_the_names_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(files, "sync", lambda path: asked.append(path.name))
    store = make_store(4, 100, tmp_path / "replay", chunksize=7)
    fill(store, 1, 20)
    store.save()
    store.close()
    assert set(asked) >= files_in(tmp_path / "replay")
    assert asked[-1] == "replay"
