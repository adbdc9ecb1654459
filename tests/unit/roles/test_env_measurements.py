"""What the worker measures: step times, stuck steps, and the `log/` keys of episodes."""

from __future__ import annotations

import math
import threading
from typing import Any

import numpy as np
import pytest

from dreamfleet.core.waits import Wait
from dreamfleet.metrics.workers import MAX_METRICS_BYTES
from dreamfleet.roles.env_worker.instance import EnvInstance
from dreamfleet.roles.env_worker.measurements import EpisodeLogs, StepClock, StepTimes
from dreamfleet.transport.codec import pack_json
from support.counting import CountingEnv
from support.fake_envs import CountingBatch, Echo
from support.fleet_probe import wait_until
from support.worker_fleet import WAIT_S, WorkerFleet


def step(logs: EpisodeLogs, row: int, kind: str = "", **values: Any) -> None:
    """One step; `kind` holds "f" for the first and "l" for the last one of an episode."""
    flags = {"is_first": np.bool_("f" in kind), "is_last": np.bool_("l" in kind), "image": np.zeros((2, 2))}
    logs.add(row, {**flags, **{f"log/{key}": value for key, value in values.items()}})


def test_log_keys_are_summed_up_per_episode() -> None:
    logs = EpisodeLogs()
    step(logs, 0, "f", coins=np.float32(0), map=np.zeros((2, 2)))
    step(logs, 0, coins=3, map=np.zeros((2, 2)))
    assert logs.take() == {}
    step(logs, 0, "l", coins=True, map=np.zeros((2, 2)))
    assert logs.take() == {"log/coins/avg": (4 / 3, 1), "log/coins/max": (3.0, 1), "log/coins/sum": (4.0, 1)}
    assert logs.take() == {}


def test_very_many_log_keys_take_several_messages() -> None:
    logs = EpisodeLogs()
    keys = [f"key \u1234 {number}" for number in range(2000)]
    step(logs, 0, "fl", **dict.fromkeys(keys, 1 / 3), **{"k" * 100_000: 1.0})
    taken: dict[str, tuple[float, int]] = {}
    for _ in range(100):
        part = logs.take()
        assert pack_json(part).nbytes < MAX_METRICS_BYTES * 3 // 4
        assert part.keys().isdisjoint(taken)
        taken |= part
    assert taken.keys() == {f"log/{key}/{kind}" for key in keys for kind in ("avg", "max", "sum")}


def test_keys_may_come_and_go_and_values_that_are_no_number_are_left_out() -> None:
    logs = EpisodeLogs()
    step(logs, 0, "f")
    step(logs, 0, won=math.nan, found=2.0)
    step(logs, 0, won=1.0, found=math.inf)
    step(logs, 0, "l")
    taken = logs.take()
    assert {key for key in taken if key.endswith("avg")} == {"log/won/avg", "log/found/avg"}
    assert (taken["log/won/avg"], taken["log/found/avg"]) == ((1.0, 1), (2.0, 1))


def test_figures_of_another_episode_or_environment_do_not_mix_in() -> None:
    logs = EpisodeLogs()
    step(logs, 0, "f", coins=100)
    step(logs, 1, "f", coins=1)
    step(logs, 0, "f", coins=7)  # abandoned
    step(logs, 0, "l", coins=7)
    assert logs.take()["log/coins/sum"] == (14.0, 1)
    logs.drop((1,))  # it broke
    step(logs, 1, "f", coins=2)
    step(logs, 1, "l", coins=2)
    assert logs.take()["log/coins/sum"] == (4.0, 1)


def test_several_episodes_between_two_takes_are_added_up() -> None:
    logs = EpisodeLogs()
    for coins in (1, 2, 6):
        step(logs, 0, "f")
        step(logs, 0, "l", coins=coins)
    assert logs.take()["log/coins/avg"] == (9.0, 3)


def test_rows_of_a_batch_are_episodes_of_their_own() -> None:
    logs = EpisodeLogs()
    everyone = np.arange(3)
    first, last = np.array([True, True, True]), np.array([False, False, False])
    logs.add_rows([0, 1, 2], {"is_first": first, "is_last": last, "log/x": np.array([1.0, math.nan, 5.0])}, everyone)
    last = np.array([True, False, True])
    logs.add_rows([0, 1, 2], {"is_first": ~first, "is_last": last, "log/x": np.array([3.0, 2.0, 5.0])}, everyone)
    assert logs.take()["log/x/sum"] == (14.0, 2)
    # Only row 0 counts: the others of a batch's first observations are undefined.
    logs.add_rows(
        [0, 1, 2], {"is_first": first, "is_last": ~last, "log/x": np.array([4.0, 100.0, 100.0])}, np.array([0])
    )
    last = np.array([True, True, False])
    logs.add_rows([0, 1, 2], {"is_first": ~first, "is_last": last, "log/x": np.array([4.0, 2.0, 0.0])}, everyone)
    assert logs.take()["log/x/sum"] == (12.0, 2)


