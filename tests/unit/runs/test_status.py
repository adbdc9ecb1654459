"""The form of status.json, which programs of others read, too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dreamfleet.core.roles import RoleKind
from dreamfleet.core.waits import LimiterState, Wait
from dreamfleet.runs.run_folder import RunFolder
from dreamfleet.runs.status import (
    AgentReport,
    AgentStatus,
    LoggerStatus,
    OtherStatus,
    ReplayReport,
    RunState,
    RunStatus,
    WorkerStatus,
    read_report,
    read_roles,
    read_status,
)
from support.statuses import make_status


def test_what_is_read_is_written_again_as_it_was(tmp_path: Path) -> None:
    given = make_status() | {"of_a_later_version": {"x": [1, 2]}}
    given["roles"]["agent"]["status"]["actor"]["new"] = "kept"
    with RunFolder(tmp_path) as folder:
        folder.write_status(RunStatus.model_validate(given))
    assert json.loads((tmp_path / "status.json").read_text()) == given


def test_parts_are_found_by_the_kind_of_their_role() -> None:
    roles = {
        "brain": {"kind": "agent", "status": {"actor": {"step": 7}}},
        "memory": {"kind": "replay", "status": {"limiter": {"state": "samples", "missing": 3}}},
        "a": {"kind": "eval_env"},
    }
    status = RunStatus.model_validate({"state": "running", "roles": roles})
    assert status.state is RunState.RUNNING
    assert status.agent.actor is not None
    assert status.agent.actor.step == 7
    assert status.replay.limiter is not None
    assert status.replay.limiter.state is LimiterState.SAMPLES
    assert [role.kind for role in status.of_kind(RoleKind.EVAL_ENV)] == [RoleKind.EVAL_ENV]
    assert status.of_kind(RoleKind.ENV) == []


def test_of_a_status_before_formats_the_names_of_roles_tell_their_kind() -> None:
    names = ("agent", "logger", "env-0", "env", "eval-3", "single", "of_a_user")
    roles = read_roles({name: {"state": "ready", "status": None} for name in names})
    kinds = [RoleKind.AGENT, RoleKind.LOGGER, *2 * [RoleKind.ENV], RoleKind.EVAL_ENV, RoleKind.SINGLE, RoleKind.OTHER]
    assert [role.kind for role in roles.values()] == kinds
    types = [type(role) for role in roles.values()]
    assert types == [AgentStatus, LoggerStatus, WorkerStatus, WorkerStatus, WorkerStatus, OtherStatus, OtherStatus]
    assert all(role.status.is_empty for role in roles.values())


def test_a_role_of_a_kind_that_nobody_knows_is_another_one() -> None:
    (role,) = read_roles({"x": {"kind": "of_a_later_version", "state": "ready"}}).values()
    assert (role.kind, role.state) == (RoleKind.OTHER, "ready")


@pytest.mark.parametrize("report", [{"waits": [{"wait": "for_godot"}]}, {"clock_s": "soon"}, [1]])
def test_a_report_that_cannot_be_understood_costs_nothing_but_itself(report: Any) -> None:
    roles = {"replay": {"state": "ready", "status": report}, "agent": {"status": {"actor": {"step": 3}}}}
    status = RunStatus.model_validate({"state": "running", "roles": roles})
    assert status.replay == ReplayReport()
    assert status.agent.actor is not None
    assert status.agent.actor.step == 3


@pytest.mark.parametrize(
    "learner", [{"device_s": {"busy": None}}, {"waits": [{"wait": "for_godot"}]}, {"updates": "many"}, "none"], ids=str
)
def test_what_a_report_says_besides_a_value_that_cannot_be_understood_is_kept(learner: Any) -> None:
    """A value that is no number, such as NaN, comes as null."""
    if isinstance(learner, dict):
        learner = {"usage": {"ram_gb": 2.0}, "waiting": {"godot": 9.0}, **learner}
    report = read_report(RoleKind.AGENT, {"about": {"lines": []}, "actor": {"step": 3}, "learner": learner})
    assert isinstance(report, AgentReport)
    assert report.actor is not None and report.learner is not None
    assert (report.about, report.actor.step) == ({"lines": []}, 3)
    if isinstance(learner, dict):
        assert (report.learner.usage.ram_gb, report.learner.waiting) == (2.0, {"godot": 9.0})


def test_a_limiter_that_cannot_be_understood_does_not_hide_the_replay() -> None:
    report = read_report(RoleKind.REPLAY, {"limiter": {"state": "later", "inserts": 7}, "replay": {"items": 5}})
    assert isinstance(report, ReplayReport)
    assert report.limiter is not None
    assert (report.limiter.state, report.limiter.inserts, report.replay.items) == (None, 7, 5)


def test_waits_are_asked_for_by_name() -> None:
    waits = [{"wait": "replay_to_sample", "env": "", "seconds": 2.0}, {"wait": "env_step", "env": "a", "seconds": 9.0}]
    report = read_report(RoleKind.REPLAY, {"waits": waits, "waiting": {"for who knows what": 99.0}})
    assert isinstance(report, ReplayReport)
    assert report.longest_s(Wait.REPLAY_TO_SAMPLE, Wait.ACTIONS) == 2.0
    assert report.longest_s(Wait.ACTIONS) == 0.0
    assert report.is_waiting_for(Wait.ENV_STEP)
    assert not report.is_waiting_for(Wait.ACTIONS)


def test_a_folder_without_a_status_has_none(tmp_path: Path) -> None:
    assert read_status(tmp_path) is None
