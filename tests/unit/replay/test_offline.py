"""Episodes from files: what is accepted, what is refused with which words, and how they end up in a replay."""

from __future__ import annotations

import contextlib
import io
import random
import re
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dreamfleet.core.errors import BadInput
from dreamfleet.core.spaces import Space
from dreamfleet.replay.offline import insert_episodes, read_episode
from dreamfleet.replay.store import ReplayOptions, ReplayStore

SPACES = {
    "vector": Space(np.float32, (2,)),
    "reward": Space(np.float32),
    "is_first": Space(bool),
    "is_last": Space(bool),
    "is_terminal": Space(bool),
    "action": Space(np.int32, (), 0, 5),
}


def episode(length: int, number: int = 0, **changes: Any) -> dict[str, np.ndarray]:
    steps = np.arange(length)
    return {
        "vector": np.stack([np.full(length, number), steps], 1).astype(np.float32),
        "reward": np.ones(length, np.float32),
        "is_first": steps == 0,
        "is_last": steps == length - 1,
        "is_terminal": np.zeros(length, bool),
        "action": (steps % 5).astype(np.int32),
        **changes,
    }


def write(path: Path, arrays: dict[str, Any]) -> Path:
    np.savez(path, **arrays)
    return path


def test_an_episode_comes_back_as_it_was_written(tmp_path):
    written = episode(7)
    read = read_episode(write(tmp_path / "a.npz", {**written, "log/score": np.zeros(7)}), SPACES)
    assert read.keys() == written.keys()
    for key, value in written.items():
        np.testing.assert_array_equal(read[key], value)
        assert read[key].dtype == value.dtype


def test_an_episode_that_was_cut_off_is_accepted(tmp_path):
    assert len(read_episode(write(tmp_path / "a.npz", episode(7, is_last=np.zeros(7, bool))), SPACES)["reward"]) == 7


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vector": np.zeros((7, 3), np.float32)}, "'vector' has shape (7, 3) instead of (7, 2): expected 7 steps of"),
        ({"vector": np.zeros((6, 2), np.float32)}, "'vector' has shape (6, 2) instead of (7, 2)"),
        ({"reward": np.zeros(7)}, "'reward' has dtype float64 instead of float32"),
        ({"reward": np.full(7, np.nan, np.float32)}, "'reward' has NaN"),
        (
            {"action": np.full(7, 9, np.int32)},
            "'action' has value 9 at [0] above 4: expected 7 steps of Space(int32",
        ),
        (
            {"extra": np.zeros(7)},
            "has ['extra'], which the environment has not: expected the keys ['action', 'is_first'",
        ),
        ({"is_first": np.bool_(True)}, "'is_first' has no steps: every key needs a leading time axis"),
        ({"is_first": np.zeros(7, bool)}, "'is_first' is true at the steps []: expected [0]"),
        ({"is_first": np.arange(7) % 3 == 0}, "'is_first' is true at the steps [0, 3, 6]: expected [0], one episode"),
        ({"is_last": np.arange(7) == 4}, "'is_last' is true at step 4, before the end"),
    ],
)
def test_what_does_not_match_the_spaces_is_named_with_its_file(tmp_path, changes, message):
    path = write(tmp_path / "bad.npz", episode(7, **changes))
    with pytest.raises(BadInput, match=re.escape(message)) as raised:
        read_episode(path, SPACES)
    assert str(raised.value).startswith(str(path))


def test_a_missing_key_is_named(tmp_path):
    arrays = episode(7)
    del arrays["action"]
    with pytest.raises(BadInput, match=r"bad\.npz lacks \['action'\]: expected the keys"):
        read_episode(write(tmp_path / "bad.npz", arrays), SPACES)


def test_a_file_that_would_have_to_be_unpickled_is_refused(tmp_path):
    path = write(tmp_path / "bad.npz", episode(7, vector=np.array([{}] * 7)))
    with pytest.raises(BadInput, match=r"bad\.npz cannot be read as an \.npz file: Object arrays"):
        read_episode(path, SPACES)


@pytest.mark.parametrize("data", [b"", b"text", b"PK\x03\x04broken"])
def test_a_file_that_is_no_npz_is_refused(tmp_path, data):
    path = tmp_path / "bad.npz"
    path.write_bytes(data)
    with pytest.raises(BadInput, match=r"bad\.npz cannot be read as an \.npz file"):
        read_episode(path, SPACES)


def test_a_file_cut_short_is_refused(tmp_path):
    path = write(tmp_path / "bad.npz", episode(500))
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(BadInput, match=r"bad\.npz cannot be read"):
        read_episode(path, SPACES)


