"""Array dictionaries through a file and back."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from dreamfleet.checkpoint.arrays import load_arrays, save_arrays
from dreamfleet.core.errors import CheckpointError

ARRAYS = {
    "bool": np.array([True, False]),
    "uint8": np.arange(12, dtype=np.uint8).reshape(3, 4),
    "int64": np.array([-(2**62)], np.int64),
    "float32": np.array([np.nan, np.inf, 1e-40], np.float32),
    "scalar": np.array(7, np.int32),
    "empty": np.zeros((0, 3), np.float32),
    "nested/bfloat16": np.array([1.5, -2.0, np.nan], ml_dtypes.bfloat16),
    "bfloat16 scalar": np.array(0.5, ml_dtypes.bfloat16),
    "bfloat16 empty": np.zeros((0, 2), ml_dtypes.bfloat16),
    "strided": np.arange(10, dtype=np.float64)[::3],
    "transposed": np.arange(6, dtype=np.int16).reshape(2, 3).T,
    "half strided": np.arange(8).reshape(2, 4).astype(ml_dtypes.bfloat16)[:, ::2],
}


def test_arrays_of_every_kind_come_back_as_they_were(tmp_path) -> None:
    save_arrays(tmp_path / "state.safetensors", ARRAYS)
    loaded = load_arrays(tmp_path / "state.safetensors")
    assert loaded.keys() == ARRAYS.keys()
    for key, expected in ARRAYS.items():
        assert (loaded[key].dtype, loaded[key].shape) == (expected.dtype, expected.shape), key
        assert loaded[key].tobytes() == expected.tobytes(), key


def test_an_empty_dictionary_comes_back_empty(tmp_path) -> None:
    save_arrays(tmp_path / "state.safetensors", {})
    assert load_arrays(tmp_path / "state.safetensors") == {}


def test_a_second_save_replaces_the_first_and_leaves_no_other_file(tmp_path) -> None:
    for value in (1, 2):
        save_arrays(tmp_path / "state.safetensors", {"x": np.array(value)})
    assert load_arrays(tmp_path / "state.safetensors")["x"] == 2
    assert [path.name for path in tmp_path.iterdir()] == ["state.safetensors"]


@pytest.mark.parametrize("damage", [None, b"", b"not a file of arrays", "cut"], ids=str)
def test_a_missing_or_damaged_file_is_named(tmp_path, damage) -> None:
    path = tmp_path / "state.safetensors"
    if damage == "cut":
        save_arrays(path, ARRAYS)
        damage = path.read_bytes()[:-5]
    if damage is not None:
        path.write_bytes(damage)
    with pytest.raises(CheckpointError, match=r"cannot read state\.safetensors"):
        load_arrays(path)
