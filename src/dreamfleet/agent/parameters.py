"""The agent's arrays by name: how they are saved and loaded, and what is said when they do not fit."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence, Set
from typing import Any

import jax
import numpy as np

from dreamfleet.core.errors import CheckpointError, CheckpointMismatch

SHOWN = 3  # names in a message
FORMER_NAMES = {"opt/3/count": "opt/2/count"}  # of snapshots by versions in which weight decay had a state of its own


def leaf_names(structure: Any) -> list[str]:
    return [path_name(path) for path, _ in jax.tree_util.tree_flatten_with_path(structure)[0]]


def path_name(path: Sequence[Any]) -> str:
    parts = (getattr(part, "name", getattr(part, "key", getattr(part, "idx", None))) for part in path)
    return "/".join(str(part) for part in parts)


def count_parameters(names: Sequence[str], leaves: Sequence[Any]) -> dict[str, int]:
    """What the optimiser trains, by part of the world model."""
    counts: dict[str, int] = {}
    for name, leaf in zip(names, leaves, strict=True):
        if name.startswith("world/"):
            part = name.split("/")[1]
            counts[part] = counts.get(part, 0) + leaf.size
    return counts


def optimizer_to_reset(names: Sequence[str], taken: Set[str]) -> set[str]:
    """Return those of the arrays `taken` from another agent that must be reset: optimiser, running statistics.

    That is the whole optimiser unless all that it trains is taken too. One step counts for all moments: it drives their
    bias correction and the warm-up. With an old step, moments that begin at zero are hardly corrected, and the updates
    of their arrays are up to nine times too large.
    """
    optimizer = {name for name in names if name.startswith("opt/")}
    trained = {name for name in names if name.startswith("world/")}
    reset = set() if optimizer | trained <= taken else optimizer & taken
    for normalizer in {name.rpartition("/")[0] for name in names if name.startswith("norms/")}:
        statistics = {name for name in names if name.startswith(f"{normalizer}/")}
        if not statistics <= taken:  # an average without the weight that corrects it is of no use
            reset |= statistics & taken
    return reset


def load_leaves(
    names: Sequence[str], leaves: Sequence[np.ndarray], data: Mapping[str, np.ndarray], regex: str | None
) -> list[np.ndarray]:
    """Those of `data` in place of the agent's own. All of them must be there, or those that match."""
    wanted = [name for name in names if regex is None or re.search(regex, name)]
    if not wanted:
        raise CheckpointError(f"no parameter matches {regex!r}; names look like {names[0]!r}")
    current = dict(zip(names, leaves, strict=True))
    data = upgrade_arrays(data, wanted)
    check_fits({name: current[name] for name in wanted}, data)
    for name in wanted:
        current[name] = np.asarray(data[name], current[name].dtype)
    return [current[name] for name in names]


def upgrade_arrays(data: Mapping[str, np.ndarray], wanted: Sequence[str]) -> dict[str, np.ndarray]:
    """Return the arrays of an earlier version under the names of today, with those that it did not have."""
    found = {FORMER_NAMES.get(name, name): value for name, value in data.items()}
    for name in wanted:
        normalizer, _, part = name.rpartition("/")
        if name not in found and part == "weight" and f"{normalizer}/first" in found:
            found[name] = np.ones((), np.float32)  # statistics that were never corrected stay as they are
    return found


def check_fits(wanted: Mapping[str, Any], data: Mapping[str, np.ndarray]) -> None:
    """Raises unless `data` has an array of the same shape for each of those wanted."""
    missing = [name for name in wanted if name not in data]
    if missing:
        raise CheckpointMismatch(
            f"the checkpoint lacks {len(missing)} of the agent's arrays: {_some(missing)}; it is of another agent"
        )
    differ = [name for name, leaf in wanted.items() if data[name].shape != leaf.shape]
    if differ:
        shapes = [f"{name} is {data[name].shape} instead of {wanted[name].shape}" for name in differ]
        raise CheckpointMismatch(
            f"the checkpoint is of another agent: {_some(shapes)}; check agent.size and the environment's spaces"
        )


def _some(items: Sequence[str]) -> str:
    return ", ".join(items[:SHOWN]) + (f" and {len(items) - SHOWN} more" if len(items) > SHOWN else "")
