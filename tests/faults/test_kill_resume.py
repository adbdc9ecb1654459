"""Any set of processes killed at any moment, the launcher among them: what a snapshot promised is there, to the step.

A round prints its seed and whom it kills, so that it can be repeated.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from invariants import Invariants
from support.fleet_probe import events_of, is_running, wait_until
from support.mortal_fleet import MortalFleet

LAUNCHER = "launcher"
ROLES = ["env-0", "env-1", "logger", "replay", "agent"]
LATEST_KILL_S = 3.0  # after the fleet is up again; some snapshots are taken in that time
BUDGETS = ["run.max_restarts=1000", "run.env_worker_restarts=1000"]
OFTEN = ["run.save_every=1", "run.report_every=0", "replay.chunksize=64", *BUDGETS]
LOSSES = ["train/loss/con", "train/loss/rew", "train/loss/rec/context"]
COMPARED, BAND = 3, 5  # lines of metrics after and before a resume
DREAMER = [
    "agent=dreamer",
    "env=bandit",
    "agent.size=tiny",
    "agent.opt.lr=1e-3",
    "agent.opt.warmup=50",
    "jax.platform=cpu",
    "jax.compute_dtype=float32",
    "batch_size=8",
    "batch_length=16",
    "report_length=8",
    "run.report_every=0",
    "run.train_ratio=32",
    "run.save_every=3",
    *BUDGETS,
]


class Survivor:
    """A run that is killed and continued."""

    def __init__(self, run: Path, overrides: Sequence[str], seed: int) -> None:
        print(f"seed {seed}")
        self.run = run
        self.rng = random.Random(seed)
        self.invariants = Invariants(run)
        self._overrides = overrides
        self.fleet = self._start()

    def __enter__(self) -> Survivor:
        return self

    def __exit__(self, *error: object) -> None:
        self.fleet.__exit__()

    def kill_some(self, victims: Sequence[str]) -> None:
        """Kills them at a random moment, waits until the run goes on, by itself or continued, and looks at it."""
        threading.Event().wait(self.rng.uniform(0, LATEST_KILL_S))  # the moment of the kill is what is random here
        print("kills", *victims)
        before = self.fleet.status()["roles"]
        struck = time.time()
        for role in victims:
            os.kill(self.fleet.process.pid if role == LAUNCHER else before[role]["pid"], signal.SIGKILL)
        if LAUNCHER in victims:
            self._expect_all_gone([role["pid"] for role in before.values()])
            self.fleet = self._start()
        else:
            counts = {role: before[role]["restarts"] for role in victims}
            self.fleet.wait(lambda: all(self.fleet.restarts(role) > counts[role] for role in victims), "restarts", 60)
            self._await_snapshot(struck)
        self.look()

    def look(self) -> None:
        broken = self.invariants.look()
        assert not broken, broken

    def end(self) -> None:
        pids = [process.pid for process in self.fleet.processes()]
        code, printed = self.fleet.stop(signal.SIGTERM, timeout_s=60)
        assert code == 130, printed
        self._expect_none(pids)
        self.look()

    def _start(self) -> MortalFleet:
        started = time.time()
        self.fleet = MortalFleet(self.run, *self._overrides)
        try:
            self._await_snapshot(started)
        except BaseException:
            self.fleet.__exit__()
            raise
        return self.fleet

    def _await_snapshot(self, since: float) -> None:
        """Until everybody is ready and has taken part in a snapshot."""

        def all_ready() -> bool:
            status = self.fleet.status()
            states = [role["state"] for role in status["roles"].values()]
            return status.get("time", 0) > since and set(states) == {"ready"}

        self.fleet.wait(all_ready, "all ready", 100)
        ready = time.time()
        self.fleet.wait(lambda: any(e["time"] > ready for e in events_of(self.run, "snapshot")), "a snapshot", 60)

    def _expect_all_gone(self, pids: Sequence[int]) -> None:
        """After the death of the launcher, which its roles notice by themselves."""
        sockets = self.fleet.sockets()
        self.fleet.process.communicate(timeout=10)
        self._expect_none(pids)
        shutil.rmtree(sockets, ignore_errors=True)  # where the roles were killed as well, nobody was left to do it

    def _expect_none(self, pids: Sequence[int]) -> None:
        wait_until(lambda: not any(map(is_running, pids)), 10, f"end of {pids}")


def draw_victims(rng: random.Random) -> list[str]:
    victims = rng.sample(ROLES, rng.randint(1, len(ROLES)))
    return [LAUNCHER, *victims[1:]] if rng.random() < 1 / 3 else victims


def test_what_a_snapshot_promised_is_there_after_kills(tmp_path: Path) -> None:
    with Survivor(tmp_path / "run", OFTEN, seed=0) as survivor:
        survivor.kill_some(["replay", "env-0"])
        survivor.kill_some([LAUNCHER, "agent"])
        survivor.end()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(1, 4))
def test_thirty_random_kills_break_nothing(tmp_path: Path, seed: int) -> None:
    with Survivor(tmp_path / "run", OFTEN, seed) as survivor:
        for _ in range(10):
            survivor.kill_some(draw_victims(survivor.rng))
        survivor.end()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_losses_of_dreamer_go_on_where_the_snapshot_was(tmp_path: Path) -> None:
    with Survivor(tmp_path / "run", DREAMER, seed=5) as survivor:
        survivor.fleet.wait(lambda: survivor.fleet.updates() > 150, "losses that have fallen", 300)
        for _ in range(5):
            survivor.kill_some(sorted({"agent", *draw_victims(survivor.rng)}))
            expect_same_curves(survivor)
        survivor.end()


def expect_same_curves(survivor: Survivor) -> None:
    """After the run went back to a snapshot, losses are among those before it and far from those of a new agent."""
    resumed = int(events_of(survivor.run, "restore")[-1]["detail"]["snapshot"])

    def found() -> list[dict[str, float]]:
        return [row for row in read_metrics(survivor.run) if row["step"] > resumed]

    survivor.fleet.wait(lambda: len(found()) >= COMPARED, "updates after it", 60)
    rows = read_metrics(survivor.run)
    updates = [row["train/opt/updates"] for row in rows]
    assert updates == sorted(set(updates))
    for name in LOSSES:
        before = [row[name] for row in rows if row["step"] <= resumed][-BAND:]
        after = [row[name] for row in found()[:COMPARED]]
        print(f"{name} began with {rows[0][name]:.4f}, was {max(before):.4f} at most and is {max(after):.4f}")
        assert max(after) < min(2 * max(before), rows[0][name] / 4), (name, rows[0][name], before, after)


def read_metrics(run: Path) -> list[dict[str, float]]:
    """Those lines that are of an update."""
    *lines, _ = (run / "metrics.jsonl").read_text().split("\n")  # the last one may still be on its way
    return [row for row in map(json.loads, lines) if LOSSES[0] in row]
