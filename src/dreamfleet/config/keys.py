"""Configuration keys as dotted paths, from the schema or from nested values."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from dreamfleet.config.base import Fixed
from dreamfleet.config.schema import Config
from dreamfleet.core.errors import ConfigError

FREE = ("env.kwargs.", "env.read.")  # prefixes of keys that continue with names of the environment
_PLAIN = re.compile(r"[A-Za-z0-9_.-]*")


def known_keys() -> list[str]:
    """Return every key that can be set, including groups with a name."""
    return [key for key, field in walk(Config) if not (group := group_of(field)) or "name" in group.model_fields]


def walk(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Yield every key and group with its field. A group comes before its keys."""
    for name, field in model.model_fields.items():
        yield prefix + name, field
        if group := group_of(field):
            yield from walk(group, f"{prefix}{name}.")


def group_of(field: FieldInfo) -> type[BaseModel] | None:
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def fixed(key: str) -> Fixed | None:
    """Return why a key cannot change once the run has a snapshot, or None if it can."""
    fields = dict(walk(Config))
    while key not in fields:  # inside a mapping with free keys
        key = key.rpartition(".")[0]
    return next((mark for mark in fields[key].metadata if isinstance(mark, Fixed)), None)


def flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the leaf values of nested mappings. An empty mapping is a leaf."""
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield prefix + str(name), value


def is_pattern(key: str) -> bool:
    """Return whether the key is a regular expression, that is, has a character that plain keys do not have."""
    return not _PLAIN.fullmatch(key) and not key.startswith(FREE)


def matching_keys(pattern: str) -> list[str]:
    """Return the keys that the pattern fully matches. Raise an error if there are none."""
    try:
        expression = re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"config key '{pattern}' is not a regular expression: {error}") from None
    keys = [key for key, field in walk(Config) if not group_of(field)]
    found = [key for key in keys if expression.fullmatch(key)]
    if not found:
        raise ConfigError(
            f"no config key matches '{pattern}': a regular expression must match a whole key, such as "
            r"'agent\..*\.units=512'"
        )
    return found
