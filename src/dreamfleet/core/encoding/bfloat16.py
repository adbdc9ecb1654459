"""bfloat16 in NumPy, which has no name for it: files and messages hold its bits as uint16."""

from __future__ import annotations

import ml_dtypes
import numpy as np

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def to_bits(array: np.ndarray) -> np.ndarray:
    """Return a view of a bfloat16 array as uint16; any other array as it is."""
    return array.view(np.uint16) if array.dtype == BFLOAT16 else array


def contiguous_bits(array: np.ndarray) -> np.ndarray:
    """Return `to_bits` of an array in C order, copied if it is not."""
    return to_bits(np.ascontiguousarray(array).reshape(array.shape))  # ascontiguousarray gives a scalar an axis
