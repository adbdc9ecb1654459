"""Presets, which are named sets of values from the files in `presets/`, and the rules for combining them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from dreamfleet.config.draft import SIZE, Draft, origin_of
from dreamfleet.config.keys import flatten
from dreamfleet.config.syntax import parse_yaml
from dreamfleet.core.errors import ConfigError
from dreamfleet.core.text.suggestions import closest_names, did_you_mean

# From general to specific: a preset may override values of a more general one.
KINDS = ("defaults", "suites", "sizes", "modifiers")
CLOSEST = 3  # names in a message


@dataclass(frozen=True)
class Preset:
    name: str
    kind: str  # the name of its file
    about: str
    values: Mapping[str, Any]

    @property
    def origin(self) -> str:
        return f"preset {self.name}"

    def apply(self, draft: Draft) -> None:
        for key, value in self.values.items():
            draft.set(key, value, self.origin)

    def effects(self) -> dict[str, Any]:
        """Return every value that it sets, including those set by patterns and, last, by a size."""
        draft = Draft()
        self.apply(draft)
        found = [(origin_of(draft.origins, key), key, value) for key, value in flatten(draft.values)]
        return {key: value for wanted in (self.origin, SIZE) for origin, key, value in found if origin == wanted}


@cache
def all_presets() -> dict[str, Preset]:
    """Return all presets by name, in the order of the files."""
    folder = resources.files("dreamfleet.config") / "presets"
    found: dict[str, Preset] = {}
    for kind in KINDS:
        loaded = parse_yaml((folder / f"{kind}.yaml").read_text(encoding="utf-8"))
        if kind == "defaults":
            found[kind] = Preset(kind, kind, "Reset all keys to their defaults, regardless of the run folder.", loaded)
            continue
        for name, entry in loaded.items():
            found[name] = Preset(name, kind, entry["about"], entry["set"])
    return found


def choose_presets(names: Sequence[str]) -> list[Preset]:
    """Return presets in the given order. Raise an error if one does not exist or two conflict."""
    chosen: list[Preset] = []
    for name in names:
        preset = find_preset(name)
        for before in chosen:
            _check_pair(before, preset)
        chosen.append(preset)
    return chosen


def find_preset(name: str) -> Preset:
    known = all_presets()
    if name in known:
        return known[name]
    hint = "overrides have the form key=value"
    if ":" in name:
        raise ConfigError(f"unknown preset '{name}': did you mean env={name}? {hint.capitalize()}")
    if alike := closest_names(name, known, CLOSEST):
        raise ConfigError(f"unknown preset '{name}': {did_you_mean(alike, '', str)} {hint.capitalize()}")
    raise ConfigError(f"unknown preset '{name}': choose from {', '.join(known)}; {hint}, such as run.steps=2e4")


def _check_pair(before: Preset, after: Preset) -> None:
    """Raise an error on conflicts. A preset may override more general ones, but not its own kind."""
    if KINDS.index(after.kind) > KINDS.index(before.kind):
        return
    first, second = before.effects(), after.effects()
    for key, value in second.items():
        if key not in first or first[key] == value:
            continue
        if before.kind == after.kind:
            raise ConfigError(
                f"presets '{before.name}' and '{after.name}' conflict, they set {key} to {first[key]} and {value}: "
                "choose one of them"
            )
        raise ConfigError(
            f"preset '{after.name}' would override {key}={first[key]} of '{before.name}': put {after.name} before "
            f"{before.name}"
        )
