"""Another run's agent as the beginning of a new one, in full or in part."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from dreamfleet.checkpoint.arrays import load_arrays
from dreamfleet.checkpoint.manifest import MANIFEST, find_own_damage, read_manifest
from dreamfleet.checkpoint.schema import AGENT_FILES
from dreamfleet.checkpoint.snapshot import Snapshots
from dreamfleet.core.errors import BadInput, CheckpointError, CheckpointMismatch
from dreamfleet.core.interfaces import Arrays

SHOWN = 3  # names in a report


@dataclass
class Loaded:
    """What became of each array of the two agents."""

    taken: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)  # they do not match the pattern
    mismatched: list[str] = field(default_factory=list)  # of another shape, or only one of the agents has it
    reset: list[str] = field(default_factory=list)  # of the optimiser, since not all that it trains is taken

    def text(self, source: Path) -> str:
        parts = [f"{len(self.taken)} arrays loaded"]
        parts += [f"{len(self.skipped)} skipped, which do not match the pattern"] if self.skipped else []
        parts += [f"{len(self.mismatched)} mismatched: {_some(self.mismatched)}"] if self.mismatched else []
        if self.reset:
            what = "the optimiser is reset: its moments, its step and so the warm-up begin at zero"
            parts.append(f"{what}, since not every array that it trains was loaded")
        return f"the agent starts from {source}: {'; '.join(parts)}"


def find_agent(path: Path) -> Path:
    """The snapshot folder that `path` is, or the newest one of the run folder that it is."""
    if not path.is_dir():
        raise BadInput(f"run.from_checkpoint={path}: there is no such folder: name a run or a snapshot folder")
    folder: Path | None = path
    if not (path / MANIFEST).exists():
        folder = Snapshots(path).latest()
    if folder is None or not (folder / AGENT_FILES[0]).exists():
        raise BadInput(f"run.from_checkpoint={path} holds no agent: name a run or a snapshot folder that has one")
    try:
        damage = find_own_damage(folder, read_manifest(folder)) if folder == path else None
    except CheckpointMismatch:
        raise
    except (CheckpointError, OSError) as error:
        raise BadInput(f"run.from_checkpoint={path}: {error}") from error
    if damage:
        raise BadInput(f"run.from_checkpoint={path} is damaged: {damage}: name another snapshot folder, or the run")
    return folder


def merge(
    current: Mapping[str, np.ndarray],
    source: Path,
    pattern: str,
    to_reset: Callable[[Set[str]], Set[str]] | None = None,
    upgrade: Callable[[Arrays], Arrays] | None = None,
) -> tuple[Arrays, Loaded]:
    """Return a new agent's arrays with those of `source` in their places that match the pattern and fit.

    Args:
        to_reset: Given the names of all these, returns those that stay as in the new agent nevertheless.
        upgrade: Given the arrays of `source`, returns them under the names of today.
    """
    found = load_arrays(source / AGENT_FILES[0])
    found = upgrade(found) if upgrade else found
    report = Loaded()
    for name in sorted({**current, **found}):
        if not re.search(pattern, name):
            report.skipped.append(name)
        elif name not in current:
            report.mismatched.append(f"{name} is only there")
        elif name not in found:
            report.mismatched.append(f"{name} is only here")
        elif found[name].shape != current[name].shape:
            report.mismatched.append(f"{name} is {found[name].shape} there and {current[name].shape} here")
        else:
            report.taken.append(name)
    reset = to_reset(set(report.taken)) if to_reset else set()
    report.reset, report.taken = sorted(reset), [name for name in report.taken if name not in reset]
    if not report.taken:
        raise CheckpointMismatch(
            f"nothing of {source} can be loaded with run.from_checkpoint_regex={pattern!r}: {_hint(report)}"
        )
    return {**current, **{name: found[name] for name in report.taken}}, report


def _hint(report: Loaded) -> str:
    if report.reset:
        return "the optimiser's state can be loaded only together with every array that it trains"
    if report.mismatched:
        return f"{_some(report.mismatched)}; check agent.size and the environment"
    return f"names look like {_some(report.skipped)}"


def _some(items: Sequence[str]) -> str:
    return ", ".join(items[:SHOWN]) + (f" and {len(items) - SHOWN} more" if len(items) > SHOWN else "")
