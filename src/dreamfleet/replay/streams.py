"""Which chunks belong to which stream, and where in them a stream's steps lie. Moves no data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

NONE = -1
REMEMBERED = 4096  # streams that ended: one that goes on after all must not use an index twice


class ChunkTable:
    """What is known of each chunk: whose it is, the stream's index of its first step, and the chunk that follows it."""

    def __init__(self, chunks: int) -> None:
        self.owner = np.full(chunks, NONE, np.int64)  # number of the stream
        self.start = np.zeros(chunks, np.int64)
        self.next = np.full(chunks, NONE, np.int64)


class StreamTable:
    """The streams by number, in arrays, so that a batch with one step each is placed without a loop.

    A stream's steps are counted from 0. Those below `first` are evicted, `end` is the next one. `write_at` is the
    address of the next step and `window_at` that of the first step of the next window to become complete.
    """

    def __init__(self, chunks: ChunkTable, chunksize: int) -> None:
        self._table = chunks
        self._chunksize = chunksize
        self._numbers: dict[int, int] = {}
        self._unused: list[int] = []
        self._ended: dict[int, int] = {}
        self.ids = np.full(64, NONE, np.int64)
        self.first = np.zeros(64, np.int64)
        self.end = np.zeros(64, np.int64)
        self.windows = np.zeros(64, np.int64)  # complete and not evicted
        self.write_at = np.full(64, NONE, np.int64)
        self.window_at = np.full(64, NONE, np.int64)
        self.touched = np.zeros(64, np.int64)  # the store's count of inserts when a step was last added
        self.lost = np.zeros(64, bool)  # whether any of its windows was evicted
        self.chunks: dict[int, list[int]] = {}  # by number, oldest first
        self._cut_off: dict[int, int] = {}  # streams that damage has separated from another one

    def __len__(self) -> int:
        return len(self._numbers)

    def number(self, stream_id: int) -> int | None:
        return self._numbers.get(stream_id)

    def open(self, stream_ids: Sequence[int]) -> np.ndarray:
        """The numbers of these streams; those not seen before begin."""
        known = self._numbers
        for stream_id in stream_ids:
            if stream_id not in known:
                known[stream_id] = self._new(stream_id)
        return np.array([known[stream_id] for stream_id in stream_ids])

    def full(self, numbers: np.ndarray) -> list[int]:
        """Which of these streams need a further chunk before their next step: see `extend`."""
        wanting: list[int] = numbers[self.write_at[numbers] == NONE].tolist()
        return wanting

    def advance(self, numbers: np.ndarray, length: int) -> np.ndarray:
        """Counts one step each, written at `write_at`; returns where windows of `length` begin that became complete."""
        self.end[numbers] += 1
        following = self.write_at[numbers] + 1
        self.write_at[numbers] = np.where(following % self._chunksize == 0, NONE, following)
        complete = numbers[self.end[numbers] - self.first[numbers] >= length]
        begins = self.window_at[complete]
        self.windows[complete] += 1
        self.window_at[complete] = self._step_on(begins)
        return np.asarray(begins)

    def evict(self, begins: np.ndarray) -> list[int]:
        """Drops the steps at these addresses, oldest first, and returns the chunks nobody needs any more."""
        chunks = begins // self._chunksize
        numbers = self._table.owner[chunks]
        self.first[numbers] = self._table.start[chunks] + begins % self._chunksize + 1
        self.lost[numbers] = True
        np.subtract.at(self.windows, numbers, 1)
        freed: list[int] = []
        for chunk in chunks[begins % self._chunksize == self._chunksize - 1].tolist():
            mine = self.chunks[int(self._table.owner[chunk])]
            until = mine.index(chunk) + 1  # it is the first one, or comes after chunks whose windows were not restored
            freed += mine[:until]
            del mine[:until]
        return freed

    def drop_ended(self, before: int) -> list[int]:
        """Forgets streams that have no window left and got no step since insert `before`; returns their chunks."""
        return self._drop(np.flatnonzero((self.ids != NONE) & (self.windows == 0) & (self.touched <= before)))

    def drop_oldest(self, batch: np.ndarray, before: int) -> list[int]:
        """Forgets streams that have no window left and are not in `batch`; returns their chunks.

        All whose windows were evicted: the steps that remain are older than any window that is held. If that frees
        nothing, then those that never had one, least recently used first, until something is free; none of these if it
        got a step since insert `before`.
        """
        idle = (self.ids != NONE) & (self.windows == 0)
        idle[batch] = False
        freed = self._drop(np.flatnonzero(idle & self.lost))
        if freed:
            return freed
        young = np.flatnonzero(idle & ~self.lost & (self.touched <= before))
        for place in np.argsort(self.touched[young], kind="stable").tolist():
            if freed := self._drop(young[place : place + 1]):
                break
        return freed

    def least_chunks(self, numbers: np.ndarray, length: int) -> int:
        """Chunks these streams need for their next step, even with all of their windows evicted."""
        kept = np.minimum(self.end[numbers] - self.first[numbers], length - 1)
        here = np.where(self.write_at[numbers] == NONE, 0, self.write_at[numbers] % self._chunksize)
        return int(np.sum(1 - np.minimum(0, here - kept) // self._chunksize))

    def spans(self, number: int, start: int, count: int) -> Iterator[tuple[int, int, int]]:
        """Runs of addresses that hold steps `start` on: (address, place in the request, steps). Skips what is gone."""
        chunks = self.chunks[number]
        base = int(self._table.start[chunks[0]]) if chunks else 0
        at = max(start, int(self.first[number]))
        end = min(start + count, int(self.end[number]))
        while at < end:
            place, offset = divmod(at - base, self._chunksize)
            size = min(end - at, self._chunksize - offset)
            yield chunks[place] * self._chunksize + offset, at - start, size
            at += size

    def restore(self, chunks: Sequence[tuple[int, int, int, int]], lowest: int = NONE) -> None:
        """Begins streams that already have steps, from (stream, chunk, first index, end), sorted.

        Where a chunk is missing, what comes after it becomes a stream of its own: no window may cross the gap. Its
        number is below `lowest`, the lowest one that any snapshot names.
        """
        previous = (NONE, NONE, NONE, NONE)
        number = NONE
        for stream_id, chunk, start, end in chunks:
            if (previous[0], previous[3]) != (stream_id, start):
                name = stream_id if stream_id not in self._numbers else min(lowest, *self._numbers) - 1
                if name != stream_id:
                    self._cut_off[name] = stream_id
                number = int(self.open([name])[0])
                self.first[number] = start
            if self.chunks[number]:
                self._table.next[self.chunks[number][-1]] = chunk
            self.chunks[number].append(chunk)
            self._table.owner[chunk], self._table.start[chunk], self._table.next[chunk] = number, start, NONE
            self.end[number] = end
            self.write_at[number] = self._address(number, end)
            previous = (stream_id, chunk, start, end)

    def holds(self, stream_id: int, chunk: int) -> bool:
        number = self._numbers.get(stream_id)
        return number is not None and self._table.owner[chunk] == number and chunk in self.chunks[number]

    def find(self, windows: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Where windows (stream, index) begin, and which of them have all of their steps here."""
        begins = np.zeros(len(windows), np.int64)
        present = np.zeros(len(windows), bool)
        order = np.argsort(windows[:, 0], kind="stable")
        ids, cuts = np.unique(windows[order, 0], return_index=True)
        parts = self._parts()
        for stream_id, rows in zip(ids.tolist(), np.split(order, cuts[1:])[: len(ids)], strict=True):
            for number in parts.get(stream_id, ()):
                index = windows[rows, 1]
                inside = (index >= self.first[number]) & (index + length <= self.end[number])
                chunks = np.array(self.chunks[number])
                place = index[inside] - self._table.start[chunks[0]]
                begins[rows[inside]] = chunks[place // self._chunksize] * self._chunksize + place % self._chunksize
                present[rows[inside]] = True
        return begins, present

    def recount(self, begins: np.ndarray, length: int) -> None:
        """Takes over which windows there are after `restore`."""
        chunks, offsets = begins // self._chunksize, begins % self._chunksize
        owners, oldest, counts = np.unique(self._table.owner[chunks], return_index=True, return_counts=True)
        incomplete = np.maximum(self.first, self.end - length + 1)  # where the next window of each stream begins
        for number in self._numbers.values():
            self.window_at[number] = self._address(number, int(incomplete[number]))
        self.lost = self.first < incomplete
        self.first = incomplete
        self.first[owners] = (self._table.start[chunks] + offsets)[oldest]
        self.windows[:] = 0
        self.windows[owners] = counts

    def _parts(self) -> dict[int, list[int]]:
        """By stream, its number and those of what was cut off it: see `restore`."""
        parts: dict[int, list[int]] = {}
        for known, number in self._numbers.items():
            parts.setdefault(self._cut_off.get(known, known), []).append(number)
        return parts

    def _drop(self, numbers: np.ndarray) -> list[int]:
        freed: list[int] = []
        for number, stream_id in zip(numbers.tolist(), self.ids[numbers].tolist(), strict=True):
            freed += self.chunks.pop(number)
            del self._numbers[stream_id]
            self._ended[stream_id] = int(self.end[number])
            while len(self._ended) > REMEMBERED:
                self._ended.pop(next(iter(self._ended)))
            self.ids[number] = NONE
            self._unused.append(number)
        return freed

    def _address(self, number: int, index: int) -> int:
        chunks = self.chunks[number]
        if not chunks:
            return NONE
        place, offset = divmod(index - int(self._table.start[chunks[0]]), self._chunksize)
        return chunks[place] * self._chunksize + offset if place < len(chunks) else NONE

    def _step_on(self, addresses: np.ndarray) -> np.ndarray:
        following = addresses + 1
        over = following % self._chunksize == 0
        if over.any():
            after = self._table.next[addresses[over] // self._chunksize]
            following[over] = np.where(after == NONE, NONE, after * self._chunksize)
        return following

    def extend(self, number: int, chunk: int) -> None:
        chunks = self.chunks[number]
        if chunks:
            self._table.next[chunks[-1]] = chunk
        chunks.append(chunk)
        self._table.owner[chunk] = number
        self._table.start[chunk] = self.end[number]
        self._table.next[chunk] = NONE
        self.write_at[number] = chunk * self._chunksize
        if self.window_at[number] == NONE:
            self.window_at[number] = chunk * self._chunksize

    def _new(self, stream_id: int) -> int:
        number = self._unused.pop() if self._unused else len(self.chunks)
        if number == len(self.ids):
            self._widen()
        self.ids[number] = stream_id
        self.first[number] = self.end[number] = self._ended.pop(stream_id, 0)
        self.windows[number] = self.touched[number] = 0
        self.lost[number] = False
        self.write_at[number] = self.window_at[number] = NONE
        self.chunks[number] = []
        return number

    def _widen(self) -> None:
        more = len(self.ids)
        for name in ("ids", "first", "end", "windows", "write_at", "window_at", "touched", "lost"):
            setattr(self, name, np.pad(getattr(self, name), (0, more), constant_values=NONE))


def rounds_of(streams: Sequence[int]) -> list[list[int]]:
    """Rows in groups without a stream twice: the first step of each stream, then the second, and so on."""
    rounds: list[list[int]] = []
    seen: dict[int, int] = {}
    for row, stream in enumerate(streams):
        turn = seen.get(stream, 0)
        seen[stream] = turn + 1
        if turn == len(rounds):
            rounds.append([])
        rounds[turn].append(row)
    return rounds
