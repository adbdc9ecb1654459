"""The keys of the configuration as dotted paths, found in the schema or in nested values."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from dreamfleet.config.base import Fixed
from dreamfleet.config.schema import Config
from dreamfleet.core.errors import ConfigError

FREE = ("env.kwargs.", "env.read.")  # how keys begin that go on as the environment names things
_PLAIN = re.compile(r"[A-Za-z0-9_.-]*")


def known_keys() -> list[str]:
    """Every key that can be set, as a dotted path; a group that has a name is one too."""
    return [key for key, field in walk(Config) if not (group := group_of(field)) or "name" in group.model_fields]


def walk(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Every key and group with its field, each group before what is in it."""
    for name, field in model.model_fields.items():
        yield prefix + name, field
        if group := group_of(field):
            yield from walk(group, f"{prefix}{name}.")


def group_of(field: FieldInfo) -> type[BaseModel] | None:
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def fixed(key: str) -> Fixed | None:
    """Why a key cannot change in a run that holds a snapshot; None if it can."""
    fields = dict(walk(Config))
    while key not in fields:  # below a mapping of free keys
        key = key.rpartition(".")[0]
    return next((mark for mark in fields[key].metadata if isinstance(mark, Fixed)), None)


def flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The single values of nested ones. An empty mapping counts as one."""
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield prefix + str(name), value


def is_pattern(key: str) -> bool:
    """Whether it is a regular expression: it has a character that no plain key has."""
    return not _PLAIN.fullmatch(key) and not key.startswith(FREE)


def matching_keys(pattern: str) -> list[str]:
    """The keys that match as a whole. Raises where none does."""
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
