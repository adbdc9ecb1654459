"""Memory for steps: one array per key, cut into chunks that are taken and given back. Knows nothing of streams."""

from __future__ import annotations

import mmap
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dreamfleet.core.encoding.bfloat16 import BFLOAT16
from dreamfleet.core.errors import ReplayError

_INFINITY, _NEGATIVE_INFINITY = 0x7F80, 0xFF80  # the bits of bfloat16
_NO_RESERVE = 0x4000 if sys.platform == "linux" else 0


@dataclass(frozen=True)
class Column:
    """What one step holds under a key."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return self.dtype.itemsize * int(np.prod(self.shape))


Layout = dict[str, Column]


def layout_of(rows: Mapping[str, np.ndarray]) -> Layout:
    return {key: Column(value.dtype, value.shape[1:]) for key, value in rows.items()}


def step_bytes(layout: Layout) -> int:
    return sum(column.nbytes for column in layout.values())


class Columns:
    """`chunks` chunks of `chunksize` steps.

    The arrays are reserved in full but take memory only where they were written: the system hands out pages on first
    use. A step's address is its chunk times `chunksize` plus its place in it, so that a batch of steps of many streams
    is written by one indexed assignment per key.
    """

    def __init__(self, layout: Layout, chunks: int, chunksize: int) -> None:
        self.layout = dict(layout)
        self.chunks = chunks
        self.chunksize = chunksize
        self.floats = [(key, column) for key, column in layout.items() if column.dtype.kind not in "iub"]
        self._signature = [(key, column.dtype, column.shape) for key, column in layout.items()]
        self.arrays = {key: reserve(chunks * chunksize, column) for key, column in self.layout.items()}
        self._free = list(range(chunks - 1, -1, -1))  # a stack: chunks that have memory already are used again first

    @property
    def used(self) -> int:
        return self.chunks - len(self._free)

    @property
    def chunk_bytes(self) -> int:
        return self.chunksize * step_bytes(self.layout)

    def check(self, rows: Mapping[str, np.ndarray]) -> None:
        """Refuses steps that look different, and NaN, which would spoil every batch that meets it."""
        if [(key, value.dtype, value.shape[1:]) for key, value in rows.items()] != self._signature:
            layout = layout_of(rows)
            if layout != self.layout:
                wrong = sorted(set(layout.items()) ^ set(self.layout.items()), key=str)
                raise ReplayError(f"a step's keys, shapes or dtypes differ from the first step's: {wrong}")
        for key, column in self.floats:
            if find_nan(rows[key], column):
                raise ReplayError(f"a step holds NaN under {key!r}: look at the environment or agent that made it")

    def take(self) -> int | None:
        return self._free.pop() if self._free else None

    def give_back(self, chunk: int) -> None:
        self._free.append(chunk)

    def write(self, addresses: np.ndarray, rows: Mapping[str, np.ndarray]) -> None:
        for key, value in rows.items():
            self.arrays[key][addresses] = value

    def chunk(self, number: int, length: int) -> dict[str, np.ndarray]:
        """Views of a chunk's first `length` steps."""
        start = number * self.chunksize
        return {key: array[start : start + length] for key, array in self.arrays.items()}


def find_nan(value: np.ndarray, column: Column) -> bool:
    """Whether any element is NaN. Infinity may mark a missing value and is no fault."""
    if column.dtype.kind in "fc":
        return bool(np.isnan(value).any())
    if column.dtype == BFLOAT16 and value.size:
        # Its own test is slow, and its bits tell: read as integers, NaN lies beyond infinity on either side of zero.
        bits = value.view(np.uint16)
        return bool(bits.max() > _NEGATIVE_INFINITY or bits.view(np.int16).max() > _INFINITY)
    return False


def reserve(steps: int, column: Column) -> np.ndarray:
    """Address space without memory. Plain allocation would be refused where it exceeds what the machine has in all."""
    nbytes = steps * column.nbytes
    if nbytes == 0:
        return np.empty((steps, *column.shape), column.dtype)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
    return np.frombuffer(mmap.mmap(-1, nbytes, flags=flags), column.dtype).reshape(steps, *column.shape)
