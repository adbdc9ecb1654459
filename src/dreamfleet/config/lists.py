"""Types of keys with lists and mappings, which parse the values of users."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from dreamfleet.config.base import Whole

WRAPPER = "module:Class or module:Class: {argument: value}"


def _list(value: Any) -> Any:
    """Convert a list, or a single text or number, to a tuple."""
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        return (value,)
    return tuple(value) if isinstance(value, list) else value


def _name(value: Any) -> Any:
    """Convert an integer to text. The parts of a Tuple space are named by numbers."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _wrappers(value: Any) -> Any:
    found = _list(value)
    if not isinstance(found, tuple):
        raise ValueError(f"config key 'env.wrappers' cannot be {value!r}: expected a list of {WRAPPER}")
    return tuple(_wrapper(item) for item in found)


def _wrapper(item: Any) -> Any:
    """Parse a name, or a mapping from one name to its keyword arguments."""
    name, arguments = next(iter(item.items())) if isinstance(item, dict) and len(item) == 1 else (item, {})
    if not isinstance(name, str) or not all(name.partition(":")) or not isinstance(arguments, dict | None):
        raise ValueError(f"config key 'env.wrappers' cannot hold {item!r}: expected {WRAPPER}")
    return {name: arguments} if arguments else name


Name = Annotated[str, BeforeValidator(_name)]
Names = Annotated[tuple[Name, ...], BeforeValidator(_list)]
Numbers = Annotated[tuple[float, ...], BeforeValidator(_list)]
Counts = dict[Name, Annotated[Whole, Field(ge=1)]]
Wrappers = Annotated[tuple[str | dict[str, dict[str, Any]], ...], BeforeValidator(_wrappers)]
