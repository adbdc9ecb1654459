"""A configuration in the making: nested values, changed key by key, that know where each of them comes from."""

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
    """Starts from the defaults, or from what a run has been configured with.

    A key is a dotted path, or a regular expression that matches some. Naming a group sets its `name`. Another name
    brings the group's other keys back to their defaults, since they were those of the one before, unless both are of
    one suite or module, which is what stands before the colon. Below `env.kwargs` and `env.read` any key goes.

    On a run's configuration, a name that the run has brings the keys back to the run's instead. So the words that have
    made a configuration change nothing on top of it.
    """

    def __init__(self, base: Config | None = None) -> None:
        self.values: dict[str, Any] = (base or Config()).model_dump()
        self._base = base.model_dump() if base else None
        self._named: dict[str, str] = {}  # names set so far, by the prefix of their group
        self.origins: dict[str, str] = {}  # of what was set, by key; the last part of a key may stand for all below it
        if base:
            defaults = dict(flatten(Config().model_dump()))
            changed = (key for key, value in flatten(self.values) if key not in defaults or defaults[key] != value)
            self.origins = dict.fromkeys(changed, RUN_FOLDER)
        self._base_origins = dict(self.origins)

    def set(self, key: str, value: Any, origin: str) -> None:
        """The schema decides which keys exist; whether the value suits is seen when the whole is built."""
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
            # The name first, which resets the rest, and the size before what it sets.
            for name, inner in sorted(value.items(), key=lambda item: (item[0] != "name", item[0] != "size")):
                self.set(f"{key}.{name}", inner, origin)
        elif "name" in model.model_fields:
            self._set_name(values, model, f"{key}.", value, origin)
        else:
            example = next(iter(model.model_fields))
            raise ConfigError(f"'{key}' is a group of config keys: set one of them, such as {key}.{example}=...")

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
        for name in parents:  # only a mapping of free keys has something below it
            values = values.setdefault(name, {})
            if not isinstance(values, dict):
                raise unknown_key(key, known_keys())
        values[last] = copy.deepcopy(value)  # a mapping may be added to later
        self._forget(f"{key}.")
        self.origins[key] = origin
        if key == "agent.size" and value in SIZES:
            for inner, number in SIZES[value].keys().items():
                self.set(f"agent.{inner}", number, SIZE)

    def _forget(self, prefix: str) -> None:
        self.origins = {key: origin for key, origin in self.origins.items() if not key.startswith(prefix)}


def origin_of(origins: Mapping[str, str], key: str) -> str:
    """Of a single value: its own, or that of the mapping it came in."""
    while key:
        if key in origins:
            return origins[key]
        key = key.rpartition(".")[0]
    return DEFAULT


def _home(name: Any) -> str:
    return str(name).partition(":")[0]
