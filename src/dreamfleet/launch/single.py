"""A run in one process (`run.script=single`): its role, and its status in the form of a fleet's."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from dreamfleet.config.args import FleetArgs
from dreamfleet.core.factories import Factories
from dreamfleet.core.roles import RoleKind
from dreamfleet.roles.entry import run_single
from dreamfleet.supervision.role_spec import RoleSpec

ROLE = "single"
WORKERS = {"env-0": "train", "eval-0": "eval"}
KINDS = {"agent": RoleKind.AGENT, "replay": RoleKind.REPLAY, "logger": RoleKind.LOGGER}


def single_roles(factories: Factories, args: FleetArgs) -> list[RoleSpec]:
    """Return the role. A fixed hash seed makes the order of sets reproducible, also in environments."""
    target = partial(run_single, factories, args)
    return [
        RoleSpec(
            ROLE,
            target,
            0,
            thread=not args.agent_process,
            env={"PYTHONHASHSEED": "0"},
            saves=True,
            kind=RoleKind.SINGLE,
            unfold=unfold,
        )
    ]


def unfold(single: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Split the status of the process into one status per role, as in a fleet."""
    status = single["status"] or {}
    parts = {
        "agent": {name: status[name] for name in ("about", "actor", "learner") if status.get(name)},
        "replay": status.get("replay", {}),
        "logger": status.get("logger", {}),
        **{name: status[mode] for name, mode in WORKERS.items() if mode in status},
    }
    if "learner" in status:
        parts["agent"]["learner"] = {**status["learner"], "usage": status.get("usage", {})}
    kinds = KINDS | {name: RoleKind.of_mode(mode) for name, mode in WORKERS.items()}
    return {name: {**single, "kind": kinds[name], "status": part} for name, part in parts.items()}
