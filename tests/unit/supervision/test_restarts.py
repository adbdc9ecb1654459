"""Which roles come back, when, and what the run ends with when one may not."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

import pytest

from dreamfleet.supervision.failures import Failure, explain
from dreamfleet.supervision.restarts import RestartPlanner
from dreamfleet.supervision.role_spec import RestartRule, RoleSpec

ALONE = RestartRule(3, "run.max_restarts")
TOGETHER = RestartRule(3, "run.max_restarts", restart_group=("logger", "replay", "absent"))
STATELESS = RestartRule(2, "run.env_worker_restarts", 600.0, stateless=True)

KILLED = Failure("role", "role died: signal 9", from_outside=True)
ABORTED = Failure("role", "role died: signal 6 (SIGABRT)")
RAISED = Failure("role", "role failed: ValueError: broken")


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class FakeRole:
    name: str
    rule: RestartRule | None = ALONE
    alive: bool = True
    incarnations: int = 1
    ready_for_s: float | None = 60.0
    made_steps: int = 0
    spec: RoleSpec = field(init=False)

    def __post_init__(self) -> None:
        self.spec = RoleSpec(self.name, print, restart=self.rule)

    def ready_s(self) -> float | None:
        return self.ready_for_s

    def steps(self) -> int:
        return self.made_steps

    def die(self, restarts: RestartPlanner, failure: Failure) -> Failure | None:
        self.alive = False
        return restarts.plan(self, failure)

    def come_back(self) -> None:
        self.alive = True
        self.incarnations += 1


def make(*roles: FakeRole) -> tuple[RestartPlanner, Clock]:
    clock = Clock()
    return RestartPlanner(roles, clock), clock


def test_a_killed_role_comes_back_alone_after_a_moment() -> None:
    replay = FakeRole("replay")
    restarts, clock = make(replay)
    assert replay.die(restarts, KILLED) is None
    assert restarts.due() == []
    assert restarts.next_at() == pytest.approx(clock.now + 0.1)
    clock.now += 0.11
    (planned,) = restarts.due()
    assert (planned.name, planned.how, planned.count, planned.max_restarts) == ("replay", "alone", 1, 3)
    assert not restarts


def test_an_agent_takes_along_what_must_not_be_newer_once_all_have_ended() -> None:
    agent, replay, logger = FakeRole("agent", TOGETHER), FakeRole("replay"), FakeRole("logger")
    restarts, clock = make(logger, replay, agent)
    replay.die(restarts, KILLED)
    agent.die(restarts, KILLED)
    clock.now += 10
    assert list(restarts.leaving()) == ["logger"]
    assert restarts.due() == []
    assert restarts.next_at() == float("inf")
    logger.alive = False
    assert [(planned.name, planned.how) for planned in restarts.due()] == [
        ("logger", "together"),
        ("replay", "together"),
        ("agent", "together"),
    ]


def test_a_role_that_dies_before_it_is_ready_comes_back_in_the_same_way_as_before() -> None:
    """It may not have gone back to the snapshot yet, which the others are at."""
    agent, replay = FakeRole("agent", TOGETHER), FakeRole("replay")
    logger = FakeRole("logger", dataclasses.replace(ALONE, max_restarts=9))
    restarts, clock = make(logger, replay, agent)
    ways = []
    for role, ready_s in [(agent, 60.0), (logger, None), (logger, None), (logger, 3.0), (logger, None), (replay, None)]:
        role.ready_for_s = ready_s
        role.die(restarts, KILLED)
        for other in (logger, replay, agent):
            other.alive = other.name not in restarts
        clock.now += 10
        ways.append([(planned.name, planned.how) for planned in restarts.due()])
        for other in (logger, replay, agent):
            other.come_back()
    everybody = [("logger", "together"), ("replay", "together"), ("agent", "together")]
    again, alone = [("logger", "together")], [("logger", "alone")]
    assert ways == [everybody, again, again, alone, alone, [("replay", "together")]]


@pytest.mark.parametrize(("rule", "how"), [(ALONE, "together"), (STATELESS, "alone")])
def test_a_role_that_was_never_ready_begins_as_in_its_first_life(rule: RestartRule, how: str) -> None:
    role = FakeRole("role", rule, ready_for_s=None)
    restarts, clock = make(role)
    role.die(restarts, KILLED)
    clock.now += 10
    assert [planned.how for planned in restarts.due()] == [how]


def test_quick_deaths_are_followed_by_longer_delays_and_a_steady_life_by_a_short_one() -> None:
    worker = FakeRole("env-0", dataclasses.replace(STATELESS, max_restarts=100))
    restarts, clock = make(worker)
    delays = []
    for ready_s in [None, 1.0, None, None, None, None, None, None, 60.0, 1.0]:
        worker.ready_for_s, worker.incarnations = ready_s, 2
        worker.die(restarts, KILLED)
        delays.append(restarts.next_at() - clock.now)
        clock.now += 10
        restarts.due()
    assert delays == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 0.1, 0.1])


def test_a_budget_counts_within_its_window() -> None:
    worker = FakeRole("env-0", STATELESS)
    restarts, clock = make(worker)
    assert worker.die(restarts, KILLED) is None
    clock.now += 300
    assert worker.die(restarts, KILLED) is None
    clock.now += 301
    assert worker.die(restarts, KILLED) is None
    refusal = worker.die(restarts, KILLED)
    assert refusal is not None
    assert refusal.line == (
        "role died: signal 9; it was already restarted 2 times within 600 s, and run.env_worker_restarts allows no more"
    )


@pytest.mark.parametrize(("first_steps", "incarnations"), [(0, 3), (50, 6)])
def test_a_worker_whose_environments_never_make_a_step_is_given_up_soon(first_steps: int, incarnations: int) -> None:
    worker = FakeRole("env-0", dataclasses.replace(STATELESS, max_restarts=5), ready_for_s=0.5, made_steps=first_steps)
    restarts, clock = make(worker)
    for incarnation in range(1, incarnations):
        assert worker.die(restarts, ABORTED) is None, incarnation
        clock.now += 10
        restarts.due()
        worker.come_back()
        worker.made_steps = 0
    refusal = worker.die(restarts, ABORTED)
    assert refusal is not None
    why = (
        ("it died 3 times before any of its environments made a step")
        if not first_steps
        else "it was already restarted 5 times"
    )
    assert refusal.line.startswith(f"{ABORTED.line}; {why}")


def test_a_worker_that_is_killed_from_outside_keeps_its_budget() -> None:
    worker = FakeRole("env-0", dataclasses.replace(STATELESS, max_restarts=5), ready_for_s=0.5)
    restarts, _ = make(worker)
    assert [worker.die(restarts, KILLED) for _ in range(5)] == [None] * 5


@pytest.mark.parametrize(
    ("rule", "incarnations", "ready_s", "failure", "comes_back"),
    [
        (None, 1, 60.0, KILLED, False),
        (ALONE, 1, None, KILLED, True),
        (ALONE, 1, None, RAISED, False),
        (ALONE, 1, 2.0, RAISED, False),
        (ALONE, 1, 20.0, RAISED, True),
        (ALONE, 1, 2.0, dataclasses.replace(RAISED, symptom=True), True),
        (ALONE, 2, 2.0, RAISED, True),  # another failure than the one before
        (ALONE, 1, 60.0, dataclasses.replace(RAISED, bad_input=True), False),
        (ALONE, 1, 60.0, dataclasses.replace(RAISED, passing=False), False),
        (STATELESS, 1, None, RAISED, False),
        (STATELESS, 2, None, RAISED, True),
        (STATELESS, 1, 2.0, RAISED, True),
        (STATELESS, 2, 60.0, dataclasses.replace(RAISED, bad_input=True), False),
    ],
)
def test_which_failures_are_followed_by_another_life(
    rule: RestartRule | None, incarnations: int, ready_s: float | None, failure: Failure, comes_back: bool
) -> None:
    role = FakeRole("role", rule, incarnations=incarnations, ready_for_s=ready_s)
    restarts, _ = make(role)
    assert restarts.refuses(role, failure) == (not comes_back)
    assert (role.die(restarts, failure) is None) == comes_back
    assert bool(restarts) == comes_back


def test_the_same_failure_right_after_the_start_ends_the_run() -> None:
    role = FakeRole("agent")
    restarts, clock = make(role)
    assert role.die(restarts, RAISED) is None
    clock.now += 1
    restarts.due()
    role.come_back()
    role.ready_for_s = 9.0
    assert role.die(restarts, RAISED) == RAISED


def test_at_the_end_what_a_last_snapshot_needs_comes_back_at_once() -> None:
    replay, worker = FakeRole("replay"), FakeRole("env-0", STATELESS)
    restarts, _ = make(replay, worker)
    replay.die(restarts, KILLED)
    worker.die(restarts, KILLED)
    restarts.hasten(lambda spec: spec.restart is not None and not spec.restart.stateless)
    assert [planned.name for planned in restarts.due()] == ["replay"]
    assert restarts  # should the run go on after all


def test_a_gpu_without_memory_is_followed_by_what_to_lower() -> None:
    line = explain("agent failed: XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory\nwhile trying to allocate 9 GiB")
    assert line.startswith("agent failed: XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying")
    for word in ("batch_size", "agent.size", "XLA_PYTHON_CLIENT_MEM_FRACTION"):
        assert word in line
    assert explain("agent failed: KeyError: 'a'") == "agent failed: KeyError: 'a'"


def test_a_role_that_could_not_be_started_for_want_of_a_descriptor_is_tried_again() -> None:
    role = FakeRole("logger")
    restarts, clock = make(role)
    assert role.die(restarts, KILLED) is None
    clock.now += 1.0
    (planned,) = restarts.due()
    restarts.put_off(role, planned.how)
    assert "logger" in restarts
    assert restarts.due() == []
    clock.now += 5.0
    (again,) = restarts.due()
    assert (again.how, again.count) == (planned.how, 1)
    assert "too many open files" in again.reason
