"""What an environment does against its contract: each kind once, with how often, where first, and what to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from dreamfleet.core.error_origin import headline, raised_at
from dreamfleet.core.errors import DreamfleetError, EnvFailed
from dreamfleet.envs.checks import Problem
from dreamfleet.envs.render.backend import hint


@dataclass
class Violation:
    kind: str  # one word, for machines: "shape", "dtype", "nan", ...
    where: str  # "observation 'image'", "reward", "step"
    problem: str  # of the first time
    fix: str
    first_step: int
    count: int = 1


class UnusableStep(Exception):
    """What was returned cannot be made into a step. The reason has been collected."""


class Violations:
    """Collects them while the environment goes on. `step` is the step that is being taken; resets belong to the step
    before them.
    """

    def __init__(self, on_new: Callable[[], None] = lambda: None) -> None:
        self.step = 0
        self._on_new = on_new
        self._found: dict[tuple[str, str, str], Violation] = {}

    def add(self, kind: str, where: str, problem: str, fix: str, place: str = "") -> None:
        known = self._found.get((kind, where, place))
        if known:
            known.count += 1
            return
        self._found[kind, where, place] = Violation(kind, where, problem, fix, self.step)
        self._on_new()

    def add_problem(self, problem: Problem) -> None:
        self.add(*problem)

    def add_error(self, where: str, error: Exception) -> None:
        """Ours say themselves what to do, those of the environment where they come from."""
        if isinstance(error, UnusableStep):
            return
        if isinstance(error, EnvFailed) and isinstance(error.__cause__, Exception):
            error = error.__cause__
        if isinstance(error, DreamfleetError):
            self.add("contract", where, one_line(error), "", type(error).__name__)
        else:
            place = raised_at(error)
            words = headline(error)
            self.add("exception", where, words, f"see {place}{hint(words)}", place)

    def __len__(self) -> int:
        return len(self._found)

    def to_json(self) -> list[dict[str, Any]]:
        return [asdict(violation) for violation in self._found.values()]


def one_line(error: Exception) -> str:
    return " ".join(str(error).split())
