"""Build the configuration from presets and `key=value` overrides. Save and load it as `config.yaml`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from dreamfleet.config.checks import budget_problems
from dreamfleet.config.draft import OVERRIDE, RUN_FOLDER, Draft
from dreamfleet.config.presets import choose_presets
from dreamfleet.config.schema import Config
from dreamfleet.config.syntax import MissingValue, dump_yaml, parse_yaml
from dreamfleet.core.errors import ConfigError
from dreamfleet.core.files.bounded import read_bounded
from dreamfleet.core.files.disk import atomic_write

MAX_BYTES = 1 << 20  # size limit of a configuration file
MAX_VALUES = 100_000  # aliases count with all values that they expand to


class Resolved(NamedTuple):
    config: Config
    origins: Mapping[str, str]  # origin of each value by key; other keys have their defaults


def resolve(words: Sequence[str], base: Config | None = None) -> Resolved:
    """Apply presets (arguments without `=`) and then `key=value` overrides to `base` or the defaults.

    Both are applied in order. `Draft` describes the keys. A value is a YAML scalar, list or mapping.
    """
    draft = Draft(base)
    for preset in choose_presets([word for word in words if "=" not in word]):
        preset.apply(draft)
    for word in words:
        if "=" in word:
            draft.set(*parse_override(word), OVERRIDE)
    config = draft.build()
    if base is None and (problem := next(budget_problems(config), None)):
        raise ConfigError(problem)
    return Resolved(config, draft.origins)


def parse_overrides(words: Sequence[str], base: Config | None = None) -> Config:
    """Return the configuration of `resolve` without the origins."""
    return resolve(words, base).config


def parse_override(override: str) -> tuple[str, Any]:
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise ConfigError(f"cannot read '{override}': expected key=value, such as run.steps=2e4")
    try:
        return key, parse_yaml(text)
    except MissingValue as error:
        raise ConfigError(f"cannot read the value of '{override}': {error}") from None
    except yaml.YAMLError:
        raise ConfigError(f"cannot read the value of '{override}': put quotes around it") from None


def save_config(config: Config, path: str | Path) -> None:
    """Save atomically. The file is complete even after a power failure."""
    atomic_write(Path(path), dump_yaml(config.model_dump()).encode(), synced=True)


def load_config(path: str | Path) -> Config:
    """Load a file written by `save_config`. Missing keys get their defaults."""
    try:
        loaded = parse_yaml(read_bounded(Path(path), MAX_BYTES).decode())
    except (OSError, ValueError, yaml.YAMLError) as error:
        why = " ".join(str(error).split())  # YAML errors span several lines
        raise ConfigError(f"cannot read the configuration {path}: {why}") from error
    except RecursionError:
        raise ConfigError(f"cannot read the configuration {path}: it is nested too deeply") from None
    if _has_too_many_values(loaded):
        raise ConfigError(f"cannot read the configuration {path}: it has more than {MAX_VALUES} values")
    if not isinstance(loaded, dict):
        raise ConfigError(f"{path} is not a configuration: expected keys and values at the top level")
    draft = Draft()
    for key, value in loaded.items():
        draft.set(str(key), value, RUN_FOLDER)
    return draft.build()


def _has_too_many_values(loaded: Any) -> bool:
    waiting, count = [loaded], 0
    while waiting and count <= MAX_VALUES:
        value = waiting.pop()
        count += 1
        waiting.extend(value.values() if isinstance(value, dict) else value if isinstance(value, list) else ())
    return count > MAX_VALUES