def test_a_single_array_is_refused(tmp_path):
    with (tmp_path / "bad.npz").open("wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(BadInput, match=r"bad\.npz is one array and not an \.npz file"):
        read_episode(tmp_path / "bad.npz", SPACES)


def test_every_episode_becomes_a_stream_and_no_window_mixes_them(tmp_path):
    lengths = [4 + number % 7 for number in range(40)]  # more than are inserted side by side
    paths = [write(tmp_path / f"{n}.npz", episode(length, n)) for n, length in enumerate(lengths)]
    store = ReplayStore(ReplayOptions(length=4, capacity=1000, chunksize=8))
    insert_episodes(store, paths, SPACES)
    assert store.stats()["inserts"] == sum(lengths)
    assert store.stats()["streams"] == 40
    assert len(store) == sum(length - 3 for length in lengths)
    batch = store.sample(200, "train")
    numbers, steps = batch["vector"][..., 0], batch["vector"][..., 1]
    assert (numbers == numbers[:, :1]).all()
    assert (np.diff(steps) == 1).all()
    np.testing.assert_array_equal(batch["stepid"][..., 0], numbers)
    np.testing.assert_array_equal(batch["action"], steps % 5)


def test_what_an_agent_stores_with_its_steps_is_zero_at_first(tmp_path: Path) -> None:
    store = ReplayStore(ReplayOptions(length=4, capacity=1000, chunksize=8, context=1))
    latents = {"dyn/deter": Space(np.float32, (3,)), "dyn/stoch": Space(np.uint8, (2,))}
    insert_episodes(store, [write(tmp_path / "0.npz", episode(9, 0))], SPACES, latents)
    batch = store.sample(5, "train")
    assert (batch["dyn/deter"].shape, batch["dyn/stoch"].shape) == ((5, 1, 3), (5, 1, 2))
    assert not batch["dyn/deter"].any()
    assert not batch["dyn/stoch"].any()


def test_a_small_file_with_much_in_it_is_refused_before_it_is_decompressed(tmp_path, monkeypatch):
    """The header says how much it is; what is only for the logger is not read at all."""
    steps = 300_000
    large = {key: np.zeros((steps, *value.shape[1:]), value.dtype) for key, value in episode(7).items()}
    large["is_first"][0] = True
    np.savez_compressed(tmp_path / "bomb.npz", **large)
    monkeypatch.setattr("dreamfleet.replay.offline.MAX_BYTES", 1 << 20)
    tracemalloc.start()
    try:
        with pytest.raises(BadInput, match=r"bomb\.npz .* its arrays have .* MiB, more than the 1 MiB that are read"):
            read_episode(tmp_path / "bomb.npz", SPACES)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    np.savez_compressed(tmp_path / "log.npz", **episode(7), **{"log/large": np.zeros(1 << 22)})
    assert len(read_episode(tmp_path / "log.npz", SPACES)["reward"]) == 7


def test_a_file_as_large_as_its_arrays_is_read_however_large(tmp_path, monkeypatch):
    monkeypatch.setattr("dreamfleet.replay.offline.MAX_BYTES", 1 << 10)
    path = write(tmp_path / "large.npz", episode(1000))
    assert path.stat().st_size > 1 << 10
    assert len(read_episode(path, SPACES)["reward"]) == 1000


@pytest.mark.parametrize("shape", [(8,), (10**9,), (10**30,), (-7,), (7.0,), "seven"], ids=str)
def test_a_header_that_says_something_else_than_the_data_is_refused(tmp_path, shape):
    arrays = episode(7)
    with zipfile.ZipFile(tmp_path / "bad.npz", "w") as file:
        for key, value in arrays.items():
            header = io.BytesIO()
            found = (*shape, *value.shape[1:]) if isinstance(shape, tuple) else shape
            about = {"descr": value.dtype.str, "fortran_order": False, "shape": found}
            np.lib.format.write_array_header_1_0(header, about)
            file.writestr(f"{key}.npy", header.getvalue() + value.tobytes())
    with pytest.raises(BadInput, match=r"bad\.npz"):
        read_episode(tmp_path / "bad.npz", SPACES)


def test_a_damaged_file_is_a_bad_input_whatever_the_damage(tmp_path):
    path = tmp_path / "bad.npz"
    np.savez_compressed(path, **episode(7))
    whole, rng = path.read_bytes(), random.Random(3)
    for _ in range(400):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        path.write_bytes(data[: rng.randrange(len(data))] if rng.random() < 0.2 else data)
        with contextlib.suppress(BadInput):  # a bit that means nothing may have been hit
            for key, value in read_episode(path, SPACES).items():
                np.testing.assert_array_equal(value, episode(7)[key])
