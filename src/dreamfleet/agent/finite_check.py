"""Notices a loss or gradient that is not finite, without waiting for the device."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dreamfleet.checkpoint.arrays import save_arrays
from dreamfleet.core.errors import NonFinite
from dreamfleet.core.interfaces import Arrays

MAX_BEHIND = 16  # updates whose numbers may be on their way


class FiniteCheck:
    """Takes one small array per update and looks at those that have arrived. Keeps the way to the batch until then."""

    def __init__(self, names: Sequence[str], folder: Path | None) -> None:
        self._names = list(names)
        self._folder = folder
        self._open: deque[tuple[int, Any, Callable[[], Arrays]]] = deque()
        self._updates = 0

    def add(self, numbers: Any, batch: Callable[[], Arrays]) -> None:
        self._updates += 1
        self._open.append((self._updates, numbers, batch))
        while self._open and (len(self._open) > MAX_BEHIND or self._open[0][1].is_ready()):
            self._check(*self._open.popleft())

    def drain(self) -> None:
        """Wait for the numbers of every update so far and check them."""
        while self._open:
            self._check(*self._open.popleft())

    def _check(self, update: int, numbers: Any, batch: Callable[[], Arrays]) -> None:
        values = np.asarray(numbers)
        if np.isfinite(values).all():
            return
        bad = [name for name, value in zip(self._names, values.tolist(), strict=True) if not np.isfinite(value)]
        raise NonFinite(
            f"update {update} since the start is not finite in {bad[0]}{self._others(bad)}: {self._keep(update, batch)}"
            "lower agent.opt.lr, or look for damaged observations or rewards"
        )

    def _others(self, bad: Sequence[str]) -> str:
        return f" and {len(bad) - 1} others" if len(bad) > 1 else ""

    def _keep(self, update: int, batch: Callable[[], Arrays]) -> str:
        if self._folder is None:
            return ""
        path = self._folder / f"nonfinite-{update}.safetensors"
        save_arrays(path, batch())
        return f"its batch is in {path}; "
