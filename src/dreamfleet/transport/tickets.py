"""Keeps an order among threads: each is served by its ticket number, after all earlier ones."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Tickets:
    """Numbers are given out by `draw` and served by `take`, one at a time and without gaps.

    Every number drawn must be taken, whatever happened in between, or later ones wait forever.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()  # guards both counters
        self._drawn = 0
        self._served = 0

    def draw(self) -> int:
        with self._condition:
            self._drawn += 1
            return self._drawn - 1

    @contextmanager
    def take(self, number: int) -> Iterator[None]:
        with self._condition:
            self._condition.wait_for(lambda: self._served == number)
        try:
            yield
        finally:
            with self._condition:
                self._served += 1
                self._condition.notify_all()
