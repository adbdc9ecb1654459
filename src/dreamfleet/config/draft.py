"""A mutable configuration that is built key by key and tracks the origin of each value."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from dreamfleet.config.errors import explain, unknown_key
from dreamfleet.config.keys import flatten, group_of, is_pattern, known_keys, matching_keys
from dreamfleet.config.schema import Config
from dreamfleet.core.errors import ConfigError
from dreamfleet.core.hyperparameters import SIZES

DEFAULT, RUN_FOLDER, OVERRIDE, SIZE = "default", "run folder", "override", "agent.size"


class Draft:
    """A configuration under construction. It starts from the defaults or from the configuration of a run.

    A key is a dotted path or a regular expression. Setting a group sets its `name`. A new name resets the group's
    other keys to their defaults, unless both names have the same suite or module, the part before the colon. Keys
    below `env.kwargs` and `env.read` are free.

    If the base is a run's configuration, setting the run's own name resets the keys to the run's values. Repeating the
    original arguments therefore changes nothing.
    """

    def __init__(self, base: Config | None = None) -> None:
        self.values: dict[str, Any] = (base or Config()).model_dump()
        self._base = base.model_dump() if base else None
        self._named: dict[str, str] = {}  # names set so far, by group prefix
        self.origins: dict[str, str] = {}  # by key; a mapping's key covers all keys below it
        if base:
            defaults = dict(flatten(Config().model_dump()))
            changed = (key for key, value in flatten(self.values) if key not in defaults or defaults[key] != value)
            self.origins = dict.fromkeys(changed, RUN_FOLDER)
        self._base_origins = dict(self.origins)

    def set(self, key: str, value: Any, origin: str) -> None:
        """Set a key. Unknown keys raise an error now, invalid values in `build`."""
        if is_pattern(key):
            for match in matching_keys(key):
                self.set(match, value, origin)
            return
        values, model = self.values, Config  # type: tuple[dict[str, Any], type[BaseModel]]
        names = key.split(".")
        for depth, name in enumerate(names):
            field = model.model_fields.get(name)
            if field is None:
                raise unknown_key(key, known_keys())
            group = group_of(field)
            if group is None and names[depth:] == ["name"]:
                self._set_name(values, model, key.removesuffix("name"), value, origin)
                return
            if group is None:
                self._set_leaf(values, key, names[depth:], value, origin)
                return
            values, model = values[name], group
        self._set_group(values, model, key, value, origin)

    def build(self) -> Config:
        try:
            return Config(**self.values)
        except ValidationError as error:
            raise explain(error) from None

    def _set_group(self, values: dict[str, Any], model: type[BaseModel], key: str, value: Any, origin: str) -> None:
        if isinstance(value, Mapping):
            # Set the name first because it resets the rest, and the size before the keys that it sets.
            for name, inner in sorted(value.items(), key=lambda item: (item[0] != "name", item[0] != "size")):
                self.set(f"{key}.{name}", inner, origin)
        elif "name" in model.model_fields:
            self._set_name(values, model, f"{key}.", value, origin)
        else:
            example = next(iter(model.model_fields))
            raise ConfigError(f"'{key}' is a group of config keys: set one of its keys, such as {key}.{example}=...")

    def _set_name(self, values: dict[str, Any], model: type[BaseModel], prefix: str, name: Any, origin: str) -> None:
        before = self._named.get(prefix, model().model_dump()["name"])
        if {_home(values["name"]), _home(before)} != {_home(name)}:
            self._restart_group(values, model, prefix, name)
        self._named[prefix] = name
        values["name"] = name
        self.origins[f"{prefix}name"] = origin

    def _restart_group(self, values: dict[str, Any], model: type[BaseModel], prefix: str, name: Any) -> None:
        self._forget(prefix)
        begun = self._base[prefix.removesuffix(".")] if self._base else None
        if begun and _home(begun["name"]) == _home(name):
            values.update(copy.deepcopy(begun))
            self.origins |= {key: origin for key, origin in self._base_origins.items() if key.startswith(prefix)}
        else:
            values.update(model().model_dump())

    def _set_leaf(self, values: dict[str, Any], key: str, names: list[str], value: Any, origin: str) -> None:
        *parents, last = names
        for name in parents:  # only mappings with free keys have keys below them
            values = values.setdefault(name, {})
            if not isinstance(values, dict):
                raise unknown_key(key, known_keys())
        values[last] = copy.deepcopy(value)  # a later override may add to a mapping
        self._forget(f"{key}.")
        self.origins[key] = origin
        if key == "agent.size" and value in SIZES:
            for inner, number in SIZES[value].keys().items():
                self.set(f"agent.{inner}", number, SIZE)

    def _forget(self, prefix: str) -> None:
        self.origins = {key: origin for key, origin in self.origins.items() if not key.startswith(prefix)}


def origin_of(origins: Mapping[str, str], key: str) -> str:
    """Return the origin of a value, or of the mapping that contains it."""
    while key:
        if key in origins:
            return origins[key]
        key = key.rpartition(".")[0]
    return DEFAULT


def _home(name: Any) -> str:
    return str(name).partition(":")[0]
