"""Whether an environment does the same again under the same seed and the same actions."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dreamfleet.core.spaces import without_log
from dreamfleet.envs.inspection.rows import make_rows
from dreamfleet.envs.inspection.violations import Violations, one_line
from dreamfleet.envs.registry import Made

Doing = Callable[[str, int], None]  # what the environment is asked to do from now on, and at which step

STEPS, SECONDS = 200, 10.0


class Difference(Exception):
    """Where the second run left the first."""

    def __init__(self, key: str, step: int) -> None:
        super().__init__(key, step)
        self.key, self.step = key, step


def compare_runs(build: Callable[[], Made], doing: Doing) -> dict[str, Any]:
    """Two environments one after the other, since one may seed a generator that both share.

    `same` is None where there was nothing to compare.
    """
    steps: list[list[Mapping[str, Any]]] = []
    answer: dict[str, Any] = {"same": None, "steps": 0, "key": None, "step": None}
    try:
        _run(build, doing, lambda step, rows: steps.append([_copy(row) for row in rows]), STEPS)
        answer["steps"] = max(0, len(steps) - 1)
        taken, failed = _run(build, doing, lambda step, rows: _compare(step, steps[step], rows), len(steps))
        if failed and taken < len(steps):
            raise Difference("", taken)
        answer["steps"] = max(0, taken - 1)  # fewer where the second run was too slow for all of them
    except Difference as difference:
        return answer | {"same": False, "key": difference.key or None, "step": difference.step}
    except Exception as error:
        return answer | {"reason": f"{type(error).__name__}: {one_line(error)}"}
    return answer | {"same": True} if steps else answer


def _run(
    build: Callable[[], Made], doing: Doing, take: Callable[[int, list[Mapping[str, Any]]], None], most: int
) -> tuple[int, bool]:
    """Hands every step's rows to `take`. Returns how many there were, and whether an error ended them."""
    doing("construction", 0)
    rows = make_rows(build(), Violations(), [])
    rng = np.random.default_rng(1)
    deadline = time.monotonic() + SECONDS
    step, failed = 0, False
    try:
        while step < most and time.monotonic() < deadline:
            doing("step" if step else "reset", step)
            try:
                seen = rows.step(rng)
                seen = [*seen, *rows.begun().values()]
            except Exception:
                failed = True
                break
            take(step, seen)
            step += 1
    finally:
        doing("close", step)
        with contextlib.suppress(Exception):
            rows.env.close()
    return step, failed


def _copy(row: Mapping[str, Any]) -> dict[str, Any]:
    """An environment may write its next observation into the same array."""
    return {key: np.array(value) for key, value in without_log(row).items()}


def _compare(step: int, before: list[Mapping[str, Any]], now: list[Mapping[str, Any]]) -> None:
    if len(before) != len(now):
        raise Difference("is_last", step)
    for first, second in zip(before, now, strict=True):
        for key, value in first.items():
            if key not in second or not _equal(value, np.asarray(second[key])):
                raise Difference(key, step)


def _equal(first: np.ndarray, second: np.ndarray) -> bool:
    return first.dtype == second.dtype and np.array_equal(first, second, equal_nan=first.dtype.kind == "f")
