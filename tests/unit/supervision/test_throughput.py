"""Rates and waits from counts that grow."""

from __future__ import annotations

from typing import Any

import pytest

from dreamfleet.runs.status import read_roles
from dreamfleet.supervision.throughput import WINDOW_S, ThroughputMeter, while_idle


def roles(step: int, updates: int = 0, waited: float = 0.0, idle: float = 0.0, env: float = 0.0) -> dict[str, Any]:
    server = {"handler_s": 1.0, "post_s": 2.0}
    return {
        "agent": {
            "status": {
                "actor": {"step": step, "clock_s": 50.0 + idle, "server": server, "wait_s": {"replay": waited}},
                "learner": {"updates": updates, "waited_s": {"replay_to_sample": waited}},
            }
        },
        "replay": {"status": {"limiter": {"insert_wait_s": waited / 2, "sample_wait_s": 3 * waited}}},
        "env-0": {"status": {"actions_wait_s": env}},
        "env-1": {"status": {"actions_wait_s": 0.0}},
        "env-2": {"status": None},
    }


@pytest.fixture
def pace() -> Any:
    clock = [0.0]
    made = ThroughputMeter(lambda: clock[0])

    def read(time: float, **counts: Any) -> dict[str, Any]:
        clock[0] = time
        return made.read(read_roles(roles(**counts))).model_dump()

    return read


def test_rates_are_over_the_last_half_minute(pace) -> None:
    pace(0.0, step=1, updates=1)
    assert pace(10.0, step=101, updates=21)["env_per_s"] == 10.0
    assert pace(20.0, step=501, updates=61)["updates_per_s"] == 3.0
    for second in range(21, 81):
        last = pace(float(second), step=501 + (second - 20), updates=61)
    assert WINDOW_S == 30
    assert (last["env_per_s"], last["updates_per_s"]) == (1.0, 0.0)


def test_steps_from_before_a_continuation_are_no_speed(pace) -> None:
    pace(0.0, step=0)
    assert pace(1.0, step=50_000, updates=900)["env_per_s"] == 0.0
    assert pace(2.0, step=50_010, updates=901)["env_per_s"] == 10.0


def test_a_continued_run_is_at_its_restored_step_until_the_agent_reports() -> None:
    clock = [0.0]
    pace = ThroughputMeter(lambda: clock[0], step=4000, updates=60)
    assert [getattr(pace.read({}), key) for key in ("step", "updates", "env_per_s")] == [4000, 60, 0.0]
    clock[0] = 20.0  # the time of the start is none in which steps were made
    assert pace.read(read_roles(roles(step=4000, updates=60))).env_per_s == 0.0
    clock[0] = 30.0
    assert pace.read(read_roles(roles(step=4050, updates=61))).env_per_s == 5.0


def test_the_step_of_an_agent_that_restarts_is_the_last_one_known() -> None:
    pace = ThroughputMeter(lambda: 0.0)
    pace.read(read_roles(roles(step=200, updates=6)))
    assert [getattr(pace.read(read_roles({"agent": {"status": {}}})), key) for key in ("step", "updates")] == [200, 6]


def test_an_agent_that_began_anew_starts_the_window_anew(pace) -> None:
    pace(0.0, step=100)
    assert pace(1.0, step=90)["env_per_s"] == 0.0
    assert pace(2.0, step=95)["env_per_s"] == 5.0


def test_waits_are_shares_of_the_time_and_never_more_than_all_of_it(pace) -> None:
    pace(0.0, step=1)
    found = pace(10.0, step=2, waited=5.0, idle=2.0, env=6.0)
    assert found["shares"] == {
        "actor": {"observations": 0.2, "replay": 0.5},
        "learner": {"replay_to_sample": 0.5},
        "replay": {"actor_to_insert": 1.0, "learner_to_sample": 0.25},
        "env": {"actions": 0.3},
    }
    assert found["waits"] == {
        "actor": {"observations": 0.2, "replay": 0.5},
        "learner": {"replay to sample": 0.5},
        "replay": {"actor to insert": 1.0, "learner to sample": 0.25},
        "envs": {"actions": 0.3},
    }


def test_the_learner_s_waits_count_only_while_its_device_has_nothing_to_compute() -> None:
    clock = [0.0]
    pace, found = ThroughputMeter(lambda: clock[0]), []
    for clock[0], waited, idle_s in ((0.0, 1.0, 3.0), (10.0, 9.0, 5.0)):
        given = roles(step=1, waited=waited)
        given["agent"]["status"]["learner"] |= {"device_s": {"busy": 1.0, "idle": idle_s}}
        given["agent"]["status"]["learner"]["waited_s"]["replay_to_accept_latents"] = waited / 4
        found.append(pace.read(read_roles(given)).waits)
    assert found[-1]["learner"] == {"replay to sample": 0.16, "replay to accept latents": 0.04}, (
        "8 and 2 s, in 2 of which it idled"
    )


def test_a_wait_while_the_device_idles_for_longer_stays_as_it_is() -> None:
    assert while_idle({"a": 0.1, "b": 0.05}, 0.3) == {"a": 0.1, "b": 0.05}
    assert while_idle({}, 0.3) == {}
    assert while_idle({"a": 0.5}, 0.0) == {"a": 0.0}


def test_a_fleet_without_reports_has_no_pace() -> None:
    assert ThroughputMeter().read({}).step == 0
