"""The run in one process (`run.script=single`): its one role, and its status in the words of a fleet."""

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
    """Sets and dictionaries of text have the same order every time, also in an environment that walks over one."""
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
    """The statuses of all roles by name. One process that is all of them shows as if each had one of its own."""
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
