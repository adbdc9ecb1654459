"""The configuration of a new or resumed run, and checks of what a resumed run may change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dreamfleet.checkpoint.partial import find_agent
from dreamfleet.checkpoint.snapshot import CONFIG_FILE as CONFIG_FILE
from dreamfleet.checkpoint.snapshot import Snapshots
from dreamfleet.config.base import TASK
from dreamfleet.config.keys import fixed
from dreamfleet.config.load import Resolved, load_config, resolve
from dreamfleet.config.schema import Config
from dreamfleet.config.syntax import dump_inline
from dreamfleet.core.errors import ConfigError

RECORDS = ("episodes.jsonl", "metrics.jsonl")


def resolve_run(run: Path | None, words: Sequence[str]) -> Resolved:
    """Apply presets and overrides to the run's configuration, or to the defaults for a new run."""
    saved = run / CONFIG_FILE if run else None
    return resolve(words, load_config(saved) if saved and saved.exists() else None)


def continued_config(run: Path, words: Sequence[str]) -> Config:
    return resolve_run(run, words).config


def check_continues(run: Path, config: Config) -> None:
    """Raise an error if the run folder cannot be resumed with this configuration.

    Without a snapshot, only the task is fixed, once there are metrics. Files must not mix the curves of two tasks.
    """
    saved = run / CONFIG_FILE
    manifest = Snapshots(run).manifest()
    begins = not manifest or bool(manifest.get("imported"))  # imported steps come without an agent
    if begins and config.run.from_checkpoint:
        find_agent(Path(config.run.from_checkpoint))
    if not saved.exists():
        return
    before = load_config(saved)
    if not begins and config.run.from_checkpoint not in ("", before.run.from_checkpoint):
        raise ConfigError(
            f"run.from_checkpoint is only for new runs, and {run} has a snapshot: choose another --run-dir"
        )
    old, new = before.env.name, config.env.name
    if old != new and (manifest or _has_records(run)):
        raise ConfigError(
            f"env.name cannot change in {run}, which contains a run of {old}, not of {new}: "
            "choose another --run-dir for a new run"
        )
    if not manifest:
        return
    had, given = (found.model_dump() for found in (before, config))
    # Report a group's own keys first, such as agent.size before the keys that it sets.
    for key in sorted(changes(had, given), key=lambda key: key.count(".")):
        reason = fixed(key)
        if reason == TASK or (reason and not begins):
            raise ConfigError(
                f"{key} cannot change in {run}, which has a snapshot created {_with(key, had)}: {reason.why}: choose "
                f"another --run-dir for a new run{reason.instead.format(run=run)}, or remove {key}"
            )


def _with(key: str, values: Mapping[str, Any]) -> str:
    value: Any = values
    for name in key.split("."):
        if not isinstance(value, Mapping) or name not in value:
            return f"without {key}"  # an argument of the environment
        value = value[name]
    return f"with {key}={dump_inline(value)}"


def _has_records(run: Path) -> bool:
    return any((run / name).exists() and (run / name).stat().st_size for name in RECORDS)


def changes(before: Mapping[str, Any], after: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the dotted keys whose values differ."""
    for name in {**before, **after}:
        old, new = before.get(name), after.get(name)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from changes(old, new, f"{prefix}{name}.")
        elif old != new or (name in before) != (name in after):
            yield prefix + name
