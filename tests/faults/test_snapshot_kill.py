"""A run that is killed at any moment of a save finds a complete snapshot afterwards, with all that it promised."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from dreamfleet.checkpoint.arrays import load_arrays
from dreamfleet.checkpoint.snapshot import Snapshots
from support.fleet_probe import is_running, wait_until

SLOWEST_S = 0.15  # by then a few snapshots are written, so that kills hit all parts of a save

# Imports everything once, then forks a writer for each folder that it is told. A writer saves as a fleet does: the
# agent, a replay whose chunks change all the time, a logger; it never stops by itself.
PARENT = """
import os, sys
from pathlib import Path
import numpy as np
from dreamfleet.checkpoint.arrays import save_arrays
from dreamfleet.checkpoint.snapshot import Snapshots
from dreamfleet.config.args import FleetArgs
from dreamfleet.replay.store import ReplayOptions, ReplayStore
from dreamfleet.replay.stream import ReplayStream
from dreamfleet.roles.replay import ReplayRole
from dreamfleet.roles.connect import retention, snapshot_request

def write(run):
    args = FleetArgs(logdir=run, keep=2, keep_every=100, keep_best=1, train_ratio=0)
    make = lambda mode: ReplayStore(ReplayOptions(4, 60, chunksize=8, folder=run / "replay" / mode))
    role = ReplayRole(make("train"), make("eval"), lambda replay, mode: ReplayStream(replay, mode, 2, 4), args)
    role.restore()
    snapshots = Snapshots(run, retention(args))
    step = int(snapshots.manifest().get("step", 0))
    while True:
        for _ in range(9):
            step += 1
            role.add_batch({"stream": np.array([os.getpid()]), "value": np.array([step]),
                "dyn/value": np.array([step], np.float32), "is_first": np.array([False]), "is_last": np.array([False])})
        folder = snapshots.begin(step)
        numbers = {**snapshot_request(step, snapshots.token), "step": np.array(step), "updates": np.array(step)}
        role.capture(numbers)
        save_arrays(folder / "agent.safetensors", {"step": np.full(20_000, step)})
        role.saved(numbers)
        snapshots.commit(step, {"step": step, "updates": step, "score": step % 70})
        role.committed(numbers)

for line in sys.stdin:
    child = os.fork()
    if not child:
        write(Path(line.strip()))
    print(child, flush=True)
"""


@pytest.mark.parametrize("kills", [10, pytest.param(50, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
def test_after_any_kill_a_complete_snapshot_is_found(tmp_path: Path, kills: int) -> None:
    tests = Path(__file__).parents[1]
    path = os.pathsep.join([str(tests.parent / "src"), str(tests)])
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    rng, step, pending, pid = random.Random(5), 0, 0, 0
    assert parent.stdin is not None
    assert parent.stdout is not None
    try:
        for _ in range(kills):
            parent.stdin.write(f"{tmp_path}\n")
            parent.stdin.flush()
            pid = int(parent.stdout.readline())
            goal = step
            wait_until(lambda goal=goal: newest_step(tmp_path) > goal, 30, "a snapshot of this writer")  # type: ignore[misc]
            threading.Event().wait(rng.uniform(0, SLOWEST_S))  # the moment of the kill is what is random here
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda pid=pid: not is_running(pid), 10, "its end")  # type: ignore[misc]
            pending += any(path.suffix == ".tmp" for path in (tmp_path / "snapshots").iterdir())
            step = expect_complete(tmp_path, step)
    finally:
        if pid and is_running(pid):
            os.kill(pid, signal.SIGKILL)
        parent.kill()
        parent.communicate()
    assert pending > kills / 5, "the kills did not hit saves"


def newest_step(run: Path) -> int:
    try:
        return int((run / "snapshots" / "latest").read_text())
    except (FileNotFoundError, ValueError):
        return 0


def expect_complete(run: Path, least: int) -> int:
    """Everything of the newest snapshot is of one step, and no earlier than what was there before."""
    pointed = newest_step(run)
    folder = Snapshots(run).latest()
    assert folder is not None
    step = int(Snapshots(run).manifest()["step"])
    assert step >= max(least, pointed)
    assert set(load_arrays(folder / "agent.safetensors")["step"].tolist()) == {step}
    assert int(load_arrays(folder / "limiter.safetensors")["size"]) == step
    assert not [snapshot for snapshot in Snapshots(run).all() if snapshot.damage]
    windows = load_arrays(folder / "replay_train.safetensors")["windows"]
    assert len(windows) == len(np.unique(windows, axis=0))
    return step
