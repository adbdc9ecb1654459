"""What a command may change when it continues a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dreamfleet.checkpoint.snapshot import Snapshots
from dreamfleet.config.load import load_config, parse_overrides
from dreamfleet.config.schema import Config
from dreamfleet.core.errors import ConfigError

CONFIG_FILE = "config.yaml"
FIXED_GROUPS = ("env", "agent")  # the agent's weights and the steps in replay have shapes that follow from these


def continued_config(run: Path, overrides: list[str]) -> Config:
    """The overrides on top of what the run has been configured with, or of the defaults in a new folder."""
    saved = run / CONFIG_FILE
    return parse_overrides(overrides, load_config(saved) if saved.exists() else None)


def check_continues(run: Path, config: Config) -> None:
    """Refuses a configuration that cannot go on from the snapshot in the run folder."""
    saved = run / CONFIG_FILE
    manifest = Snapshots(run).manifest()
    if not saved.exists() or not manifest:
        return
    before = load_config(saved)
    for group in ("env",) if manifest.get("imported") else FIXED_GROUPS:  # imported steps come without an agent
        changes = _changes(getattr(before, group).model_dump(), getattr(config, group).model_dump(), group)
        if key := next(changes, None):
            raise ConfigError(
                f"{key} cannot change in {run}, which holds a snapshot: choose another --run-dir for a new run"
            )


def _changes(before: Mapping[str, Any], after: Mapping[str, Any], prefix: str) -> Iterator[str]:
    for name in {**before, **after}:
        old, new = before.get(name), after.get(name)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from _changes(old, new, f"{prefix}.{name}")
        elif old != new or (name in before) != (name in after):
            yield f"{prefix}.{name}"
