"""What a fault on disk costs: the damaged chunk, and nothing else, now or later."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from dreamfleet.core.errors import ReplayError
from dreamfleet.core.interfaces import Arrays
from dreamfleet.replay.files import ChunkFiles, DamagedChunk
from dreamfleet.replay.store import ReplayOptions, ReplayStore

LENGTH, CHUNK = 4, 8


def make_store(folder: Path, capacity: int = 100) -> ReplayStore:
    return ReplayStore(ReplayOptions(LENGTH, capacity, context=1, chunksize=CHUNK, folder=folder))


def fill(store: ReplayStore, start: int, stop: int, stream: int = 0, base: int = 0) -> None:
    """Steps whose `x` is `base` plus their index."""
    for index in range(start, stop):
        store.add_batch(
            {
                "stream": np.array([stream]),
                "x": np.array([base + index]),
                "dyn/z": np.array([[index]], np.float32),
                "is_first": np.zeros(1, bool),
                "is_last": np.zeros(1, bool),
            }
        )


def reload(
    store: ReplayStore, folder: Path, saved: Arrays, needed: Iterable[Path] = (), capacity: int = 100
) -> ReplayStore:
    """`needed`: files of other snapshots."""
    store.close()
    fresh = make_store(folder, capacity)
    fresh.keep_files(needed)
    fresh.load(saved)
    return fresh


def take(store: ReplayStore) -> tuple[Arrays, set[Path]]:
    """A snapshot, and its files."""
    saved = store.save()
    store.committed()
    return saved, set(store.saved_files())


def values(store: ReplayStore) -> set[int]:
    return set(store.sample(2000, "train")["x"].flatten().tolist())


def chunk_file(folder: Path, start: int, kind: str) -> Path:
    return next(folder.glob(f"0-{start}-{kind}-*"))


def test_what_survived_a_damaged_chunk_survives_the_next_snapshot_too(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    fill(store, 0, 40)
    saved = store.save()
    store.committed()
    chunk_file(tmp_path, 16, "steps").write_bytes(b"cut short")
    store = reload(store, tmp_path, saved)
    left = len(store)  # windows 0 to 12 and 24 to 36
    assert left == 13 + 13
    saved = store.save()
    store.committed()
    store = reload(store, tmp_path, saved)
    assert (len(store), store.stats()["chunks_damaged"]) == (left, 0)
    store.close()


def test_an_older_snapshot_taken_after_damage_keeps_its_files(tmp_path: Path) -> None:
    """The steps behind the damaged chunk are a stream of their own, whose files have a negative number."""
    store = make_store(tmp_path, capacity=60)
    fill(store, 0, 40)
    saved, _ = take(store)
    chunk_file(tmp_path, 16, "steps").write_bytes(b"cut short")
    store = reload(store, tmp_path, saved, capacity=60)
    left = len(store)
    older, needed = take(store)
    store.keep_files(needed)
    fill(store, 0, 200, stream=1)  # evicts all that the older snapshot holds
    newer, _ = take(store)
    assert sorted(path.name for path in needed if not path.exists()) == []
    store = reload(store, tmp_path, newer, needed, capacity=60)
    assert sorted(path.name for path in needed if not path.exists()) == []
    store = reload(store, tmp_path, older, capacity=60)
    assert (len(store), store.stats()["chunks_damaged"]) == (left, 0)
    assert values(store) == set(range(40)) - set(range(16, 24))
    store.close()


def test_damage_at_the_same_place_again_mixes_no_steps_of_two_snapshots(tmp_path: Path) -> None:
    store = make_store(tmp_path, capacity=40)
    fill(store, 0, 40)
    saved, _ = take(store)
    chunk_file(tmp_path, 16, "steps").write_bytes(b"cut short")
    store = reload(store, tmp_path, saved, capacity=40)
    older, needed = take(store)
    store.keep_files(needed)
    fill(store, 0, 50, stream=1, base=1000)
    newer, _ = take(store)
    next(tmp_path.glob("1-16-steps-*")).write_bytes(b"cut short")
    store = reload(store, tmp_path, newer, needed, capacity=40)
    left = values(store)
    assert left == {*range(1007, 1016), *range(1024, 1050)}
    again, _ = take(store)
    store = reload(store, tmp_path, again, needed, capacity=40)
    assert values(store) == left
    store = reload(store, tmp_path, older, capacity=40)
    assert values(store) == set(range(40)) - set(range(16, 24))
    store.close()


def test_steps_collected_again_are_written_though_a_snapshot_passed_over_has_files_of_their_names(
    tmp_path: Path,
) -> None:
    """Where all roles are one process, an environment goes on in its old stream."""
    store = make_store(tmp_path)
    fill(store, 0, 40)
    used, _ = take(store)
    fill(store, 40, 48, base=100)
    _, passed_over = take(store)
    store = reload(store, tmp_path, used, passed_over)
    fill(store, 40, 48, base=200)
    again, _ = take(store)
    store = reload(store, tmp_path, again)
    assert values(store) == {*range(40), *range(240, 248)}
    store.close()


def test_a_file_that_cannot_be_read_for_a_moment_is_not_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store = make_store(tmp_path)
    fill(store, 0, 40)
    saved = store.save()
    store.committed()
    read = ChunkFiles.read

    def failing(self: ChunkFiles, name: object, into: object) -> None:
        monkeypatch.setattr(ChunkFiles, "read", read)
        raise DamagedChunk("too many open files")

    monkeypatch.setattr(ChunkFiles, "read", failing)
    store = reload(store, tmp_path, saved)
    assert store.stats()["chunks_damaged"] == 1
    assert "too many open files" in capsys.readouterr().err
    store = reload(store, tmp_path, saved)
    assert (len(store), store.stats()["chunks_damaged"]) == (37, 0)
    store.close()


def test_files_of_a_run_that_never_saved_are_cleared_by_the_next_one(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    fill(store, 0, 40)
    store.close()  # killed, as far as the folder shows
    assert list(tmp_path.iterdir())
    store = make_store(tmp_path)
    fill(store, 0, 4, stream=1)
    assert not list(tmp_path.iterdir())
    store.close()


def test_a_file_that_cannot_be_deleted_does_not_end_the_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store = make_store(tmp_path, capacity=10)
    unlink = Path.unlink

    def refuse(self: Path, missing_ok: bool = False) -> None:
        raise PermissionError("read-only")

    fill(store, 0, 20)
    store.save()
    store.committed()
    monkeypatch.setattr(Path, "unlink", refuse)
    fill(store, 20, 60)
    store.save()
    store.committed()
    monkeypatch.setattr(Path, "unlink", unlink)
    assert "cannot delete a replay chunk" in capsys.readouterr().err
    fill(store, 60, 100)
    store.save()
    store.committed()
    starts = {int(path.name.split("-")[1]) for path in tmp_path.iterdir()}
    assert min(starts) >= 80  # the last 10 windows of 4 steps lie in chunks from 80 on
    store.close()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dyn/z": np.full((1, LENGTH, 1), np.nan, np.float32)}, "holds NaN"),
        ({"priority": np.full((1, LENGTH), np.nan)}, "at least 0"),
        ({"priority": np.full((1, LENGTH), -1.0)}, "at least 0"),
        ({"priority": np.zeros(LENGTH)}, "at least 0"),
    ],
)
def test_an_update_that_would_spoil_replay_is_refused(tmp_path: Path, change: Arrays, message: str) -> None:
    store = make_store(tmp_path)
    fill(store, 0, 10)
    stepid = store.sample(1, "train")["stepid"]
    with pytest.raises(ReplayError, match=message):
        store.update({"stepid": stepid, "dyn/z": np.zeros((1, LENGTH, 1), np.float32), **change})
    store.close()
