"""What a step costs, in calls that the code of this project makes: a count that no machine and no load changes.

Raise a figure only for something that is worth it to every step of every run, and say so where you do.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import dreamfleet
from support.lockstep import ENVS, make_role
from support.worker_fleet import WorkerFleet

SOURCE = str(Path(dreamfleet.__file__).parent)
GROWTH = 1.2  # what may be added to a figure before this fails
# Calls per environment step: of an env worker with one environment, the transport and the actor; and of actor, replay,
# logger and learner with three environments, one training round in between.
ON_THE_WAY = 370.0
WHERE_IT_IS_KEPT = 183.0


class Calls:
    """Counts functions of the project that are called, and those of others that it calls itself."""

    def __init__(self) -> None:
        self.count = 0
        self._lock = threading.Lock()

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if event in ("call", "c_call") and frame.f_code.co_filename.startswith(SOURCE):
            with self._lock:
                self.count += 1


@contextmanager
def counted() -> Iterator[Calls]:
    """In this thread, and in those that are started meanwhile."""
    calls = Calls()
    threading.setprofile(calls)
    sys.setprofile(calls)
    try:
        yield calls
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]


def test_calls_from_the_environment_to_the_actor_and_back(tmp_path: Path) -> None:
    with counted() as calls, WorkerFleet(tmp_path, 1) as fleet:
        fleet.await_steps(100)
        before, passed = calls.count, len(fleet.replay.calls)
        fleet.await_steps(400)
        per_step = (calls.count - before) / (len(fleet.replay.calls) - passed)
    print(f"{per_step:.1f} calls a step")
    assert per_step <= GROWTH * ON_THE_WAY


def test_calls_from_the_actor_to_replay_logger_and_learner(tmp_path: Path) -> None:
    role = make_role(tmp_path, eval_envs=0, log_every_steps=10**6, report_every_steps=0)
    for _ in range(100):
        role.round()
    with counted() as calls:
        for _ in range(200):
            role.round()
    role.close()
    per_step = calls.count / (200 * ENVS)
    print(f"{per_step:.1f} calls a step")
    assert per_step <= GROWTH * WHERE_IT_IS_KEPT
