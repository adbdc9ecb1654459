"""Turns sampled windows into the batches that train and report steps expect."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dreamfleet.core.errors import ReplayError
from dreamfleet.core.interfaces import Arrays, Replay


class ReplayStream:
    """Cuts each window into `consec` chunks of `length` steps, every chunk with `context` steps before it.

    The key `consec` counts the chunks of a window, so that the agent knows when to carry its state over and when to
    start from the stored context.
    """

    def __init__(
        self, replay: Replay, mode: str, batch_size: int, length: int, consec: int = 1, context: int = 0
    ) -> None:
        self.replay = replay
        self.mode = mode
        self.batch_size = batch_size
        self.length = length
        self.consec = consec
        self.context = context
        self._window: Arrays = {}
        self._next = consec

    @property
    def window_length(self) -> int:
        return self.consec * self.length + self.context

    def __iter__(self) -> Iterator[Arrays]:
        return self

    def __next__(self) -> Arrays:
        if self._next >= self.consec:
            self._window = self.replay.sample(self.batch_size, self.mode)
            self._next = 0
            steps = self._window["is_first"].shape[1]
            if steps < self.window_length:
                raise ReplayError(
                    f"replay windows of {steps} steps are too short for mode {self.mode!r}, "
                    f"which needs {self.window_length}: lower batch_length, report_length or consec"
                )
        start = self._next * self.length
        stop = start + self.length + self.context
        steps = self._window["is_first"].shape[1]
        batch = {
            # Latents come for the context of the window alone, which is that of its first chunk.
            key: np.ascontiguousarray(value[:, start:stop]) if value.shape[1] == steps else value
            for key, value in self._window.items()
        }
        batch["consec"] = np.full(self.batch_size, self._next, np.int32)
        self._next += 1
        if self._next >= self.consec:
            self._window = {}
        return batch
