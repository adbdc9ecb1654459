"""Holds a value against its Gymnasium space: says all that is wrong with it and returns one that fits.

Gymnasium's own `contains` answers only yes or no, and accepts some things that mean trouble.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from dreamfleet.envs.clipping import ADVICE
from dreamfleet.envs.gym_encoding import bounds
from dreamfleet.envs.inspection.violations import Violations


def fit(space: spaces.Space[Any], value: Any, path: str, found: Violations) -> Any:
    """`path` is the value's place inside a Dict or Tuple, joined by "/"."""
    if isinstance(space, spaces.Dict):
        return _fit_dict(space, value, path, found)
    if isinstance(space, spaces.Tuple):
        return _fit_tuple(space, value, path, found)
    limits = bounds(space)
    return value if limits is None else _fit_array(space, *limits, value, path, found)


def _join(path: str, name: object) -> str:
    return f"{path}/{name}" if path else str(name)


def _where(path: str) -> str:
    return f"observation {path!r}" if path else "observation"


def _fit_dict(space: spaces.Dict, value: Any, path: str, found: Violations) -> Any:
    if not isinstance(value, Mapping):
        found.add("type", _where(path), f"a {_type(value)} instead of a dict", f"return a dict with {list(space)}")
        value = {}
    elif missing := [key for key in space if key not in value]:
        found.add("missing", _where(path), f"lacks {missing}", "return every key that observation_space declares")
    if extra := [key for key in value if key not in space.spaces]:
        found.add("undeclared", _where(path), f"has {extra} besides", "declare them in observation_space or drop them")
    fitted = {}
    for key, part in space.spaces.items():
        inner = _join(path, key)
        fitted[key] = fit(part, value[key], inner, found) if key in value else _neutral_of(part)
    return fitted


def _fit_tuple(space: spaces.Tuple[Any], value: Any, path: str, found: Violations) -> Any:
    if not isinstance(value, (tuple, list)) or len(value) != len(space.spaces):
        size = f" of {len(value)}" if isinstance(value, (tuple, list)) else ""
        wanted = f"a tuple of {len(space.spaces)}"
        found.add("type", _where(path), f"a {_type(value)}{size} instead of {wanted}", f"return {wanted}")
        return tuple(_neutral_of(part) for part in space.spaces)
    return tuple(
        fit(part, inner, _join(path, number), found)
        for number, (part, inner) in enumerate(zip(space.spaces, value, strict=True))
    )


def _fit_array(space: spaces.Space[Any], low: Any, high: Any, value: Any, path: str, found: Violations) -> np.ndarray:
    where, dtype, shape = _where(path), np.dtype(space.dtype), tuple(space.shape or ())
    array = _as_array(value)
    plain_scalar = isinstance(value, (int, float)) and not shape
    if array is None or not (plain_scalar or isinstance(value, (np.ndarray, np.generic))):
        found.add("type", where, f"a {_type(value)}", f"return np.asarray(..., np.{dtype})")
        if array is None:
            return _neutral(dtype, shape, low, high)
    elif not _castable(array.dtype, space) and not (plain_scalar and array.dtype.kind == dtype.kind):
        fix = f"return it with .astype(np.{dtype}), or declare {array.dtype} in observation_space"
        found.add("dtype", where, f"dtype {array.dtype} instead of {dtype}", fix)
    if array.shape != shape:
        fix = "return the shape that observation_space declares, or declare the one returned"
        found.add("shape", where, f"shape {array.shape} instead of {shape}", fix)
        return _neutral(dtype, shape, low, high)
    if array.dtype.kind == "f" and np.isnan(array).any():
        fix = "look for what divides by zero or has no value yet, or use np.nan_to_num"
        found.add("nan", where, f"{np.isnan(array).sum()} of {array.size} values are NaN", fix)
        array = np.nan_to_num(array)
    return _inside(array, dtype, low, high, where, found)


def _inside(array: np.ndarray, dtype: np.dtype, low: Any, high: Any, where: str, found: Violations) -> np.ndarray:
    if np.can_cast(array.dtype, dtype, "same_kind"):
        array = array.astype(dtype)
    # As the agent sees it: a float64 just beyond a bound is at it.
    with np.errstate(over="ignore"):
        seen, least, most = (np.asarray(part, np.float32 if dtype.kind == "f" else None) for part in (array, low, high))
    outside = (seen < least) | (seen > most)
    if outside.any():
        at = np.unravel_index(int(outside.argmax()), array.shape)
        place = f" at {[int(n) for n in at]}" if array.ndim else ""
        value, least, most = (np.broadcast_to(part, array.shape)[at] for part in (seen, least, most))
        fix = f"widen the bounds in observation_space or clip what is returned, or {ADVICE}"
        problem = f"value {_digits(value)}{place} outside {_digits(least)} to {_digits(most)}"
        found.add("bounds", where, problem, fix)
    return np.asarray(np.clip(array, low, high), dtype)


def _digits(number: Any) -> str:
    """As few digits as tell it from its neighbours."""
    short = f"{number:g}"
    return short if type(number)(short) == number else str(number)


def _as_array(value: Any) -> np.ndarray | None:
    """None for what has no numbers."""
    try:
        array = np.asarray(value)
    except ValueError:  # rows of different lengths
        return None
    return array if array.dtype.kind in "biuf" else None


def _castable(dtype: np.dtype, space: spaces.Space[Any]) -> bool:
    """Whether nothing can get lost, which is what Gymnasium asks. Where numbers are names, any integer will do."""
    if not isinstance(space, spaces.Box) and dtype.kind in "iub":
        return True
    return bool(np.can_cast(dtype, np.dtype(space.dtype)))


def _neutral_of(space: spaces.Space[Any]) -> Any:
    return fit(space, space.sample(), "", Violations())


def _neutral(dtype: Any, shape: Any, low: Any, high: Any) -> np.ndarray:
    return np.asarray(np.clip(np.zeros(shape), low, high), dtype)


def _type(value: Any) -> str:
    return type(value).__name__
