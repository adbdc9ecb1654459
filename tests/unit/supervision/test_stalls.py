"""What the watchdog calls a stall, in which words, and what it takes for granted."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dreamfleet.core.roles import RoleKind
from dreamfleet.core.waits import Wait
from dreamfleet.supervision.stalls import Watchdog

TIMEOUT_S = 40.0


def waits(wait: Wait, seconds: float, env: str = "") -> list[dict[str, Any]]:
    return [{"wait": wait, "env": env, "seconds": seconds}]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class FakeRole:
    name: str
    kind: RoleKind
    last_status: dict[str, Any] = field(default_factory=dict)
    alive: bool = True
    ready: bool = True
    silent_for_s: float = 0.5

    def silent_s(self) -> float:
        return self.silent_for_s


class Fleet:
    def __init__(self, timeout_s: float = TIMEOUT_S) -> None:
        self.clock = Clock()
        self.watchdog = Watchdog(timeout_s, self.clock)
        self.agent = FakeRole("agent", RoleKind.AGENT, {"actor": {"step": 0, "envs": 2}, "learner": {"updates": 1}})
        self.replay = FakeRole("replay", RoleKind.REPLAY, {"limiter": {"state": "open"}})
        self.workers = [FakeRole("env-0", RoleKind.ENV), FakeRole("env-1", RoleKind.ENV)]

    @property
    def roles(self) -> list[FakeRole]:
        return [self.agent, self.replay, *self.workers]

    def pass_time(self, seconds: int, steps: int = 0, updates: int = 0) -> tuple[list[Any], dict[str, float]]:
        """Looks once a second; `steps` and `updates` are made in each of them. Returns all that was told."""
        stalls, ended = [], {}
        for _ in range(seconds):
            self.clock.now += 1
            self.agent.last_status["actor"]["step"] += steps
            self.agent.last_status["learner"]["updates"] += updates
            new, gone = self.watchdog.look(self.roles)
            stalls += new
            ended.update(gone)
        return stalls, ended


def test_a_run_that_goes_on_is_no_stall() -> None:
    assert Fleet().pass_time(200, steps=3, updates=1) == ([], {})


def test_a_silent_role_is_told_once_with_what_the_others_wait_for() -> None:
    fleet = Fleet()
    fleet.workers[1].silent_for_s = 41
    fleet.agent.last_status["learner"]["waits"] = waits(Wait.REPLAY_TO_SAMPLE, 40.6)
    fleet.replay.last_status = {"limiter": {"state": "first_update", "missing": 228, "inserts": 812}}
    stalls, _ = fleet.pass_time(100)
    (stall,) = stalls
    assert (stall.what, stall.culprit, stall.roles) == ("env-1", "env-1", ("env-1",))
    limited = "812 of 1,040 steps before the first update"
    assert stall.text == f"env-1 silent for 41 s; learner waits for replay to sample for 41 s: {limited}"
    fleet.workers[1].silent_for_s = 0.2
    assert fleet.pass_time(1)[1] == {"env-1": 100.0}


def test_no_steps_are_a_stall_without_a_culprit_while_everybody_waits() -> None:
    fleet = Fleet()
    fleet.pass_time(10, steps=1)
    fleet.agent.last_status["actor"].update(envs=0)
    fleet.agent.last_status["learner"]["waits"] = waits(Wait.REPLAY_TO_SAMPLE, 41.0)
    stalls, _ = fleet.pass_time(45)
    (stall,) = stalls
    assert (stall.what, stall.culprit) == ("steps", "")
    assert stall.text.startswith("no step for 40 s; learner waits for replay to sample for 41 s")
    assert stall.text.endswith("no environments are connected to the actor")
    assert fleet.pass_time(1, steps=1) == ([], {"steps": 6.0})


def test_a_learner_that_trains_no_more_is_the_culprit() -> None:
    fleet = Fleet()
    stalls, _ = fleet.pass_time(60, steps=1)
    assert [(stall.what, stall.culprit) for stall in stalls] == [("updates", "agent")]


def test_a_learner_that_waits_while_steps_come_is_no_stall() -> None:
    fleet = Fleet()
    fleet.agent.last_status["learner"]["waits"] = waits(Wait.REPLAY_TO_SAMPLE, 90.0)
    assert fleet.pass_time(100, steps=1)[0] == []


def test_steps_that_the_learner_holds_back_are_no_stall_while_it_makes_updates() -> None:
    fleet = Fleet()
    fleet.agent.last_status["actor"]["waits"] = waits(Wait.REPLAY_TO_ACCEPT_STEPS, 90.0)
    fleet.replay.last_status = {"limiter": {"state": "samples", "missing": 640}}
    assert fleet.pass_time(100, updates=1) == ([], {})
    fleet.agent.last_status["learner"]["waits"] = waits(Wait.REPLAY_TO_SAMPLE, 41.0)
    (stall,) = fleet.pass_time(50)[0]
    assert stall.text.startswith("no step for 139 s; learner waits for replay to sample for 41 s: 640 more windows")


def test_steps_that_nobody_holds_back_are_a_stall_whatever_the_learner_does() -> None:
    stalls, _ = Fleet().pass_time(50, updates=1)
    assert [stall.what for stall in stalls] == ["steps"]


def test_a_start_and_a_long_step_of_an_environment_are_known() -> None:
    starting, stepping = Fleet(), Fleet()
    starting.agent.ready = False
    starting.agent.silent_for_s = 300
    stepping.agent.last_status["learner"]["waits"] = waits(Wait.REPLAY_TO_SAMPLE, 90.0)
    stepping.workers[0].last_status = {"waits": waits(Wait.ENV_STEP, 90.0, "train environment 0 (Slow)")}
    assert starting.pass_time(100)[0] == []
    assert stepping.pass_time(100)[0] == []


def test_the_time_that_a_restart_takes_does_not_count() -> None:
    fleet = Fleet()
    fleet.agent.last_status["learner"]["waits"] = waits(Wait.REPLAY_TO_SAMPLE, 90.0)
    fleet.pass_time(35)
    fleet.replay.alive = fleet.replay.ready = False
    fleet.pass_time(60)
    fleet.replay.alive = fleet.replay.ready = True
    assert fleet.pass_time(35)[0] == []
    assert len(fleet.pass_time(10)[0]) == 1


def test_zero_seconds_mean_never() -> None:
    fleet = Fleet(timeout_s=0)
    fleet.agent.silent_for_s = 1e6
    assert fleet.pass_time(100)[0] == []


def test_a_worker_that_waits_to_be_stopped_in_a_run_that_goes_on_is_a_stall_at_once() -> None:
    fleet = Fleet()
    fleet.workers[1].last_status["waits"] = waits(Wait.SUPERVISOR_TO_STOP, 0.5)
    assert fleet.pass_time(2, steps=1, updates=1) == ([], {})
    fleet.workers[1].last_status["waits"] = waits(Wait.SUPERVISOR_TO_STOP, 1.5)
    stalls, _ = fleet.pass_time(5, steps=1, updates=1)
    (stall,) = stalls
    assert (stall.what, stall.culprit, stall.roles) == ("env-1", "env-1", ("env-1",))
    assert stall.text == "env-1 has waited 2 s for the supervisor to stop it, but the run continues"
    fleet.workers[1].last_status["waits"] = []
    assert fleet.pass_time(1, steps=1, updates=1) == ([], {"env-1": 5.0})
