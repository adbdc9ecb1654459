"""What is picked from a run's status."""

from __future__ import annotations

from typing import Any

import pytest

from dreamfleet.core.context import SAY
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
        ("a stream long enough for one window", "holds the learner: a stream long enough for one window"),
        ("4 more steps to be inserted", "holds the learner: 4 more steps to be inserted"),
        ("7 more windows to be sampled", "holds the environments: 7 more windows to be sampled"),
    ],
)
def test_the_limiter_says_whom_it_holds(waits_for: str, words: str) -> None:
    status = make_status()
    status["roles"]["replay"]["status"]["limiter"] = {"waits_for": waits_for}
    assert digest(status).limiter == words


@pytest.mark.parametrize(
    ("missing", "env_per_s", "words"),
    [
        (682, 3.0, "about 4 minutes"),  # 227 s
        (900, 10.0, "about 2 minutes"),
        (890, 10.0, "about 89 seconds"),
        (682, 80.0, "about 9 seconds"),
        (682, 0.1, "about 2 hours"),
        (682, 0.002, "about 4 days"),
        (1, 0.9, "about 2 seconds"),
        (1, 2.0, "about 1 second"),
    ],
)
def test_the_first_update_is_as_far_away_as_its_steps_take(missing: int, env_per_s: float, words: str) -> None:
    status = make_status()
    waits_for = "2,310 of 2,992 steps before the first update"
    status["roles"]["replay"]["status"]["limiter"] = {"waits_for": waits_for, "missing": missing}
    status["pace"]["env_per_s"] = env_per_s
    found = digest(status)
    assert found.limiter == found.first_update == f"{waits_for}, {words}"
    status["pace"]["env_per_s"] = 0.0  # no step yet, so nobody knows
    assert digest(status).limiter == waits_for


def test_a_wait_says_how_long_it_takes_at_the_rate_of_the_side_that_is_waited_for() -> None:
    status = make_status(update_windows=16)
    limiter = status["roles"]["replay"]["status"]["limiter"]
    limiter |= {"waits_for": "21 more steps to be inserted", "missing": 21}
    status["pace"] |= {"env_per_s": 0.5, "updates_per_s": 2.0}
    assert digest(status).limiter == "holds the learner: 21 more steps to be inserted, about 42 seconds"
    limiter |= {"waits_for": "640 more windows to be sampled", "missing": 640}
    assert digest(status).limiter == "holds the environments: 640 more windows to be sampled, about 20 seconds"
    assert digest(status).first_update == ""


@pytest.mark.parametrize(("size_bytes", "share"), [(0, 0.11), (10**9, 0.5)])
def test_replay_is_as_full_as_its_nearer_limit(size_bytes: int, share: float) -> None:
    assert digest(make_status(replay_size_bytes=size_bytes)).replay.share == share


@pytest.mark.parametrize(
    ("event", "words"),
    [
        ({"event": "snapshot", "role": "agent", "detail": {"step": 512}}, "agent: snapshot of step 512"),
        ({"event": "failure", "role": "replay", "detail": {"message": "replay died"}}, "replay: failure replay died"),
        ({"event": "exit", "role": "replay", "detail": {}}, ""),
        ({"event": "refused", "role": "agent", "detail": {"reason": "no rows"}}, "agent: refused no rows"),
        (
            {"event": "worker_lost", "role": "agent", "detail": {SAY: "a worker on B is lost"}},
            "agent: worker_lost a worker on B is lost",
        ),
        (
            {"event": "set_aside", "role": "agent", "detail": {"worker": "1f", "text": "worker 1f"}},
            "agent: set_aside worker 1f",
        ),
        ({"event": "figures_refused", "role": "logger", "detail": {"reason": "r"}}, "logger: figures_refused r"),
        ({"event": "run_lost", "role": "env", "detail": {"text": "lost"}}, "env: run_lost lost"),
    ],
)
def test_the_last_event_of_note_is_told(event: dict[str, Any], words: str) -> None:
    assert digest(make_status(), [{"time": 0.0, **event}]).event.partition(" ")[2] == words
