"""The priorities of steps and the weights of windows that follow from them, for replays that draw by priority."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dreamfleet.replay.columns import Column, reserve
from dreamfleet.replay.memory import ChunkMemory, WindowReader
from dreamfleet.replay.selectors import Prioritized

WEIGHED_AT_ONCE = 4096  # windows: their steps' priorities are gathered first


class StepPriorities:
    """Belongs to a store, whose lock guards it. Steps begin with the selector's initial priority.

    New windows get their weights, and evicted ones lose theirs, only when `weigh_added` is called before a draw, or
    when many have come together: inserting a step then costs little more than without priorities.
    """

    def __init__(self, memory: ChunkMemory, selector: Prioritized, length: int, begins: np.ndarray) -> None:
        """`begins` is where windows begin, by number modulo its size."""
        self._memory = memory
        self._selector = selector
        self._length = length
        self._begins = begins
        steps = memory.columns.chunks * memory.chunksize
        self._of_step = reserve(steps, Column(np.dtype(np.float32), ()))
        self._window_at = reserve(steps, Column(np.dtype(np.int64), ()))  # the window that begins at an address, plus 1
        self._first = 0  # of the windows held
        self._weighed = 0, 0  # windows whose weights are set: from, to
        self._end = 0
        selector.take = self._take if selector.zero_on_sample else None

    def begin(self, addresses: np.ndarray) -> None:
        self._of_step[addresses] = self._selector.initial

    def add_windows(self, windows: np.ndarray, begins: np.ndarray) -> None:
        """These are the newest windows, and the store knows by now where they begin."""
        self._window_at[begins] = windows + 1
        self._end += len(windows)
        if self._end - self._weighed[1] >= WEIGHED_AT_ONCE:
            self.weigh_added()

    def evict(self, first: int) -> None:
        """From now on `first` is the oldest window."""
        self._first = first
        self._end = max(self._end, first)

    def weigh_added(self) -> None:
        """Takes the weights from windows that were evicted since the last call, and then gives them to the new ones,
        which may have their places in the tree.
        """
        begin, end = self._weighed
        self._selector.remove(begin, min(end, self._first))
        for part in range(max(end, self._first), self._end, WEIGHED_AT_ONCE):
            windows = np.arange(part, min(part + WEIGHED_AT_ONCE, self._end))
            reader = WindowReader(self._memory, self._begins[windows % len(self._begins)], self._length)
            weights = self._selector.weigh(self._of_step[reader.addresses], self._length)
            self._selector.set_weights(windows, weights[:, 0])
        self._weighed = self._first, self._end

    def write(self, stepid: np.ndarray, priorities: np.ndarray) -> None:
        """Each row is a run of steps of one stream; steps that are gone are passed over."""
        steps = priorities.shape[1]
        runs = []
        for (stream_id, start), row in zip(stepid[:, 0].tolist(), priorities, strict=True):
            number = self._memory.streams.number(stream_id)
            if number is not None:
                runs.append((number, start))
                for address, place, size in self._memory.streams.spans(number, start, steps):
                    self._of_step[address : address + size] = row[place : place + size]
        self._weigh_again(runs, steps)

    def save(self, chunks: Sequence[tuple[int, int]]) -> np.ndarray:
        """The priorities of the first steps of chunks, given as (chunk, steps), one after the other."""
        size = self._memory.chunksize
        parts = [self._of_step[chunk * size : chunk * size + steps] for chunk, steps in chunks]
        return np.concatenate([np.zeros(0, np.float32), *parts])

    def load(self, chunk: int, priorities: np.ndarray | None, steps: int) -> None:
        """Of the first steps of a chunk. None: a snapshot that was taken without priorities, so they are new."""
        start = chunk * self._memory.chunksize
        self._of_step[start : start + steps] = self._selector.initial if priorities is None else priorities

    def _take(self, windows: np.ndarray) -> int:
        """See `Prioritized.take`."""
        chunks, offsets = np.divmod(self._begins[windows % len(self._begins)], self._memory.chunksize)
        numbers = self._memory.table.owner[chunks]
        starts = self._memory.table.start[chunks] + offsets
        shared = (numbers[:, None] == numbers) & (np.abs(starts[:, None] - starts) < self._length)
        late = np.flatnonzero(np.triu(shared, 1).any(0))
        count = int(late[0]) if len(late) else len(windows)
        runs = list(zip(numbers[:count].tolist(), starts[:count].tolist(), strict=True))
        for number, start in runs:
            for address, _, size in self._memory.streams.spans(number, start, self._length):
                self._of_step[address : address + size] = 0.0
        self._weigh_again(runs, self._length)
        return count

    def _weigh_again(self, runs: Sequence[tuple[int, int]], steps: int) -> None:
        """All windows with one of these steps, given as (number of the stream, first step). Some are lacking if a
        restore made windows shorter.
        """
        streams, before = self._memory.streams, self._length - 1
        priorities = np.zeros((len(runs), steps + 2 * before), np.float32)
        windows = np.zeros(priorities.shape, np.int64)
        for row, (number, start) in enumerate(runs):
            begin = start - before
            for address, place, size in streams.spans(number, begin, priorities.shape[1]):
                priorities[row, place : place + size] = self._of_step[address : address + size]
                windows[row, place : place + size] = self._window_at[address : address + size]
            windows[row, max(0, int(streams.end[number]) - before - begin) :] = 0  # where none is complete
        windows = windows[:, : steps + before]
        held = windows > 0
        weights = self._selector.weigh(priorities, self._length)
        self._selector.set_weights(windows[held] - 1, weights[held])
