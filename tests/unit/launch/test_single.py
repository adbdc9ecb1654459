"""One process that is all roles, as the status shows it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dreamfleet.config.args import FleetArgs
from dreamfleet.core.factories import Factories
from dreamfleet.launch.single import single_roles, unfold
from dreamfleet.runs.run_folder import RunFolder
from dreamfleet.runs.status import read_roles
from dreamfleet.supervision.managed_role import ManagedRole
from dreamfleet.supervision.role_spec import RoleSpec
from dreamfleet.supervision.throughput import ThroughputMeter
from dreamfleet.ui.run_summary import summarize
from support.statuses import parse

STATUS = {
    "about": {"parameters": 10},
    "actor": {"step": 300, "waiting": {}},
    "learner": {"updates": 7, "waiting": {}},
    "replay": {"replay": {"items": 250}, "limiter": {"state": "open", "waits_for": "nothing"}},
    "logger": {"episodes": {"train": 5}, "last_return": {"train": 2.0}},
    "train": {"envs": 4, "restarts": 0},
    "usage": {"cpu_percent": 90.0, "ram_gb": 0.5},
}


def role(status: dict[str, Any]) -> dict[str, Any]:
    return {"state": "ready", "pid": 17, "status": status}


def test_its_parts_show_as_the_roles_that_they_are():
    roles = unfold(role(STATUS))
    assert set(roles) == {"agent", "replay", "logger", "env-0"}
    assert all((one["state"], one["pid"]) == ("ready", 17) for one in roles.values())
    shown = summarize(parse({"state": "running", "roles": roles, "pace": ThroughputMeter().read(read_roles(roles))}))
    assert (shown.step, shown.updates, shown.replay.items, shown.limiter) == (300, 7, 250, "open")
    assert (shown.train.episodes, shown.train.last) == (5, 2.0)
    assert [line.name for line in shown.roles] == ["envs x1", "actor", "learner", "replay", "logger"]
    assert shown.roles[2].ram_gb == 0.5


def test_before_its_first_report_it_has_nothing_to_show():
    roles = unfold(role({}))
    assert (
        summarize(parse({"state": "starting", "roles": roles, "pace": ThroughputMeter().read(read_roles(roles))})).step
        == 0
    )


def test_the_supervisor_shows_its_parts_in_its_place(tmp_path: Path):
    with RunFolder(tmp_path) as folder:
        (spec,) = single_roles(Factories(*[int] * 7), FleetArgs(script="single", agent_process=False))  # type: ignore[arg-type]
        assert set(ManagedRole(spec, folder).statuses()) == {"agent", "replay", "logger"}
        assert set(ManagedRole(RoleSpec("agent", int, thread=True), folder).statuses()) == {"agent"}


def test_there_is_one_role_that_has_the_time_to_save():
    (spec,) = single_roles(Factories(*[int] * 7), FleetArgs(script="single"))  # type: ignore[arg-type]
    assert (spec.name, spec.saves, spec.thread) == ("single", True, False)
