"""Array dictionaries as safetensors files, written aside and renamed so that a reader never sees half a file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from dreamfleet.core.encoding.bfloat16 import BFLOAT16, contiguous_bits
from dreamfleet.core.errors import CheckpointError
from dreamfleet.core.files.disk import atomic_file


def save_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """bfloat16 travels as its bits, with its keys named in the file's metadata."""
    half = [key for key, value in arrays.items() if np.asarray(value).dtype == BFLOAT16]
    plain = {key: contiguous_bits(np.asarray(value)) for key, value in arrays.items()}
    try:
        with atomic_file(path, synced=False) as temporary:
            save_file(plain, temporary, metadata={"bfloat16": json.dumps(half)})
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"cannot write {path}: {error}: free some space there") from error


def load_arrays(path: Path) -> dict[str, np.ndarray]:
    return dict(read_arrays(path))


def read_arrays(path: Path) -> Iterator[tuple[str, np.ndarray]]:
    """Yield one array after the other: together they may take gigabytes."""
    try:
        with safe_open(path, framework="numpy") as file:
            half = set(json.loads((file.metadata() or {}).get("bfloat16", "[]")))
            for key in file.keys():  # noqa: SIM118
                value = file.get_tensor(key)
                yield key, value.view(BFLOAT16) if key in half else value
    except (OSError, SafetensorError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"cannot read {path.name}: {error}") from error


def find_non_finite(arrays: Iterable[tuple[str, np.ndarray]]) -> str | None:
    """Return the name of the first array with a NaN or an infinity in it."""
    return next((key for key, value in arrays if not _is_finite(value)), None)


def _is_finite(array: np.ndarray) -> bool:
    floating = array.dtype.kind in "fc" or array.dtype == BFLOAT16  # NumPy gives bfloat16 the kind of raw bytes
    return not floating or bool(np.isfinite(array).all())
