"""Chunk files that are cut short, changed or gone: what they held is lost and nothing else, and somebody is told."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dreamfleet.core.interfaces import Arrays
from dreamfleet.replay.store import ReplayStore
from support.replays import BFLOAT16, files_in, fill, make_rows, make_store, windows_of

LENGTH, CHUNK = 3, 6
STEPS = 40  # of each of two streams
DAMAGED = 12  # index of the first step of the chunk that suffers


def cut_short(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def cut_last_byte(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def flip_last_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def remove(path: Path) -> None:
    path.unlink()


def save_two_streams(folder: Path) -> Arrays:
    store = make_store(LENGTH, 1000, folder, chunksize=CHUNK, context=1)
    for index in range(STEPS):
        store.add_batch(make_rows([1, 2], [1000 + index, 2000 + index]))
    state = store.save()
    store.committed()
    store.close()
    return state


def load(folder: Path, state: Arrays, **options: object) -> ReplayStore:
    store = make_store(LENGTH, 1000, folder, chunksize=CHUNK, context=1, **options)
    store.load(state)
    return store


def expect_whole_windows(store: ReplayStore) -> None:
    batch = store.sample(300, "train")
    assert (np.diff(batch["value"], axis=1) == 1).all()
    assert (batch["dyn/deter"][..., 0] == batch["value"][:, :1]).all()


def without_chunk(stream: int, start: int) -> list[tuple[int, int]]:
    """All windows but those with a step of one chunk in them, in their old order."""
    windows = [(s, t) for t in range(STEPS - LENGTH + 1) for s in (1, 2)]
    return [(s, t) for s, t in windows if s != stream or t + LENGTH <= start or t >= start + CHUNK]


def found_values(store: ReplayStore) -> set[int]:
    return {int(value) for value in np.unique(store.sample(3000, "train")["value"])}


@pytest.mark.parametrize("kind", ["steps", "latents"])
@pytest.mark.parametrize("damage", [cut_short, cut_last_byte, empty, flip_last_byte, remove])
def test_a_damaged_chunk_is_reported_and_nothing_else_is_lost(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], damage: Callable[[Path], None], kind: str
) -> None:
    state = save_two_streams(tmp_path)
    (path,) = tmp_path.glob(f"1-{DAMAGED}-{kind}-*")
    damage(path)
    store = load(tmp_path, state)
    message = capfd.readouterr().err
    assert message.count("\n") == 1
    assert path.name in message
    assert "left out" in message
    assert store.stats()["chunks_damaged"] == 1
    expected = without_chunk(1, DAMAGED)
    found = windows_of(store)
    assert [start for _, start in found] == [start for _, start in expected]
    assert [stream == 2 for stream, _ in found] == [stream == 2 for stream, _ in expected]
    lost = set(range(1000 + DAMAGED, 1000 + DAMAGED + CHUNK))
    everything = {1000 * s + t for s in (1, 2) for t in range(STEPS)}
    assert found_values(store) == everything - lost
    expect_whole_windows(store)
    store.close()


def test_any_flipped_byte_of_a_file_is_noticed_or_harmless(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    store = make_store(1, 10, tmp_path / "whole", chunksize=4, context=1)
    rows = {key: value for key, value in make_rows([1], [5]).items() if key != "image"}
    store.add_batch({**rows, "dyn/stoch": np.array([[7]], BFLOAT16)})
    state = store.save()
    store.committed()
    store.close()
    for name in sorted(files_in(tmp_path / "whole")):
        data = (tmp_path / "whole" / name).read_bytes()
        for place in range(len(data)):
            folder = shutil.copytree(tmp_path / "whole", tmp_path / "broken")
            (folder / name).write_bytes(data[:place] + bytes([data[place] ^ 0x10]) + data[place + 1 :])
            restored = make_store(1, 10, folder, chunksize=4, context=1)
            restored.load(state)
            if len(restored):
                batch = restored.sample(1, "train")
                assert batch["value"].tolist() == [[5]], (name, place)
                assert batch["dyn/deter"].tolist() == [[[5.0, -5.0]]], (name, place)
                assert batch["dyn/stoch"].tolist() == [[[7.0]]], (name, place)
            else:
                assert "left out" in capfd.readouterr().err
            restored.close()
            shutil.rmtree(folder)


@pytest.mark.parametrize("fracs", [{"uniform": 1.0}, {"priority": 1.0}], ids=str)
def test_a_replay_with_gaps_can_be_used_saved_damaged_again_and_loaded(tmp_path: Path, fracs: dict[str, float]) -> None:
    state = save_two_streams(tmp_path)
    for stream, start in ((1, 12), (1, 24), (2, 0)):
        remove(next(tmp_path.glob(f"{stream}-{start}-steps-*")))
    store = load(tmp_path, state, fracs=fracs)
    before = windows_of(store)
    values = found_values(store)
    assert values == {1000 * s + t for s in (1, 2) for t in range(STEPS)} - lost_steps((1, 12), (1, 24), (2, 0))
    batch = store.sample(50, "train")
    assert store.update({"stepid": batch["stepid"], "priority": np.ones(batch["stepid"].shape[:2], np.float32)}) == 0
    fill(store, 7, 10)
    state = store.save()
    store.committed()
    store.close()
    restored = load(tmp_path, state, fracs=fracs)
    assert windows_of(restored)[: len(before)] == before
    restored.close()
    remove(next(tmp_path.glob("2-18-steps-*")))
    restored = load(tmp_path, state, fracs=fracs)
    assert found_values(restored) == values - lost_steps((2, 18)) | set(range(7000, 7010))
    expect_whole_windows(restored)
    assert restored.update({"stepid": restored.sample(50, "train")["stepid"]}) == 0
    restored.close()


def lost_steps(*chunks: tuple[int, int]) -> set[int]:
    return {1000 * stream + t for stream, start in chunks for t in range(start, start + CHUNK)}


def test_streams_with_gaps_leave_memory_like_all_others(tmp_path: Path) -> None:
    state = save_two_streams(tmp_path)
    remove(next(tmp_path.glob("1-12-steps-*")))
    store = load(tmp_path, state)
    fill(store, 9, 2200)
    assert {stream for stream, _ in windows_of(store)} == {9}
    assert store.stats()["streams"] == 1
    assert store.stats()["chunks"] <= 1000 // CHUNK + 3
    store.close()


def test_when_every_file_is_gone_the_replay_begins_empty(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    state = save_two_streams(tmp_path)
    for path in tmp_path.iterdir():
        remove(path)
    store = load(tmp_path, state)
    assert len(store) == 0
    assert store.stats()["chunks_damaged"] == 14
    assert capfd.readouterr().err.count("left out") == 14
    fill(store, 3, 5)
    assert windows_of(store) == [(3, 0), (3, 1), (3, 2)]
    store.close()