def take(times: StepTimes) -> dict[str, float]:
    """Without the time in which it was measured."""
    taken = times.take()
    assert 0 < taken.pop("elapsed_s") < 60
    return taken


def test_step_times_show_the_mean_the_slowest_and_whose_it_was() -> None:
    instances = [EnvInstance(Echo(10), index, f"environment {index}") for index in range(2)]
    times = StepTimes(instances)
    instances[0].steps, instances[0].step_ns, instances[0].slowest_ns = 3, 6_000_000, 3_000_000
    instances[1].steps, instances[1].step_ns, instances[1].slowest_ns = 1, 10_000_000, 10_000_000
    assert take(times) == {"steps": 4, "step_ms": 16.0, "slowest_ms": 10.0}
    assert times.shown == {"avg": 4.0, "max": 10.0, "slowest": "environment 1"}
    instances[0].steps, instances[0].step_ns, instances[0].slowest_ns = 5, 7_000_000, 500_000
    assert take(times) == {"steps": 2, "step_ms": 1.0, "slowest_ms": 0.5}
    assert times.shown == {"avg": 0.5, "max": 0.5, "slowest": "environment 0"}
    assert take(times) == {"steps": 0, "step_ms": 0.0, "slowest_ms": 0.0}
    assert times.shown["avg"] == 0.5  # of the last time that there were steps


def test_a_step_that_takes_too_long_is_reported_once() -> None:
    clock = StepClock(5.0)
    instance = EnvInstance(Echo(10), 3, "train environment 3 (Echo)")
    assert clock.waiting() is None
    assert clock.stall() is None
    clock.running = (instance, -70_000_000_000)  # long before perf_counter_ns began to count
    stall = clock.stall()
    assert stall is not None
    assert (stall["env"], stall["name"]) == (3, "train environment 3 (Echo)")
    assert stall["seconds"] >= 70
    assert stall["reason"].startswith("train environment 3 (Echo): in step for ")
    assert clock.stall() is None
    waiting = clock.waiting()
    assert waiting is not None
    assert waiting[:2] == (Wait.ENV_STEP, "train environment 3 (Echo)")
    assert waiting[2] >= 70
    clock.running = (instance, -80_000_000_000)
    assert clock.stall() is not None


class Blocking(CountingEnv):
    def __init__(self, index: int, go_on: threading.Event) -> None:
        super().__init__(index)
        self._go_on = go_on

    def step(self, action: Any) -> dict[str, Any]:
        if self._count == 10 and self._index == 1:
            assert self._go_on.wait(WAIT_S)
        return super().step(action)


def test_an_environment_that_blocks_is_reported_by_name_and_shown_while_it_does(tmp_path) -> None:
    go_on = threading.Event()
    make = lambda index: Blocking(index, go_on)  # noqa: E731
    with WorkerFleet(tmp_path, 2, make=make, env_step_timeout_s=0.5) as fleet:
        name = "train environment 1 (Blocking) in step"
        shown = lambda: bool(fleet.report.statuses) and name in fleet.report.statuses[-1]["waiting"]  # noqa: E731
        wait_until(shown, WAIT_S, "a status that shows it")
        ((event, detail),) = fleet.report.events
        assert (event, detail["env"]) == ("stall", 1)
        go_on.set()
        fleet.await_steps(5)
    assert fleet.report.event_names() == ["stall"]


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_figures_of_episodes_and_steps_reach_the_logger(tmp_path, mode: str, together: bool) -> None:
    def make(index: int, room: int) -> Any:
        if not together:
            return CountingEnv(index, mode == "eval")
        return CountingBatch([CountingEnv(index + row, mode == "eval") for row in range(room)], same_step=True)

    def told(logger: Any) -> list[Any]:
        return [message for message in logger.metrics() if message["logs"]]  # a slow machine ends no episode at first

    with WorkerFleet(tmp_path, 2, mode, make=make) as fleet:
        fleet.logger.await_calls(lambda client: len(told(client)) >= 2)
    messages = told(fleet.logger)[:2]
    assert len({message["worker"] for message in messages}) == 1
    for message in messages:
        assert (message["mode"], message["restarts"]) == (mode, 0)
        assert message["steps"] > 0
        assert 0 < message["step_ms"] / message["steps"] <= message["slowest_ms"]
        assert message["logs"].keys() == {"log/count/avg", "log/count/max", "log/count/sum"}
        episodes = message["logs"]["log/count/avg"][1]
        assert episodes > 0
        # The key counts steps over all episodes: its highest in an episode lies above its mean by half a length or so.
        gap = (message["logs"]["log/count/max"][0] - message["logs"]["log/count/avg"][0]) / episodes
        assert 2.5 <= gap <= 3.0
    assert not any(key.startswith("log/") for batch in fleet.replay.sent(fleet.replay.methods()[0]) for key in batch)
