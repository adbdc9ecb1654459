"""The priorities of steps and the weights of windows that follow from them, for replays that draw by priority."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from dreamfleet.replay.columns import Column, reserve
from dreamfleet.replay.memory import Memory, WindowReader
from dreamfleet.replay.selectors import Prioritized

WEIGHED_AT_ONCE = 4096  # windows: their steps' priorities are gathered first


class StepPriorities:
    """Belongs to a store, whose lock guards it. Steps begin with the selector's initial priority."""

    def __init__(self, memory: Memory, selector: Prioritized, length: int) -> None:
        self._memory = memory
        self._selector = selector
        self._length = length
        steps = memory.columns.chunks * memory.chunksize
        self._of_step = reserve(steps, Column(np.dtype(np.float32), ()))
        self._window_at = reserve(steps, Column(np.dtype(np.int64), ()))  # the window that begins at an address, plus 1

    @property
    def zero_on_sample(self) -> bool:
        return self._selector.zero_on_sample

    @property
    def initial(self) -> float:
        return self._selector.initial

    def begin(self, addresses: np.ndarray) -> None:
        self._of_step[addresses] = self._selector.initial

    def add_windows(self, windows: np.ndarray, begins: np.ndarray) -> None:
        self._window_at[begins] = windows + 1
        for at in range(0, len(windows), WEIGHED_AT_ONCE):
            part = slice(at, at + WEIGHED_AT_ONCE)
            reader = WindowReader(self._memory, begins[part], self._length)
            self._selector.set_weights(windows[part], self._selector.weigh(self._of_step[reader.addresses]))

    def set(self, stream_id: int, start: int, priorities: np.ndarray) -> None:
        """Gives steps `start` on of a stream their priorities; steps that are gone are passed over."""
        streams = self._memory.streams
        number = streams.number(stream_id)
        if number is None:
            return
        for address, place, size in streams.spans(number, start, len(priorities)):
            self._of_step[address : address + size] = priorities[place : place + size]
        self._weigh_again(number, start, start + len(priorities))

    def zero_drawn(self, begins: np.ndarray) -> None:
        """Takes the priority from the steps of windows that the selector has drawn since the last call."""
        drawn, self._selector.drawn = self._selector.drawn, []
        for window in drawn:
            begin = int(begins[window % len(begins)])
            chunk, offset = divmod(begin, self._memory.chunksize)
            number = int(self._memory.table.owner[chunk])
            start = int(self._memory.table.start[chunk]) + offset
            for address, _, size in self._memory.streams.spans(number, start, self._length):
                self._of_step[address : address + size] = 0.0
            self._weigh_again(number, start, start + self._length)

    def save(self, chunks: Sequence[tuple[int, int]]) -> np.ndarray:
        """The priorities of the first steps of chunks, given as (chunk, steps), one after the other."""
        size = self._memory.chunksize
        parts = [self._of_step[chunk * size : chunk * size + steps] for chunk, steps in chunks]
        return np.concatenate([np.zeros(0, np.float32), *parts])

    def load(self, chunk: int, priorities: np.ndarray) -> None:
        start = chunk * self._memory.chunksize
        self._of_step[start : start + len(priorities)] = priorities

    def _weigh_again(self, number: int, start: int, stop: int) -> None:
        """All windows that contain one of these steps. Some are lacking if a restore made windows shorter."""
        streams = self._memory.streams
        begin = max(int(streams.first[number]), start - self._length + 1)
        end = min(stop, int(streams.end[number]) - self._length + 1)
        if begin >= end:
            return
        steps = self._gather(self._of_step, number, begin, end - begin + self._length - 1)
        windows = self._gather(self._window_at, number, begin, end - begin) - 1
        weights = self._selector.weigh(sliding_window_view(steps, self._length))
        self._selector.set_weights(windows[windows >= 0], weights[windows >= 0])

    def _gather(self, array: np.ndarray, number: int, start: int, count: int) -> np.ndarray:
        spans = self._memory.streams.spans(number, start, count)
        return np.concatenate([array[address : address + size] for address, _, size in spans])
