"""Roles that a user's own script calls, without a launcher: they end by themselves, with everything saved."""

from __future__ import annotations

import signal
import threading
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dreamfleet import parallel
from dreamfleet.checkpoint.snapshot import Snapshots
from dreamfleet.core.errors import ConfigError, DeadlineExceeded, RunFolderError, Stopped
from dreamfleet.core.interfaces import Arrays
from support import by_hand, counting
from support.by_hand import Processes, Threads
from support.fleet_probe import wait_until

WITHOUT_END = 10**9  # steps


def make_args(folder: Path, kind: str = "ipc", **changes: Any) -> dict[str, Any]:
    if kind == "tcp":
        parallel.create_keys(folder)
    return by_hand.make_args(folder, kind, **changes)


def expect_all_saved(folder: Path) -> None:
    """All but the last steps were trained on. An environment that began later than others has fewer of them."""
    seen = counting.steps_seen(by_hand.saved(folder)).values()
    assert sum(len(counts) for counts in seen) > counting.STEPS - 4 * counting.UNTRAINED_STEPS
    for counts in seen:
        assert (np.setdiff1d(np.arange(counts.max()), counts) > counts.max() - counting.UNTRAINED_STEPS).all()
    assert counting.STEPS <= Snapshots(folder).manifest()["step"] < counting.STEPS + counting.ENVS
    for file in ("metrics.jsonl", "episodes.jsonl"):
        assert (folder / file).stat().st_size > 0


@pytest.mark.parametrize("kind", ["ipc", "tcp"])
def test_threads_of_one_process_save_and_return_at_the_budget(tmp_path: Path, kind: str) -> None:
    args = make_args(tmp_path, kind)
    threads = Threads(**by_hand.serving(args), **by_hand.halves(counting.make_agent(), args))
    assert threads.errors() == {}
    expect_all_saved(tmp_path)


@pytest.mark.parametrize(("kind", "envs"), [("ipc", ["envs"]), ("tcp", ["env-0", "env-1", "env-2", "env-3", "eval-0"])])
def test_processes_started_one_by_one_save_and_end_at_the_budget(tmp_path: Path, kind: str, envs: list[str]) -> None:
    names = [*envs, "replay", "logger", "agent"]
    with Processes(make_args(tmp_path, kind), *names) as processes:
        assert processes.ends() == dict.fromkeys(names, (0, ""))
    expect_all_saved(tmp_path)


class Resumed(counting.CountingAgent):
    """Sees the counts of environments that began anew a second time."""

    def _check(self, batch: Arrays) -> None:
        self._check_order(batch)


def test_a_switch_given_to_every_role_loses_nothing_and_the_run_goes_on_later(tmp_path: Path) -> None:
    args = make_args(tmp_path, steps=WITHOUT_END)
    agent, stop = counting.make_agent(), parallel.Stop()
    targets = {**by_hand.serving(args), **by_hand.halves(agent, args)}
    threads = Threads(**{name: partial(role, stop=stop) for name, role in targets.items()})
    wait_until(lambda: agent._updates > 10, by_hand.ENDS_WITHIN_S, "updates")
    stop.set()
    assert threads.errors() == {}
    first = Snapshots(tmp_path).manifest()
    assert first["updates"] == agent._updates

    args = make_args(tmp_path, steps=first["step"] + 200)
    threads = Threads(**by_hand.serving(args), **by_hand.halves(Resumed(), args))
    assert threads.errors() == {}
    assert first["step"] + 200 <= Snapshots(tmp_path).manifest()["step"] < first["step"] + 200 + counting.ENVS


def test_a_switch_set_before_the_start_ends_a_role_at_once(tmp_path: Path) -> None:
    stop = parallel.Stop()
    stop.set()
    args = make_args(tmp_path)
    names = ("replay", "logger", "env-0", "agent")
    threads = Threads(**{name: partial(by_hand.roles(args)[name], stop=stop) for name in names})
    assert threads.errors() == {}
    assert Snapshots(tmp_path).latest() is None


def test_the_duration_ends_a_run_as_its_steps_do(tmp_path: Path) -> None:
    args = make_args(tmp_path, steps=WITHOUT_END, duration=0.5)
    threads = Threads(**by_hand.serving(args), agent=by_hand.roles(args)["agent"])
    assert threads.errors() == {}
    assert Snapshots(tmp_path).latest() is not None


