"""Array dictionaries as safetensors files, written aside and renamed so that a reader never sees half a file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import ml_dtypes
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from dreamfleet.core.errors import CheckpointError

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def save_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """bfloat16 travels as its bits, with its keys named in the file's metadata."""
    half = [key for key, value in arrays.items() if np.asarray(value).dtype == BFLOAT16]
    plain = {key: _bits(np.asarray(value)) for key, value in arrays.items()}
    aside = path.with_name(path.name + ".tmp")
    try:
        save_file(plain, aside, metadata={"bfloat16": json.dumps(half)})
        aside.replace(path)
    except (OSError, SafetensorError) as error:
        aside.unlink(missing_ok=True)
        raise CheckpointError(f"cannot write {path}: {error}: free some space there") from error


def load_arrays(path: Path) -> dict[str, np.ndarray]:
    try:
        with safe_open(path, framework="numpy") as file:
            half = set(json.loads((file.metadata() or {}).get("bfloat16", "[]")))
            arrays = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, ValueError) as error:
        raise CheckpointError(f"cannot read {path.name}: {error}") from error
    return {key: value.view(BFLOAT16) if key in half else value for key, value in arrays.items()}


def _bits(array: np.ndarray) -> np.ndarray:
    contiguous = np.ascontiguousarray(array).reshape(array.shape)  # ascontiguousarray gives a scalar an axis
    return contiguous.view(np.uint16) if array.dtype == BFLOAT16 else contiguous
