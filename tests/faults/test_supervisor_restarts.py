"""The supervisor and roles that come back, without a fleet around them."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from dreamfleet.runs.run_folder import RunFolder
from dreamfleet.supervision.managed_role import ManagedRole
from dreamfleet.supervision.role_spec import RestartRule, RoleSpec
from dreamfleet.supervision.supervisor import Supervisor
from support import fake_roles
from support.fleet_probe import events_of, read_events

RULE = RestartRule(3, "run.max_restarts")
STATELESS = RestartRule(3, "run.env_worker_restarts", 60.0, stateless=True)


def mortal(run: Path, name: str, *fates: str, rule: RestartRule = RULE, rank: int = 0) -> RoleSpec:
    def restart_target(how: str) -> Any:
        return partial(fake_roles.lives, str(run / f"{name}.lives"), list(fates), how)

    return RoleSpec(name, restart_target("first"), rank, restart=rule, restart_target=restart_target)


def lives(run: Path, name: str) -> list[str]:
    return (run / f"{name}.lives").read_text().split()


def supervise(run: Path, *specs: RoleSpec, **options: Any) -> int:
    with RunFolder(run) as folder:
        code = Supervisor(specs, folder, **options).run()
    assert psutil.Process().children(recursive=True) == []
    return code


def test_a_role_comes_back_until_the_run_has_reached_its_goal(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert supervise(tmp_path, mortal(tmp_path, "role", "killed", "killed before it is ready", "finishes")) == 0
    assert lives(tmp_path, "role") == ["first", "alone", "alone"]
    status = json.loads((tmp_path / "status.json").read_text())["roles"]["role"]
    assert (status["state"], status["restarts"]) == ("done", 2)
    assert [entry["detail"]["count"] for entry in events_of(tmp_path, "restart")] == [1, 2]
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2
    assert all("died: signal 9 (SIGKILL)" in line and line.endswith(": restarting it") for line in said)


def test_roles_come_back_together_in_the_order_of_their_list(tmp_path: Path) -> None:
    rule = RestartRule(3, "run.max_restarts", restart_group=("server",))
    server = mortal(tmp_path, "server", "idle", "idle", rank=1)
    assert supervise(tmp_path, server, mortal(tmp_path, "agent", "killed", "finishes", rule=rule)) == 0
    assert lives(tmp_path, "server")[-1] == "together"  # its first life may end before it has counted it
    assert lives(tmp_path, "agent") == ["first", "together"]
    assert [entry["role"] for entry in events_of(tmp_path, "restart")] == ["server", "agent"]


def test_a_return_that_fails_ends_the_run_and_starts_no_other_role(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    def fail(role: ManagedRole, how: str) -> None:
        raise OSError(f"no more processes for {role.name}")

    monkeypatch.setattr(ManagedRole, "restart", fail)
    rule = RestartRule(3, "run.max_restarts", restart_group=("server",))
    server = mortal(tmp_path, "server", "idle", "idle", rank=1)
    assert supervise(tmp_path, server, mortal(tmp_path, "agent", "killed", "idle", rule=rule)) == 1
    assert [entry["role"] for entry in events_of(tmp_path, "restart")] == ["server"]
    assert "its process could not be started: no more processes for server" in capsys.readouterr().err


def test_a_role_knows_whether_the_run_ends_or_only_itself(tmp_path: Path) -> None:
    target = fake_roles.says_whether_the_run_ends
    asked = RoleSpec("asked", target, restart=RULE, restart_target=lambda how: target)
    asker = RoleSpec(
        "asker", partial(fake_roles.finishes_after_asking_to_leave, str(tmp_path / "events.jsonl"), "asked")
    )
    assert supervise(tmp_path, asked, asker) == 0
    assert [entry["detail"]["run_ends"] for entry in events_of(tmp_path, "stopped")] == [False, True]


@pytest.mark.parametrize("thread", [False, True], ids=["process", "thread"])
def test_a_role_in_either_form_hears_of_the_end_of_the_run(tmp_path: Path, thread: bool) -> None:
    spec = RoleSpec("asked", fake_roles.says_whether_the_run_ends, thread=thread)
    assert supervise(tmp_path, spec, RoleSpec("role", fake_roles.finishes)) == 0
    assert [entry["detail"]["run_ends"] for entry in events_of(tmp_path, "stopped")] == [True]


def test_a_role_that_failed_and_does_not_leave_is_killed_and_comes_back(tmp_path: Path) -> None:
    spec = mortal(tmp_path, "role", "hangs", "finishes", rule=STATELESS)
    assert supervise(tmp_path, spec) == 0
    assert [entry["role"] for entry in events_of(tmp_path, "kill")] == ["role"]


@pytest.mark.parametrize(
    ("fates", "code", "line"),
    [
        (["raises"], 1, "role failed: ValueError: the role broke"),
        (["killed", "raises", "raises"], 1, "role failed: ValueError: the role broke"),
        (["killed", "bad input"], 2, "role failed: address tcp://127.0.0.1:1 is in use"),
        (["killed"] * 4, 1, "it was already restarted 3 times, and run.max_restarts allows no more"),
    ],
    ids=["at once", "the same again", "bad input", "too often"],
)
def test_what_ends_the_run_and_its_words(
    tmp_path: Path, fates: list[str], code: int, line: str, capsys: pytest.CaptureFixture
) -> None:
    assert supervise(tmp_path, mortal(tmp_path, "role", *fates)) == code
    assert capsys.readouterr().err.splitlines()[-1].endswith(line)
    assert len(lives(tmp_path, "role")) == len(fates)


def test_a_role_that_is_not_ready_in_time_after_its_restart_ends_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    spec = RoleSpec("role", fake_roles.idle, restart=RULE, restart_target=lambda how: fake_roles.never_ready)
    killer = RoleSpec("killer", partial(fake_roles.kills, str(tmp_path / "events.jsonl"), "role"))
    assert supervise(tmp_path, spec, killer, start_timeout_s=4) == 1
    assert "role not ready within 4 s of the start" in capsys.readouterr().err.splitlines()[-1]


def test_a_clean_end_waits_for_roles_that_are_coming_back(tmp_path: Path) -> None:
    """The goal is reached while one role is dead; the end comes once it is ready."""
    late = mortal(tmp_path, "late", "killed", "killed before it is ready", "idle", rank=1)
    finisher = partial(fake_roles.finishes_after, str(tmp_path / "events.jsonl"), "late", "exit")
    assert supervise(tmp_path, late, RoleSpec("role", finisher)) == 0
    assert lives(tmp_path, "late") == ["first", "alone", "alone"]
    events = [(entry["role"], entry["event"]) for entry in read_events(tmp_path)]
    stop = events.index(("supervisor", "stop"))
    assert events[:stop].count(("late", "ready")) == 2
    assert ("supervisor", "failed") not in events


def test_a_clean_end_does_not_wait_for_roles_that_no_snapshot_needs(tmp_path: Path) -> None:
    worker = mortal(tmp_path, "worker", *["killed before it is ready"] * 3, "idle", rule=STATELESS)
    finisher = partial(fake_roles.finishes_after, str(tmp_path / "events.jsonl"), "worker", "exit")
    assert supervise(tmp_path, worker, RoleSpec("role", finisher)) == 0
    assert len(lives(tmp_path, "worker")) < 4
