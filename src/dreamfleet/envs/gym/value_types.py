"""The forms in which environments return values: which are converted on the way to the agent, which are refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dreamfleet.core.errors import EnvError

NUMPY = (np.ndarray, np.generic)
PLAIN = (bool, int, float)
FINAL_OBS = "final_obs"  # in the infos of Gymnasium: the last observation of a row that has begun again


def conversion(value: Any, array: np.ndarray, space: Any) -> str | None:
    """In which form a value of `space` came that had to become `array`; None for one that Gymnasium takes, too."""
    if isinstance(value, NUMPY):
        same = array.dtype == space.dtype or (array.dtype.kind in "iub" and not _is_box(space))
        return None if same else f"{array.dtype}, not {space.dtype}: it is converted"
    if isinstance(value, PLAIN):
        return None
    return f"{describe(value)}: it is converted to NumPy's {space.dtype}"


def describe(value: Any) -> str:
    kind = type(value)
    package = kind.__module__.partition(".")[0]
    return f"a {kind.__name__}" if package == "builtins" else f"{package}.{kind.__name__}"


def no_reward(value: Any, name: str) -> EnvError:
    return EnvError(f"{name}: step() returned {_shown(value)} as the reward: return a number")


def flag(value: Any, what: str, name: str) -> bool:
    """A flag that is no bool. None is false; arrays of one element, also those of a device, are what they hold."""
    if value is None:
        return False
    array = np.asarray(value)
    if array.size != 1 or array.dtype.kind not in "biuf":
        raise EnvError(f"{name}: step() returned {_shown(value)} as {what}: return bool({what})")
    return bool(array.reshape(())[()])


def rows_of(values: Any, dtype: Any, rows: int, what: str, name: str) -> np.ndarray:
    """A copy of what a batch returned, one value for each row."""
    try:
        array = np.array(values, dtype)
    except (TypeError, ValueError):
        array = np.array(None)
    if array.shape != (rows,):
        raise EnvError(f"{name}: step() returned {_shown(values)} as {what}: return an array of {rows} values")
    return array


def expect_info(info: Any, name: str) -> None:
    if not isinstance(info, Mapping):
        raise EnvError(f"{name}: step() returned {_shown(info)} as info: return a dict")


def _shown(value: Any) -> str:
    if value is None:
        return "None"
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape} and dtype {value.dtype}"
    return f"{str(value)[:40]!r} ({describe(value)})"


def _is_box(space: Any) -> bool:
    return hasattr(space, "low")
