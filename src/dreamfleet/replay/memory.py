"""The steps of one replay in memory: columns, the streams they belong to, and the chunks that are in use right now."""

from __future__ import annotations

import numpy as np

from dreamfleet.core.errors import ReplayError
from dreamfleet.core.interfaces import Arrays
from dreamfleet.replay.columns import Columns, Layout, find_nan, step_bytes
from dreamfleet.replay.streams import ChunkTable, StreamTable

SPARE_CHUNKS = 512  # beyond the capacity: each stream has a chunk that is not full yet and one that is not empty yet
SMALL_BYTES = 1024  # a step's value up to here is gathered by address, a larger one copied in runs


def reserved_chunks(capacity: int, chunksize: int) -> int:
    return -(-capacity // chunksize) + SPARE_CHUNKS


class ChunkMemory:
    """Belongs to a store, whose lock guards all of it but the columns' contents.

    `limit` is the number of chunks that may be in use, or 0 for no other limit than what is reserved. A chunk that is
    given up while it is pinned stays as it is until the last pin is gone.
    """

    def __init__(
        self, layout: Layout, latents: tuple[str, ...], capacity: int, size_bytes: int, chunksize: int
    ) -> None:
        reserved = reserved_chunks(capacity, chunksize)
        self.limit = reserved
        if size_bytes:
            self.limit = min(reserved, size_bytes // (chunksize * max(1, step_bytes(layout))))
        if self.limit < 2:
            needed = 2 * chunksize * step_bytes(layout)
            raise ReplayError(
                f"replay.size_bytes={size_bytes} holds less than two chunks of {chunksize} steps ({needed} bytes): "
                "set a larger replay.size_bytes or a smaller replay.chunksize"
            )
        self.chunksize = chunksize
        self.mutable = {key for key in layout if key.startswith(latents)} if latents else set()
        self.columns = Columns(layout, min(reserved, self.limit + SPARE_CHUNKS), chunksize)
        self.table = ChunkTable(self.columns.chunks)
        self.streams = StreamTable(self.table, chunksize)
        self.pins = np.zeros(self.columns.chunks, np.int32)
        self.doomed: set[int] = set()

    @property
    def in_use(self) -> int:
        return self.columns.used - len(self.doomed)

    def take(self) -> int | None:
        return self.columns.take() if self.in_use < self.limit else None

    @property
    def waits_for_pins(self) -> bool:
        """Whether chunks are missing only because some that were given up are still read or written."""
        return self.in_use < self.limit and bool(self.doomed)

    def drop_streams(self, batch: np.ndarray, length: int, inserts: int, windows: int) -> list[int]:
        """Chunks of streams that are older than all `windows` windows held; none if windows have to go first.

        Raises as soon as it is known that the streams of `batch` do not fit, whatever goes.
        """
        fits = self.streams.least_chunks(batch, length) <= self.limit
        freed = self.streams.drop_oldest(batch, inserts - windows) if fits else []
        if not freed and not (fits and windows):
            raise ReplayError(
                f"{len(batch)} streams do not fit into {self.limit} chunks of {self.chunksize} steps: "
                "set a larger replay.size or replay.size_bytes, or a smaller replay.chunksize"
            )
        return freed

    def release(self, chunk: int) -> None:
        if self.pins[chunk]:
            self.doomed.add(chunk)
        else:
            self.columns.give_back(chunk)

    def pin(self, chunks: np.ndarray) -> None:
        np.add.at(self.pins, chunks, 1)

    def unpin(self, chunks: np.ndarray) -> None:
        np.subtract.at(self.pins, chunks, 1)
        for chunk in [chunk for chunk in self.doomed if not self.pins[chunk]]:
            self.doomed.remove(chunk)
            self.columns.give_back(chunk)


class WindowReader:
    """Reads windows of `length` steps from the addresses where they begin. A window spans one chunk or two."""

    def __init__(self, memory: ChunkMemory, begins: np.ndarray, length: int) -> None:
        size = memory.chunksize
        self._length = length
        self._begins = begins
        chunks, offsets = begins // size, begins % size
        self._heads = np.minimum(length, size - offsets)  # steps in the first chunk
        split = self._heads < length
        self._tails = np.where(split, memory.table.next[chunks] * size, 0)
        self.chunks = np.concatenate([chunks, memory.table.next[chunks[split]]])
        places = offsets[:, None] + np.arange(length)
        self.addresses = np.where(
            places < size, begins[:, None] - offsets[:, None] + places, self._tails[:, None] + places - size
        )
        self._ids = memory.streams.ids[memory.table.owner[chunks]]
        self._indices = memory.table.start[chunks] + offsets

    def stepids(self) -> np.ndarray:
        stepid = np.empty((*self.addresses.shape, 2), np.int64)
        stepid[:, :, 0] = self._ids[:, None]
        stepid[:, :, 1] = self._indices[:, None] + np.arange(self._length)
        return stepid

    def read(self, array: np.ndarray) -> np.ndarray:
        if array[:1].nbytes <= SMALL_BYTES:
            return array[self.addresses]
        out = np.empty((len(self._begins), self._length, *array.shape[1:]), array.dtype)
        rows = zip(self._begins.tolist(), self._heads.tolist(), self._tails.tolist(), strict=True)
        for row, (begin, head, tail) in enumerate(rows):
            out[row, :head] = array[begin : begin + head]
            if head < self._length:
                out[row, head:] = array[tail : tail + self._length - head]
        return out


def check_update(memory: ChunkMemory, stepid: np.ndarray, values: Arrays, priority: np.ndarray | None) -> None:
    """Refuses an update that does not fit what is stored, or that would spoil it."""
    if stepid.ndim != 3 or stepid.shape[2] != 2 or (np.diff(stepid, axis=1) != (0, 1)).any():
        raise ReplayError("update needs stepid of shape (rows, steps, 2) with consecutive steps of one stream per row")
    for key, value in values.items():
        if key not in memory.mutable:
            raise ReplayError(f"update of {key!r}: only latents may change, whose keys begin with dyn/")
        column = memory.columns.layout[key]
        if (value.dtype, value.shape) != (column.dtype, (*stepid.shape[:2], *column.shape)):
            raise ReplayError(f"update of {key!r} does not match what is stored: {value.dtype} {value.shape}")
        if find_nan(value, column):
            raise ReplayError(f"update of {key!r} holds NaN: look at the agent that made it")
    if priority is not None and (priority.shape != stepid.shape[:2] or not (priority >= 0).all()):
        raise ReplayError(f"priorities must be a number of at least 0 for each of {stepid.shape[:2]} steps")


def mark_borders(batch: Arrays) -> None:
    """A window begins like an episode, and a step whose successor begins one was its episode's last."""
    is_first, is_last = batch["is_first"], batch["is_last"]
    is_first[:, 0] = True
    is_last[:, :-1] |= is_first[:, 1:]
