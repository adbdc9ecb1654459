"""What is picked from a run's status."""

from __future__ import annotations

from typing import Any

import pytest

from dreamfleet.core.context import TERMINAL_TEXT
from dreamfleet.ui.run_summary import summarize
from support.statuses import limiter, make_status, parse


def test_a_fleet_that_only_starts_has_little_to_say() -> None:
    for status in (
        {"state": "starting"},
        {"state": "starting", "roles": {"agent": {"state": "starting"}}, "run": None},
    ):
        found = summarize(parse(status))
        assert (found.step, found.steps, found.train.mean, found.limiter) == (0, None, None, "")


def test_the_time_left_follows_from_the_speed() -> None:
    assert summarize(parse(make_status())).eta_s == 100.0  # 8,000 steps at 80 a second
    assert summarize(parse(make_status(duration=130.0))).eta_s == 30.0  # of which 100 have passed
    assert summarize(parse(make_status(steps=10**10))).eta_s is None
    assert summarize(parse(make_status("done"))).eta_s is None


def test_an_ended_run_tells_its_mean_speed_since_it_was_continued() -> None:
    found = summarize(parse(make_status("done", before=2_000, updates_before=28)))
    assert (found.env_per_s, found.updates_per_s) == (100.0, 0.5)


def test_workers_share_a_line_however_many_there_are() -> None:
    found = summarize(parse(make_status()))
    assert [role.name for role in found.roles] == ["envs x16", "actor", "learner", "logger", "replay"]
    assert found.roles[0].state == "ready"
    assert found.roles[0].cpu_percent == 800.0
    assert found.roles[0].ram_gb == 4.0
    assert found.restarts == 16


def test_a_worker_in_another_state_is_noticed() -> None:
    status = make_status()
    status["roles"]["env-3"] = {"state": "failed", "status": None}
    assert summarize(parse(status)).roles[0].state == "15 of 16 ready"


def test_waits_are_shares_unless_one_is_long() -> None:
    waits = {role.name: role.waits for role in summarize(parse(make_status())).roles}
    assert waits["envs x16"] == "actions 90%"
    assert waits["actor"] == "observations 25%"
    assert waits["learner"] == "replay to sample for 12 s"
    assert waits["logger"] == ""


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (limiter("open"), "open"),
        (limiter("window"), "blocks the learner: a stream long enough for one window"),
        (limiter("steps", 4), "blocks the learner: 4 more steps to be inserted, about 1 second"),
        (limiter("samples", 7), "blocks the environments: 7 more windows to be sampled"),
        ({"waits_for": "4 more steps to be inserted"}, "4 more steps to be inserted"),  # of an older version
        ({"waits_for": "nothing"}, "open"),  # likewise
        ({}, ""),
    ],
)
def test_the_limiter_says_whom_it_holds(given: dict[str, Any], words: str) -> None:
    status = make_status()
    status["roles"]["replay"]["status"]["limiter"] = given
    assert summarize(parse(status)).limiter == words


def test_whom_the_limiter_holds_does_not_hang_on_its_words() -> None:
    status = make_status()
    status["roles"]["replay"]["status"]["limiter"] = {**limiter("samples", 7), "waits_for": "7 weitere Fenster"}
    assert summarize(parse(status)).limiter == "blocks the environments: 7 more windows to be sampled"


def test_a_status_of_an_older_version_shows_its_waits_in_its_own_words() -> None:
    status = make_status()
    del status["format"], status["pace"]["shares"]
    for role in status["roles"].values():
        role.pop("kind", None)  # workers are one object
        role["status"].pop("waits", None)
    del status["roles"]["agent"]["status"]["learner"]["waits"]
    assert summarize(parse(status)).roles == summarize(parse(make_status())).roles


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
    waits_for = f"2,310 of {2310 + missing:,} steps before the first update"
    status["roles"]["replay"]["status"]["limiter"] = limiter("first_update", missing, 2310)
    status["pace"]["env_per_s"] = env_per_s
    found = summarize(parse(status))
    assert found.limiter == found.first_update == f"{waits_for}, {words}"
    status["pace"]["env_per_s"] = 0.0  # no step yet, so nobody knows
    assert summarize(parse(status)).limiter == waits_for


def test_a_wait_says_how_long_it_takes_at_the_rate_of_the_side_that_is_waited_for() -> None:
    status = make_status(update_windows=16)
    replay = status["roles"]["replay"]["status"]
    replay["limiter"] = limiter("steps", 21)
    status["pace"] |= {"env_per_s": 0.5, "updates_per_s": 2.0}
    assert summarize(parse(status)).limiter == "blocks the learner: 21 more steps to be inserted, about 42 seconds"
    replay["limiter"] = limiter("samples", 640)
    assert (
        summarize(parse(status)).limiter == "blocks the environments: 640 more windows to be sampled, about 20 seconds"
    )
    assert summarize(parse(status)).first_update == ""


@pytest.mark.parametrize(("size_bytes", "share"), [(0, 0.11), (10**9, 0.5)])
def test_replay_is_as_full_as_its_nearer_limit(size_bytes: int, share: float) -> None:
    assert summarize(parse(make_status(replay_size_bytes=size_bytes))).replay.share == share


@pytest.mark.parametrize(
    ("event", "words"),
    [
        ({"event": "snapshot", "role": "agent", "detail": {"step": 512}}, "agent: snapshot of step 512"),
        ({"event": "failure", "role": "replay", "detail": {"message": "replay died"}}, "replay: failure replay died"),
        ({"event": "exit", "role": "replay", "detail": {}}, ""),
        ({"event": "refused", "role": "agent", "detail": {"reason": "no rows"}}, "agent: refused no rows"),
        (
            {"event": "worker_lost", "role": "agent", "detail": {TERMINAL_TEXT: "a worker on B is lost"}},
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
    assert summarize(parse(make_status()), [{"time": 0.0, **event}]).event.partition(" ")[2] == words
