"""What is picked from a run's status."""

from __future__ import annotations

from typing import Any

import pytest

from dreamfleet.launch.view.digest import digest
from statuses import make_status


def test_a_fleet_that_only_starts_has_little_to_say() -> None:
    for status in (
        {"state": "starting"},
        {"state": "starting", "roles": {"agent": {"state": "starting"}}, "run": None},
    ):
        found = digest(status)
        assert (found.step, found.steps, found.train.mean, found.limiter) == (0, None, None, "")


def test_the_time_left_follows_from_the_speed() -> None:
    assert digest(make_status()).eta_s == 100.0  # 8,000 steps at 80 a second
    assert digest(make_status(duration=130.0)).eta_s == 30.0  # of which 100 have passed
    assert digest(make_status(steps=10**10)).eta_s is None
    assert digest(make_status("done")).eta_s is None


def test_an_ended_run_tells_its_mean_speed_since_it_was_continued() -> None:
    found = digest(make_status("done", before=2_000, updates_before=28))
    assert (found.env_per_s, found.updates_per_s) == (100.0, 0.5)


def test_workers_share_a_line_however_many_there_are() -> None:
    found = digest(make_status())
    assert [role.name for role in found.roles] == ["envs x16", "actor", "learner", "logger", "replay"]
    assert found.roles[0].state == "ready"
    assert found.roles[0].cpu_percent == 800.0
    assert found.roles[0].ram_gb == 4.0
    assert found.restarts == 16


def test_a_worker_in_another_state_is_noticed() -> None:
    status = make_status()
    status["roles"]["env-3"] = {"state": "failed", "status": None}
    assert digest(status).roles[0].state == "15 of 16 ready"


def test_waits_are_shares_unless_one_is_long() -> None:
    waits = {role.name: role.waits for role in digest(make_status()).roles}
    assert waits["envs x16"] == "actions 90%"
    assert waits["actor"] == "observations 25%"
    assert waits["learner"] == "replay to sample for 12 s"
    assert waits["logger"] == ""


@pytest.mark.parametrize(
    ("waits_for", "words"),
    [
        ("nothing", "open"),
        ("812 of 1040 steps", "holds the learner: 812 of 1040 steps"),
        ("a stream long enough for one window", "holds the learner: a stream long enough for one window"),
        ("4 more steps to be inserted", "holds the learner: 4 more steps to be inserted"),
        ("7 more windows to be sampled", "holds the environments: 7 more windows to be sampled"),
    ],
)
def test_the_limiter_says_whom_it_holds(waits_for: str, words: str) -> None:
    status = make_status()
    status["roles"]["replay"]["status"]["limiter"] = {"waits_for": waits_for}
    assert digest(status).limiter == words


@pytest.mark.parametrize(("size_bytes", "share"), [(0, 0.11), (10**9, 0.5)])
def test_replay_is_as_full_as_its_nearer_limit(size_bytes: int, share: float) -> None:
    assert digest(make_status(replay_size_bytes=size_bytes)).replay.share == share


@pytest.mark.parametrize(
    ("event", "words"),
    [
        ({"event": "snapshot", "role": "agent", "detail": {"step": 512}}, "agent: snapshot of step 512"),
        ({"event": "failure", "role": "replay", "detail": {"message": "replay died"}}, "replay: failure replay died"),
        ({"event": "exit", "role": "replay", "detail": {}}, ""),
    ],
)
def test_the_last_event_of_note_is_told(event: dict[str, Any], words: str) -> None:
    assert digest(make_status(), [{"time": 0.0, **event}]).event.partition(" ")[2] == words
