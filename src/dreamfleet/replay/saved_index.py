"""What a save of a replay holds beside the steps: its windows in their order, and the state of the draws."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy as np

from dreamfleet.core.interfaces import Arrays


class Windows(NamedTuple):
    """Where windows begin, oldest first, as addresses in memory, with what turns these into indices of streams."""

    begins: np.ndarray
    ids: np.ndarray  # of each chunk's stream
    starts: np.ndarray  # of each chunk: the stream's index of its first step
    chunksize: int

    def indices(self) -> np.ndarray:
        """Stream and first index of every window."""
        chunks, offsets = np.divmod(self.begins, self.chunksize)
        return np.stack([self.ids[chunks], self.starts[chunks] + offsets], 1)


class Index(NamedTuple):
    """Copied under the store's lock. `arrays` takes longer and needs no lock."""

    meta: np.ndarray
    fresh: deque[int]  # numbers of the windows in the online queue
    first: int  # number of the oldest window
    windows: Windows | None  # None before the first step

    def arrays(self) -> Arrays:
        arrays = {"meta": self.meta, "fresh": np.array(self.fresh, np.int64) - self.first}
        return arrays if self.windows is None else {**arrays, "windows": self.windows.indices()}
