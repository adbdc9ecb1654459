"""The types of keys that hold lists and mappings, as people write them on a command line or in a file."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from dreamfleet.config.base import Whole

WRAPPER = "module:Class or module:Class: {argument: value}"


def _list(value: Any) -> Any:
    """YAML has lists only; a text or a number alone is a list of one."""
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        return (value,)
    return tuple(value) if isinstance(value, list) else value


def _name(value: Any) -> Any:
    """Parts of a Tuple are named by numbers."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _wrappers(value: Any) -> Any:
    found = _list(value)
    if not isinstance(found, tuple):
        raise ValueError(f"config key 'env.wrappers' cannot be {value!r}: expected a list of {WRAPPER}")
    return tuple(_wrapper(item) for item in found)


def _wrapper(item: Any) -> Any:
    """A name alone, or a mapping of one name to its keyword arguments."""
    name, arguments = next(iter(item.items())) if isinstance(item, dict) and len(item) == 1 else (item, {})
    if not isinstance(name, str) or not all(name.partition(":")) or not isinstance(arguments, dict | None):
        raise ValueError(f"config key 'env.wrappers' cannot hold {item!r}: expected {WRAPPER}")
    return {name: arguments} if arguments else name


Name = Annotated[str, BeforeValidator(_name)]
Names = Annotated[tuple[Name, ...], BeforeValidator(_list)]
Numbers = Annotated[tuple[float, ...], BeforeValidator(_list)]
Counts = dict[Name, Annotated[Whole, Field(ge=1)]]
Wrappers = Annotated[tuple[str | dict[str, dict[str, Any]], ...], BeforeValidator(_wrappers)]
