"""The building blocks of the schema: the base class of groups, and types that parse user input."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict


def _whole(value: Any) -> Any:
    """Convert a whole float such as 2e4 to an integer. The integer type rejects other floats."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if hasattr(value, "__index__") and not isinstance(value, bool):
        return operator.index(value)  # NumPy integers
    return value


def infinity(value: Any) -> Any:
    """Accept "inf" besides YAML's .inf."""
    return math.inf if value == "inf" else value


def as_tuple(value: Any) -> Any:
    """Convert a list, or a single integer, to a tuple."""
    if isinstance(value, int) and not isinstance(value, bool):
        return (value,)
    return tuple(value) if isinstance(value, list) else value


def absolute_path(value: Any) -> Any:
    """Make a path absolute now, because environments may change the working directory.

    A path that starts with ~ is kept, because home folders differ between machines.
    """
    if not isinstance(value, str | PathLike):
        return value
    text = fspath(value)
    return text if not text or text.startswith("~") else str(Path(text).absolute())


@dataclass(frozen=True)
class Fixed:
    """Annotation of a key that cannot change once the run has a snapshot. All other keys can."""

    by: str  # one or two words for the reference of keys
    why: str
    instead: str = ""  # the alternative for a new run


TASK = Fixed("task", "it is part of the task that the run's steps and scores belong to")
AGENT = Fixed("agent", "it selects the saved agent")
NETWORKS = Fixed(
    "networks",
    "the saved weights and statistics depend on it",
    " (run.from_checkpoint={run} loads the weights that fit)",
)
FIRST_WEIGHTS = Fixed("first weights", "it scales only the initial weights, and the saved weights are trained")

Whole = Annotated[int, BeforeValidator(_whole)]
Folder = Annotated[str, BeforeValidator(absolute_path)]


class Group(BaseModel):
    """Base class of configuration groups: immutable, and without unknown keys."""

    # Values are already typed. Without strict mode, True would be accepted as 1 and "yes" as True.
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