def test_ctrl_c_in_the_agents_process_saves_and_ends_the_others(tmp_path: Path) -> None:
    args = make_args(tmp_path, steps=WITHOUT_END, save_every=0)
    metrics = tmp_path / "metrics.jsonl"

    def trains() -> bool:
        return metrics.exists() and "train/steps_seen" in metrics.read_text()

    with Processes(args, "replay", "logger", "env-0", "env-1", "agent") as processes:
        wait_until(trains, by_hand.ENDS_WITHIN_S, "metrics of training")
        processes["agent"].send_signal(signal.SIGINT)
        ends = processes.ends()
    code, printed = ends.pop("agent")
    assert code == -signal.SIGINT
    assert printed.rstrip().endswith("KeyboardInterrupt")
    assert ends == dict.fromkeys(("replay", "logger", "env-0", "env-1"), (0, ""))
    assert Snapshots(tmp_path).manifest()["updates"] > 0


class BreakingAgent(counting.CountingAgent):
    """Raises an error in one of its methods, after a while."""

    def __init__(self, method: str, calls: int) -> None:
        super().__init__()
        self._left = calls
        self._call = getattr(self, method)
        setattr(self, method, self._break)

    def _break(self, *args: Any) -> Any:
        self._left -= 1
        if self._left < 0:
            raise ValueError("broke")
        return self._call(*args)


@pytest.mark.parametrize(
    ("method", "calls", "blamed"),
    [("policy", 300, "actor"), ("train", 20, "learner"), ("init_train", 0, "learner")],
    ids=["acting", "training", "before it starts"],
)
def test_an_agent_that_fails_raises_its_error_and_ends_the_fleet(
    tmp_path: Path, method: str, calls: int, blamed: str
) -> None:
    args = make_args(tmp_path, start_timeout_s=2 * by_hand.ENDS_WITHIN_S)
    servers = {name: by_hand.roles(args)[name] for name in ("replay", "logger")}
    envs = {name: by_hand.roles(args)[name] for name in ("env-0", "env-1")}
    stop = parallel.Stop()
    agent = BreakingAgent(method, calls)
    threads = Threads(**servers, **by_hand.halves(agent, args))
    workers = Threads(**{name: partial(role, stop=stop) for name, role in envs.items()})
    errors = {name: error for name, error in threads.errors().items() if "cannot start" not in str(error)}
    stop.set()  # for environments that no actor served
    workers.errors()
    assert list(errors) == [blamed]
    assert (type(errors[blamed]), str(errors[blamed])) == (ValueError, "broke")


def test_a_learner_without_an_actor_says_so(tmp_path: Path) -> None:
    args = make_args(tmp_path, start_timeout_s=0.1)
    halves = by_hand.halves(counting.make_agent(), args)
    threads = Threads(
        replay=by_hand.roles(args)["replay"], logger=by_hand.roles(args)["logger"], learner=halves["learner"]
    )
    errors = threads.errors()
    assert list(errors) == ["learner"]
    assert isinstance(errors["learner"], DeadlineExceeded)
    assert "the actor was not ready within 0.1 s" in str(errors["learner"])


def test_a_barrier_serves_one_run(tmp_path: Path) -> None:
    args = make_args(tmp_path)
    agent, barrier = counting.make_agent(), threading.Barrier(2)
    barrier.abort()  # as actor and learner do when one of them has ended
    actor = partial(parallel.parallel_actor, agent, barrier, args)
    learner = partial(parallel.parallel_learner, agent, barrier, args)
    errors = Threads(actor=actor, learner=learner).errors()
    assert [type(error) for error in errors.values()] == [Stopped, Stopped]
    assert (
        str(errors["actor"])
        == "parallel_actor cannot start: its barrier belongs to a run that has ended: create a new Barrier for each run"
    )


def test_a_replay_run_by_hand_ends_with_the_fleet_of_a_launcher(tmp_path: Path) -> None:
    args = make_args(tmp_path, "tcp")
    with Processes(args, "replay") as processes:
        agent = counting.run_fleet(tmp_path, remote_replay=True, replay_addr=args["replay_addr"])
        counting.expect_complete(agent)
        assert processes.ends() == {"replay": (0, "")}


def test_a_logger_run_by_hand_refuses_a_goal_that_it_could_not_end_the_run_with(tmp_path: Path) -> None:
    args = make_args(tmp_path, goal=5.0)
    (error,) = Threads(logger=by_hand.roles(args)["logger"]).errors().values()
    assert isinstance(error, ConfigError)
    assert "goal=5" in str(error)


def test_a_role_that_writes_needs_a_run_folder(tmp_path: Path) -> None:
    args = make_args(tmp_path)
    (error,) = (
        Threads(agent=partial(parallel.parallel_agent, counting.make_agent, {**args, "logdir": ""})).errors().values()
    )
    assert isinstance(error, RunFolderError)
    assert "parallel_agent needs a run folder: set args.logdir" in str(error)


def test_keys_made_for_a_run_are_kept(tmp_path: Path) -> None:
    public = parallel.create_keys(tmp_path)
    assert public == parallel.create_keys(str(tmp_path))
    assert {path.name for path in (tmp_path / "keys").iterdir()} == {f"{name}.json" for name in public}
