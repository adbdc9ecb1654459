"""Roles that a user's own script calls, without a launcher: they end by themselves, with everything saved."""

from __future__ import annotations

from pathlib import Path

import pytest

import by_hand
import counting
from by_hand import Processes, Threads
from dreamfleet import parallel
from dreamfleet.checkpoint.snapshot import Snapshots


def expect_all_saved(folder: Path) -> None:
    counting.expect_complete(by_hand.saved(folder))
    assert counting.STEPS <= Snapshots(folder).manifest()["step"] < counting.STEPS + counting.ENVS
    for file in ("metrics.jsonl", "episodes.jsonl"):
        assert (folder / file).stat().st_size > 0


@pytest.mark.parametrize("kind", ["ipc", "tcp"])
def test_threads_of_one_process_save_and_return_at_the_budget(tmp_path: Path, kind: str) -> None:
    args = by_hand.make_args(tmp_path, kind)
    if kind == "tcp":
        parallel.create_keys(tmp_path)
    threads = Threads(**by_hand.serving(args), **by_hand.halves(counting.make_agent(), args))
    assert threads.errors() == {}
    expect_all_saved(tmp_path)


@pytest.mark.parametrize("kind", ["ipc", "tcp"])
def test_processes_started_one_by_one_save_and_end_at_the_budget(tmp_path: Path, kind: str) -> None:
    args = by_hand.make_args(tmp_path, kind)
    if kind == "tcp":
        parallel.create_keys(tmp_path)
    names = ["env-0", "env-1", "env-2", "env-3", "replay", "logger", "agent"]
    with Processes(args, *names) as processes:
        assert processes.ends() == dict.fromkeys(names, (0, ""))
    expect_all_saved(tmp_path)


def test_worker_processes_of_a_machine_end_with_an_agent_run_by_hand(tmp_path: Path) -> None:
    args = by_hand.make_args(tmp_path)
    names = ["replay", "logger", "envs", "agent"]
    with Processes(args, *names) as processes:
        assert processes.ends() == dict.fromkeys(names, (0, ""))
    expect_all_saved(tmp_path)
    assert by_hand.saved(tmp_path)["eval_steps"] > 0
