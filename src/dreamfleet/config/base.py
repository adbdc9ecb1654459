"""What every part of the configuration is made of: the group, and the types that read what people write."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict


def _whole(value: Any) -> Any:
    """Lets 2e4 be an integer. A fraction goes on unchanged and is refused by the integer type."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if hasattr(value, "__index__") and not isinstance(value, bool):
        return operator.index(value)  # NumPy integers
    return value


def infinity(value: Any) -> Any:
    """YAML writes it .inf, people inf."""
    return math.inf if value == "inf" else value


def as_tuple(value: Any) -> Any:
    """YAML has lists only; one number is a list of one."""
    if isinstance(value, int) and not isinstance(value, bool):
        return (value,)
    return tuple(value) if isinstance(value, list) else value


def absolute_path(value: Any) -> Any:
    """Where a relative path leads now: environments may take their process to another folder. One in somebody's home
    stays as it is, since homes differ by machine.
    """
    if not isinstance(value, str | PathLike):
        return value
    text = fspath(value)
    return text if not text or text.startswith("~") else str(Path(text).absolute())


@dataclass(frozen=True)
class Fixed:
    """Marks a key, in its annotation, that cannot change in a run that holds a snapshot. All other keys can."""

    by: str  # one word or two, for the reference of all keys
    why: str
    instead: str = ""  # what another run can do


TASK = Fixed("task", "it is part of the task that the run's steps and scores are of")
AGENT = Fixed("agent", "it is the agent that was saved")
NETWORKS = Fixed(
    "networks",
    "the saved weights and statistics are made for it",
    " (run.from_checkpoint={run} takes over the weights that fit)",
)
FIRST_WEIGHTS = Fixed("first weights", "it scales the first weights only, and the saved ones are trained")

Whole = Annotated[int, BeforeValidator(_whole)]
Folder = Annotated[str, BeforeValidator(absolute_path)]


class Group(BaseModel):
    """A part of the configuration: cannot be changed once built and refuses keys it does not know."""

    # Strict, because values arrive with a type: without it True would pass as 1 and "yes" as True.
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
