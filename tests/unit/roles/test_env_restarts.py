"""Environments that fail are recreated in a new stream, within a budget."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dreamfleet.config.args import FleetArgs
from dreamfleet.core.errors import EnvFailed, SpaceMismatch, Stopped
from dreamfleet.core.interfaces import Arrays
from dreamfleet.roles.env_worker.instance import EnvMaker, EnvRestarter
from dreamfleet.roles.env_worker.measurements import StepClock
from support import fake_envs
from support.fake_envs import Breaking, CountingBatch, Echo
from support.fakes import make_context
from support.fleet_probe import wait_until
from support.worker_fleet import WAIT_S, WorkerFleet, expect_complete

# Where a `Breaking` breaks.
PLACE = next(
    f"{fake_envs.__file__}:{number} in step"
    for number, line in enumerate(Path(fake_envs.__file__).read_text().splitlines(), 1)
    if "the robot fell over" in line
)
RESET = {"action": np.int32(0), "reset": np.bool_(True)}


def breaking_once(at: int, broken: int = 1) -> tuple[Callable[..., Breaking], list[Breaking]]:
    """A factory whose environment `broken` breaks at this step, the first one that is made of it only."""
    made: list[Breaking] = []

    def make(index: int, restart: int) -> Breaking:
        made.append(Breaking(index, (at,) if index == broken and not restart else ()))
        return made[-1]

    return make, made


def test_an_environment_that_breaks_goes_on_as_another_one_in_another_stream(tmp_path) -> None:
    make, made = breaking_once(at=30)
    with WorkerFleet(tmp_path, 4, make=make) as fleet:
        wait_until(lambda: fleet.report.event_names() == ["env_restart"], WAIT_S, "the restart")
        fleet.await_steps(60)
    streams = fleet.streams()
    assert len(streams) == 5
    for steps in streams.values():
        expect_complete(steps)
        assert all(step["own"] for step in steps[1:])  # at the first one the carry is any, and the agent clears it
    before, after = [steps for steps in streams.values() if steps[0]["env"] == 1]
    assert (before[0]["count"], before[-1]["count"], after[0]["count"]) == (0, 29, 0)
    assert after[0]["is_first"]
    assert [env.closed for env in made] == [True] * 5
    ((_, detail),) = fleet.report.events
    assert (detail["env"], detail["count"]) == (1, 1)
    assert detail["name"] == "train environment 1 (Breaking)"
    assert detail["error"] == "RuntimeError: the robot fell over"
    assert detail["traceback"].splitlines()[-1] == "RuntimeError: the robot fell over"
    assert 'raise RuntimeError("the robot fell over")' in detail["traceback"]
    assert fleet.report.statuses[-1]["restarts"] == 1
    assert fleet.worker.joins == 1  # the others went on where they were


@pytest.mark.parametrize("same_step", [False, True])
def test_environments_that_step_together_begin_anew_together(tmp_path, same_step: bool) -> None:
    made: list[CountingBatch] = []

    def make(index: int, room: int, restart: int) -> CountingBatch:
        envs = [Breaking(index + row, (30,) if row == 1 and not restart else ()) for row in range(room)]
        made.append(CountingBatch(envs, same_step))
        return made[-1]

    with WorkerFleet(tmp_path, 3, make=make) as fleet:
        wait_until(lambda: fleet.report.event_names() == ["env_restart"], WAIT_S, "the restart")
        fleet.await_steps(40)
    streams = fleet.streams()
    assert sorted(steps[0]["env"] for steps in streams.values()) == [0, 0, 1, 1, 2, 2]
    for steps in streams.values():
        expect_complete(steps)
        assert steps[0]["count"] == 0
    assert [batch.closed for batch in made] == [True, True]


def test_an_environment_that_breaks_too_often_ends_the_worker_and_is_named(tmp_path) -> None:
    fleet = WorkerFleet(tmp_path, 2, make=lambda index: Breaking(index, (7,) if index else ()), env_restarts=3)
    fleet.thread.start()
    fleet.thread.join(WAIT_S)
    fleet.server.close()
    (failure,) = fleet.failures
    assert isinstance(failure, EnvFailed)
    assert str(failure) == (
        "train environment 1 (Breaking) failed 4 times within 600 s, env.restarts=3 allows no more; "
        f"the first error: RuntimeError: the robot fell over, raised at {PLACE}"
    )
    assert isinstance(failure.__cause__, RuntimeError)
    assert [detail["count"] for _, detail in fleet.report.events] == [1, 2, 3]


def test_a_broken_contract_is_not_cured_by_a_restart(tmp_path) -> None:
    class WrongShape(Echo):
        def step(self, action: Any) -> dict[str, Any]:
            obs = super().step(action)
            return {**obs, "vector": np.zeros(3, np.float32)} if len(self.actions) > 5 else obs

    made: list[WrongShape] = []

    def make(index: int) -> WrongShape:
        made.append(WrongShape(10))
        return made[-1]

    fleet = WorkerFleet(tmp_path, 1, make=make)
    fleet.actor.agent.policy = lambda carry, obs, mode: (carry, {"action": np.zeros(1, np.int32)}, {})  # type: ignore[method-assign]
    fleet.thread.start()
    fleet.thread.join(WAIT_S)
    fleet.server.close()
    (failure,) = fleet.failures
    assert isinstance(failure, SpaceMismatch)
    assert fleet.report.events == []
    assert [env.closed for env in made] == [True]


class Restarting:
    """A manual time, a switch that never lets time pass, and an actor that only gives out streams."""

    def __init__(self, make_env: Callable[..., Any], now: Callable[[], float], **args: Any) -> None:
        self.context, self.report = make_context("env-0")
        self.delays: list[float | None] = []
        self.context.stop.wait = lambda timeout_s=None: bool(self.delays.append(timeout_s))  # type: ignore[method-assign]
        maker = EnvMaker(make_env, "train", life=7)
        self.instance = maker.make(3, room=1)
        self.clock = StepClock(60.0)
        self.restarts = EnvRestarter(maker, FleetArgs(**args), self.context, self.clock, self._join, now)

    def _join(self, introduction: Arrays) -> Arrays:
        raise AssertionError("the group joins, not the restart")

    def replace(self, error: Exception = ValueError("broken")) -> Any:  # noqa: B008
        return self.restarts.replace(self.instance, error, RESET)


def test_a_factory_is_told_of_its_restarts_and_of_the_life_of_its_worker(manual_time) -> None:
    told: list[tuple[int, int]] = []

    def make(index: int, restart: int, life: int) -> Echo:
        told.append((restart, life))
        return Echo(10)

    restarting = Restarting(make, manual_time)
    for _ in range(2):
        restarting.replace()
    assert told == [(0, 7), (1, 7), (2, 7)]


def test_only_restarts_within_the_window_count(manual_time) -> None:
    restarting = Restarting(Breaking, manual_time, env_restarts=2, env_restart_window_s=100.0)
    restarting.instance.steps = 2
    for _ in range(20):
        restarting.replace()
        manual_time.advance(60)
    restarting.replace()
    with pytest.raises(EnvFailed, match=r"failed 3 times within 100 s.*ValueError: broken"):
        restarting.replace()
    assert restarting.instance.restarts == 21


def test_the_first_error_is_told_and_the_last_where_it_is_another_one(manual_time) -> None:
    restarting = Restarting(Breaking, manual_time, env_restarts=1)
    restarting.instance.steps = 2
    restarting.replace(OSError("no space left"))
    with pytest.raises(EnvFailed, match=r"the first error: OSError: no space left; the last one: ValueError: broken$"):
        restarting.replace()


def test_one_that_never_made_a_step_is_given_up_after_three_restarts(manual_time) -> None:
    restarting = Restarting(Breaking, manual_time)
    restarting.instance.steps = 1  # its reset
    restarting.replace(OSError("no licence"))
    restarting.replace()
    restarting.replace()
    with pytest.raises(EnvFailed, match=r"\(Breaking\) failed 4 times and never made a step; the first error: OSError"):
        restarting.replace()
    assert restarting.report.event_names() == ["env_restart"] * 3


def test_one_that_has_made_steps_before_keeps_its_budget(manual_time) -> None:
    restarting = Restarting(Breaking, manual_time, env_restarts=6)
    restarting.instance.steps = 2
    for _ in range(6):
        restarting.replace()
    with pytest.raises(EnvFailed, match="failed 7 times within 600 s"):
        restarting.replace()


def test_an_error_of_a_constructor_is_the_environments_with_its_line() -> None:
    def make(index: int) -> Breaking:
        raise OSError("no licence")

    with pytest.raises(EnvFailed, match=r"^eval environment 2 cannot be made: OSError: no licence, raised at .*\.py:"):
        EnvMaker(make, "eval").make(2, room=1)


def test_a_restart_is_an_event_with_the_place_of_the_error(manual_time) -> None:
    restarting = Restarting(Breaking, manual_time)
    with pytest.raises(RuntimeError) as raised:
        Breaking(0, (0,)).step(RESET)
    restarting.replace(raised.value)
    ((_, detail),) = restarting.report.events
    assert detail["place"] == PLACE


def test_without_restarts_the_first_error_is_the_last(manual_time) -> None:
    restarting = Restarting(Breaking, manual_time, env_restarts=0)
    with pytest.raises(EnvFailed, match=r"train environment 3 \(Breaking\) failed, env.restarts=0 allows no restart"):
        restarting.replace()


def test_one_that_breaks_before_it_has_stepped_again_is_given_more_and_more_time(manual_time) -> None:
    restarting = Restarting(Breaking, manual_time, env_restarts=100)
    restarting.instance.steps = 2
    for _ in range(9):
        restarting.replace()
    assert restarting.delays == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    restarting.instance.steps += 1
    restarting.replace()
    assert len(restarting.delays) == 8  # at once again
    restarting.replace()
    assert restarting.delays[8:] == [0.1]


def test_a_replacement_that_cannot_be_made_or_reset_is_tried_again(manual_time) -> None:
    outcomes = iter([None, OSError("no licence"), (0,), None])  # the second raises, the third breaks in its reset

    def make(index: int) -> Breaking:
        outcome = next(outcomes)
        if isinstance(outcome, OSError):
            raise outcome
        return Breaking(index, outcome or ())

    restarting = Restarting(make, manual_time)
    obs = restarting.replace()
    assert obs["is_first"]
    errors = [detail["error"] for _, detail in restarting.report.events]
    assert errors == ["ValueError: broken", "OSError: no licence", "RuntimeError: the robot fell over"]
    assert restarting.delays == [0.1, 0.2]


def test_a_restart_ends_when_the_worker_is_stopped(manual_time) -> None:
    restarting = Restarting(Breaking, manual_time)
    restarting.context.stop.set()
    with pytest.raises(Stopped):
        restarting.replace()
    assert restarting.instance.env is None


def test_the_number_of_the_restart_reaches_the_factory(manual_time) -> None:
    numbers: list[int] = []

    def make(index: int, restart: int = 7) -> Breaking:
        numbers.append(restart)
        return Breaking(index)

    restarting = Restarting(make, manual_time)
    restarting.replace()
    restarting.replace()
    assert numbers == [0, 1, 2]


def test_an_environment_that_cannot_be_closed_is_told_and_replaced(manual_time) -> None:
    restarting = Restarting(lambda index: Breaking(index, close_error=True), manual_time)
    first = restarting.instance.env
    restarting.replace()
    assert restarting.instance.env is not first
    assert restarting.report.event_names() == ["env_restart", "env_close_failed"]
    assert restarting.report.events[1][1]["error"] == "OSError: the window is gone"


def test_a_replacement_of_other_spaces_is_refused(manual_time) -> None:
    lengths = itertools.count(10)
    restarting = Restarting(lambda index: Echo(next(lengths)), manual_time)
    with pytest.raises(SpaceMismatch, match=r"train environment 3 \(Echo\) was recreated after an error, with other"):
        restarting.replace()


def test_one_that_cannot_be_closed_keeps_no_other_from_being_closed(tmp_path) -> None:
    made = [Breaking(0, close_error=True), Breaking(1), Breaking(2, close_error=True)]
    with WorkerFleet(tmp_path, 3, make=lambda index: made[index]) as fleet:
        fleet.await_steps(5)
    assert [env.closed for env in made] == [True, True, True]
    assert fleet.report.event_names() == ["env_close_failed", "env_close_failed"]


def test_environments_are_closed_when_the_worker_cannot_even_connect(tmp_path) -> None:
    made = [Breaking(0), Breaking(1)]
    fleet = WorkerFleet(tmp_path, 2, make=lambda index: made[index])
    fleet.server.close()
    fleet.worker.args = fleet.args.model_copy(update={"actor_addr": "udp://nowhere"})
    thread = threading.Thread(target=fleet._run)
    thread.start()
    thread.join(WAIT_S)
    assert len(fleet.failures) == 1
    assert [env.closed for env in made] == [True, True]
