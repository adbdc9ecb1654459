"""Builds the configuration from `key=value` overrides, and saves and loads it as `config.yaml`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from dreamfleet.config.errors import explain, unknown_key
from dreamfleet.config.schema import Config
from dreamfleet.config.syntax import dump_yaml, parse_yaml
from dreamfleet.core.errors import ConfigError
from dreamfleet.core.hyperparameters import SIZES


def parse_overrides(overrides: Sequence[str], base: Config | None = None) -> Config:
    """Applies `key=value` texts in order on top of `base` or the defaults; the last one of a key counts.

    A key is a dotted path. Naming a group sets its `name`: `agent=random` is `agent.name=random`. Another name brings
    the group's other keys back to their defaults: they were those of the one before. Below `env.kwargs` any key goes. A
    value is a YAML scalar, list or mapping.
    """
    values = (base or Config()).model_dump()
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals or not key:
            raise ConfigError(f"cannot read '{override}': expected key=value, such as run.steps=2e4")
        try:
            value = parse_yaml(text)
        except yaml.YAMLError:
            raise ConfigError(f"cannot read the value of '{override}': put quotes around it") from None
        _assign(values, key, value)
    return _build(values)


def save_config(config: Config, path: str | Path) -> None:
    """Written aside and renamed: the file is never half a configuration."""
    path = Path(path)
    aside = path.with_name(f".{path.name}.new")
    aside.write_text(dump_yaml(config.model_dump()), encoding="utf-8")
    aside.replace(path)


def load_config(path: str | Path) -> Config:
    """Reads what `save_config` wrote; a key that the file lacks gets its default."""
    try:
        loaded = parse_yaml(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"cannot read the configuration {path}: {error}") from error
    if not isinstance(loaded, dict):
        raise ConfigError(f"{path} is not a configuration: expected keys and values at its top")
    values = Config().model_dump()
    for key, value in loaded.items():
        _assign(values, str(key), value)
    return _build(values)


def known_keys() -> list[str]:
    """Every key that can be set, as a dotted path; a group that has a name is one too."""
    return list(_schema_keys(Config))


def _schema_keys(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        group = _group(field)
        if group is None or "name" in group.model_fields:
            yield prefix + name
        if group is not None:
            yield from _schema_keys(group, f"{prefix}{name}.")


def _group(field: FieldInfo) -> type[BaseModel] | None:
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def _assign(root: dict[str, Any], key: str, value: Any) -> None:
    """Puts `value` at `key` into the nested values; the schema decides which keys exist."""
    values = root
    model: type[BaseModel] = Config
    names = key.split(".")
    for depth, name in enumerate(names):
        field = model.model_fields.get(name)
        if field is None:
            raise unknown_key(key, known_keys())
        group = _group(field)
        if group is None and names[depth:] == ["name"]:
            _assign_name(values, model, value)
            return
        if group is None:
            _assign_leaf(values, key, names[depth:], value)
            if key == "agent.size" and value in SIZES:
                for inner, number in SIZES[value].keys().items():
                    _assign(root, f"agent.{inner}", number)
            return
        values, model = values[name], group
    if isinstance(value, Mapping):
        # The name first, which resets the rest, and the size before what it sets.
        for name, inner in sorted(value.items(), key=lambda item: (item[0] != "name", item[0] != "size")):
            _assign(root, f"{key}.{name}", inner)
    elif "name" in model.model_fields:
        _assign_name(values, model, value)
    else:
        example = next(iter(model.model_fields))
        raise ConfigError(f"'{key}' is a group of config keys: set one of them, such as {key}.{example}=...")


def _assign_name(values: dict[str, Any], model: type[BaseModel], name: Any) -> None:
    if name != values["name"]:
        values.update(model().model_dump())
    values["name"] = name


def _assign_leaf(values: dict[str, Any], key: str, names: list[str], value: Any) -> None:
    *parents, last = names
    for name in parents:  # only a mapping of free keys has something below it
        values = values.setdefault(name, {})
        if not isinstance(values, dict):
            raise unknown_key(key, known_keys())
    values[last] = value


def _build(values: dict[str, Any]) -> Config:
    try:
        return Config(**values)
    except ValidationError as error:
        raise explain(error) from None
