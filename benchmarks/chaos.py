"""Chaos: a run with a random fault every few seconds, and what of it survives.

    python benchmarks/chaos.py [--minutes 5] [--seed 0] [--json]
    python benchmarks/chaos.py --errors [--minutes 3] [--seed 0] [--json]
    python benchmarks/chaos.py --workers [--minutes 3] [--json]

One fleet of four env workers with the counting environment and the agent that checks every window it trains on. Roles
are killed (one, several, the launcher: the run is then continued), killed again while they come back, stopped for a
while, killed at a random byte of a snapshot, the disk runs full, and the agent, environments, replay and a sink raise
errors. A fifth environment joins from a network namespace, whose link is cut, half-open, flapping, lossy or slow, and
whose host vanishes; without namespaces there are no such faults, and the result says why. After each fault the run has
to go on with all environments, and what its newest snapshot promises is compared with what is there (`invariants.py`).

With --errors there are only the faults of `chaos_errors.py`, and a fifth environment joins from a launcher of its own.

With --workers, one of the four env workers is killed every ten seconds, in half of the time: 30 s with and 30 s without
alternate, so that other work on the machine disturbs both alike. Exit code 1 if an invariant is broken.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import random
import signal
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from chaos_errors import Errors, kill
from chaos_fleet import ChaosFleet, Ended, all_gone, fill_disk, limit_files, small_disk
from chaos_network import NetworkFaults
from dreamfleet.core.roles import RoleKind
from invariants import Invariants
from namespaces import Network, why_unavailable

RECOVERY_LIMIT_S = 90.0
ORPHANS_S = 10.0
USAGE_EVERY_S = 300.0
STEP_BYTES = 400  # of one step, in replay and in the list of the agent that checks every window
MEMORY_SPREAD_MB = 64.0
PAUSE_S = (0.5, 3.0)  # between a recovery and the next fault
STOPPED_S = (0.5, 5.0)
FULL_S = (2.0, 5.0)
AGAIN_S = (0.0, 2.0)  # after a first kill, while its victim comes back
SNAPSHOT_LIMIT_S = 15.0
FORGOTTEN_S = 15.0  # until the actor no longer counts an environment that it does not hear of
SEGMENT_S, KILL_EVERY_S, MIN_SHARE = 30.0, 10.0, 0.85


class Chaos:
    """One run, and what was done to it."""

    def __init__(
        self, folder: Path, mounted: bool, seed: int, errors: bool = False, network: Network | None = None
    ) -> None:
        self.rng = random.Random(seed)
        self.network = network
        self.fleet = ChaosFleet(folder / "run", "run.save_every=1", join=errors or bool(network), network=network)
        self.invariants = Invariants(folder / "run")
        self._folder, self._mounted = folder, mounted
        self.faults: dict[str, Callable[[], set[int]]] = {
            "kill one": lambda: self._kill(1),
            "kill several": lambda: self._kill(self.rng.randint(2, 6)),
            "kill the launcher": self._kill_launcher,
            "kill again while it comes back": self._kill_again,
            "stop and go on": self._stop,
            "cut a snapshot": self._cut_snapshot,
            "full disk": self._fill,
            **Errors(self.fleet, self.rng).faults,
        }
        if network:
            self.faults |= NetworkFaults(self.fleet, self.rng).faults
        if errors:
            self.faults = Errors(self.fleet, self.rng).faults
        self.injected: Counter[str] = Counter()
        self.survived: Counter[str] = Counter()
        self.recovery_s: dict[str, list[float]] = {kind: [] for kind in self.faults}
        self.resumed = 0  # times that the launcher was started again
        self.undone = 0  # steps that a restarted agent or a continued run went back behind
        self.memory: list[tuple[int, float]] = []  # steps and MB, every few minutes
        self.cuts: list[tuple[int, int]] = []  # bytes that a snapshot had when it was cut, and the one before it

    def run(self, minutes: float) -> dict[str, Any]:
        self._recover(self.fleet.started, set())
        first = usage(self.fleet)
        until = time.monotonic() + 60 * minutes
        kinds: list[str] = []  # all of them in random order, and again
        look = time.monotonic() + USAGE_EVERY_S
        while time.monotonic() < until:
            time.sleep(self.rng.uniform(*PAUSE_S))
            if time.monotonic() > look:
                look += USAGE_EVERY_S
                self.memory.append((self.fleet.counts()[0], usage(self.fleet)["memory_mb"]))
            kinds = kinds or self.rng.sample(list(self.faults), len(self.faults))
            self._inject(kinds.pop())
        last = usage(self.fleet)
        step = self.fleet.counts()[0]
        self._expect_no_growth(first, last, step)
        self._end()
        return self._figures(first, last, step)

    def _inject(self, kind: str) -> None:
        step, before = self.fleet.counts()[0], self._went_back()
        self.injected[kind] += 1
        print(f"{time.strftime('%X')} {kind}", end=" ", file=sys.stderr, flush=True)
        gone = self._make(kind)
        since = time.time()
        step = max(step, self.fleet.counts()[0])
        survived = self._recover(since, gone)
        self.survived[kind] += survived
        self.recovery_s[kind].append(time.time() - since)
        self._expect_environments(kind)
        print(f"{self.recovery_s[kind][-1]:.1f} s", file=sys.stderr)
        restored, undone = (now[len(then) :] for now, then in zip(self._went_back(), before, strict=True))
        self.undone += max(0, max([step, *undone]) - min(restored)) if restored else 0
        least = min(restored, default=step)
        now = self.fleet.counts()[0]
        self.invariants.expect("the step only goes back to a snapshot", now >= least, (kind, step, now))
        broken = self.invariants.look()
        for text in broken:
            print(f"BROKEN after {kind}: {text}", file=sys.stderr)

    def _make(self, kind: str) -> set[int]:
        try:
            gone, why = self.faults[kind](), ""
        except (Ended, TimeoutError) as error:
            gone, why = set(), f"{kind}: {type(error).__name__}: {error}"
        finally:
            if self.network:
                self.network.heal()
        self.invariants.expect("the fault comes to pass", not why, why)
        return gone

    def _recover(self, since: float, gone: set[int]) -> bool:
        """Until the run goes on. One that does not is a broken invariant, and is continued."""
        try:
            self.fleet.await_progress(since, gone, RECOVERY_LIMIT_S)
        except (Ended, TimeoutError) as error:
            self.invariants.expect("the run goes on after a fault", False, f"{type(error).__name__}: {error}")
            processes = self.fleet.processes()
            self.fleet.end(30)
            all_gone(processes, ORPHANS_S)
            self._continue()
            self.fleet.await_progress(self.fleet.started, set(), RECOVERY_LIMIT_S)
            return False
        self.invariants.expect("the run goes on after a fault", True)
        return True

    def _expect_environments(self, kind: str) -> None:
        """The places of environments that were lost are known to be empty a few seconds later."""
        envs = self.fleet.envs
        try:
            self.fleet.wait(lambda: self.fleet.live_envs() == envs, time.monotonic() + FORGOTTEN_S, "its environments")
        except (Ended, TimeoutError):
            pass
        found = self.fleet.live_envs()
        self.invariants.expect("the actor hears of every environment and of no other", found == envs, (kind, found))

    def _went_back(self) -> tuple[list[int], list[int]]:
        """Steps of the snapshots that the run went back to, and of the episodes that this undid, so far."""
        restored = [int(entry["detail"]["snapshot"]) for entry in self.fleet.events("restore")]
        path = self.fleet.run / "episodes.lost.jsonl"
        return restored, [json.loads(line)["step"] for line in path.read_text().splitlines()] if path.exists() else []

    def _continue(self) -> None:
        self.resumed += 1
        self.fleet.start()

    def _kill(self, count: int) -> set[int]:
        pids = list(self.fleet.pids().values())
        victims = self.rng.sample(pids, min(count, len(pids)))
        for pid in victims:
            kill(pid)
        return set(victims)

    def _kill_again(self) -> set[int]:
        gone = self._kill(1)
        time.sleep(self.rng.uniform(*AGAIN_S))
        return gone | self._kill(2)

    def _kill_launcher(self) -> set[int]:
        processes, sockets = self.fleet.processes(), self.fleet.sockets()
        self.fleet.process.kill()
        self.fleet.process.wait()
        self.invariants.expect("a killed launcher leaves no process", all_gone(processes, ORPHANS_S), processes)
        self.invariants.expect("a killed launcher leaves no sockets", not sockets.exists(), sockets)
        self._continue()
        return set()

    def _stop(self) -> set[int]:
        pid = self.rng.choice([*self.fleet.pids().values(), self.fleet.process.pid])
        os.kill(pid, signal.SIGSTOP)
        time.sleep(self.rng.uniform(*STOPPED_S))
        os.kill(pid, signal.SIGCONT)
        return set()

    def _cut_snapshot(self) -> set[int]:
        """Kills one of those who write it once so many bytes are there, of about as many as the last one has."""
        snapshots = self.fleet.run / "snapshots"
        whole = max(map(folder_bytes, snapshots.glob("[0-9]" * 12)), default=0)
        goal = self.rng.randint(0, whole)
        victim = self.fleet.pids()[self.rng.choice(["agent", "replay", "logger"])]
        deadline = time.monotonic() + SNAPSHOT_LIMIT_S
        found = -1
        while found < goal and time.monotonic() < deadline:
            found = max(map(folder_bytes, snapshots.glob("*.tmp/")), default=-1)
        kill(victim)
        self.cuts.append((max(map(folder_bytes, snapshots.glob("*.tmp/")), default=-1), whole))
        return {victim}

    def _fill(self) -> set[int]:
        seconds = self.rng.uniform(*FULL_S)
        if self._mounted:
            fill_disk(self._folder, seconds)
        else:
            limit_files(self.fleet, seconds)
        return set()

    def _expect_no_growth(self, first: dict[str, Any], last: dict[str, Any], step: int) -> None:
        allowed = first["memory_mb"] + MEMORY_SPREAD_MB + step * STEP_BYTES / 1e6
        self.invariants.expect("no more memory than its steps take", last["memory_mb"] <= allowed, (first, last, step))
        same = first["processes"] == last["processes"]
        self.invariants.expect("no more processes than before", same, (first, last))
        few = last["descriptors"] <= first["descriptors"] + 2 * first["processes"]
        self.invariants.expect("no more descriptors than before", few, (first, last))

    def _end(self) -> None:
        processes, sockets = self.fleet.processes(), self.fleet.sockets()
        code = self.fleet.end(60)
        self.invariants.expect("the run ends as asked", code == 130, f"code {code}: {self.fleet.last_words()}")
        self.invariants.expect("no process is left", all_gone(processes, ORPHANS_S), processes)
        self.invariants.expect("no sockets are left", not sockets.exists(), sockets)
        self.invariants.look()

    def _figures(self, first: dict[str, Any], last: dict[str, Any], step: int) -> dict[str, Any]:
        seconds = [value for values in self.recovery_s.values() for value in values]
        dropped = sum(entry["detail"]["steps"] for entry in self.fleet.events("steps_lost"))
        return {
            "faults": {
                kind: kind_figures(self.injected[kind], self.survived[kind], self.recovery_s[kind])
                for kind in self.faults
            },
            "injected": sum(self.injected.values()),
            "survived": sum(self.survived.values()),
            "recovered_by_itself": sum(self.survived.values()) - self.survived["kill the launcher"],
            "resumed": self.resumed,
            "steps_of_the_run": step,
            "steps_undone_by_going_back": self.undone,
            "steps_lost_by_replay": dropped,
            "recovery_median_s": round(statistics.median(seconds), 1) if seconds else None,
            "recovery_worst_s": round(max(seconds), 1) if seconds else None,
            "snapshots_cut_at_bytes": [f"{found} of about {whole}" for found, whole in self.cuts if found >= 0],
            "disk": "full file system" if self._mounted else "RLIMIT_FSIZE",
            "usage_first": first,
            "usage_last": last,
            "steps_and_memory_mb": self.memory,
            **verdict(self.invariants),
        }


class Workers:
    """Throughput with an env worker killed every few seconds, against the same run left alone."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.fleet = ChaosFleet(folder / "run", "run.save_every=10")
        self.invariants = Invariants(folder / "run")
        self.kills = 0

    def run(self, minutes: float) -> dict[str, Any]:
        self.fleet.await_progress(self.fleet.started, set(), RECOVERY_LIMIT_S)
        rates: dict[bool, list[float]] = {True: [], False: []}
        memory: dict[bool, list[float]] = {True: [], False: []}
        first = usage(self.fleet)
        for _ in range(max(1, round(60 * minutes / SEGMENT_S))):
            for killing in (False, True):
                before = usage(self.fleet)
                rates[killing].append(self._segment(killing))
                self.fleet.await_progress(time.time(), set(), RECOVERY_LIMIT_S)
                memory[killing].append(usage(self.fleet)["memory_mb"] - before["memory_mb"])
                print(f"{'killing' if killing else 'calm':8}{rates[killing][-1]:8.1f} steps/s", file=sys.stderr)
        last = usage(self.fleet)
        calm, disturbed = (statistics.mean(rates[killing]) for killing in (False, True))
        share = disturbed / calm
        self.invariants.expect("throughput is kept", share >= MIN_SHARE, f"{share:.3f} of {calm:.1f} steps/s")
        for what in ("processes", "descriptors", "sockets"):
            self.invariants.expect(f"no more {what} than before", last[what] <= first[what], (first, last))
        self.invariants.look()
        code = self.fleet.end(60)
        self.invariants.expect("the run ends as asked", code == 130, f"code {code}: {self.fleet.last_words()}")
        return {
            "kills": self.kills,
            "seconds_each": SEGMENT_S * len(rates[True]),
            "calm_steps_per_s": [round(rate, 1) for rate in rates[False]],
            "killing_steps_per_s": [round(rate, 1) for rate in rates[True]],
            "share": round(share, 3),
            "memory_growth_calm_mb": round(sum(memory[False]), 1),
            "memory_growth_killing_mb": round(sum(memory[True]), 1),
            "usage_first": first,
            "usage_last": last,
            **verdict(self.invariants),
        }

    def _segment(self, killing: bool) -> float:
        """Steps per second, by the actor's own count and the time of its report."""
        begin = self._reported()
        start = time.monotonic()
        for number in range(round(SEGMENT_S / KILL_EVERY_S)):
            if killing:
                workers = [*self.fleet.pids(RoleKind.ENV).values()]
                kill(self.rng.choice(workers))
                self.kills += 1
            time.sleep(max(0.0, start + (number + 1) * KILL_EVERY_S - time.monotonic()))
            if self.fleet.process.poll() is not None:
                raise SystemExit(f"the run ended by itself: {self.fleet.last_words()}")
        steps, at = self._reported()
        return (steps - begin[0]) / (at - begin[1])

    def _reported(self) -> tuple[int, float]:
        status = self.fleet.status()
        agent = status["roles"]["agent"]
        return int(agent["status"]["actor"]["step"]), float(status["time"] - agent["report_age_s"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, help="how long; with --workers with kills, and as long without them")
    parser.add_argument("--seed", type=int, default=0, help="of the faults; their moments depend on the machine too")
    parser.add_argument("--workers", action="store_true", help="kill env workers only, and measure the throughput")
    parser.add_argument("--errors", action="store_true", help="only errors, and deaths while roles go back")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    options = parser.parse_args()
    short = options.workers or options.errors
    why = "not with these options" if short else why_unavailable()
    with contextlib.ExitStack() as until_end:
        folder, mounted = until_end.enter_context(small_disk())
        network = None if why else until_end.enter_context(Network(options.seed))
        chaos = (
            Workers(folder, options.seed)
            if options.workers
            else Chaos(folder, mounted, options.seed, options.errors, network)
        )
        try:
            found = chaos.run(options.minutes or (3.0 if short else 5.0))
        finally:
            chaos.fleet.end(30)
    machine = {"cores": os.cpu_count(), "python": platform.python_version(), "system": platform.system()}
    result = {"machine": machine, "seed": options.seed, "no_network_faults": why, **found}
    print(json.dumps(result) if options.json else table(result))
    sys.exit(bool(result["broken"]))


def folder_bytes(folder: Path) -> int:
    try:
        return sum(path.stat().st_size for path in folder.iterdir())
    except OSError:  # it got its name, or a file of it did
        return 0


def usage(fleet: ChaosFleet) -> dict[str, Any]:
    """Of the whole fleet, the launcher included."""
    total: Counter[str] = Counter()
    for process in fleet.processes():
        try:
            with process.oneshot():
                total["memory"] += process.memory_info().rss
                total["descriptors"] += process.num_fds()
                total["sockets"] += len(process.net_connections("all"))
                total["processes"] += 1
        except psutil.NoSuchProcess:
            continue
    counts = {key: total[key] for key in ("processes", "descriptors", "sockets")}
    return {**counts, "memory_mb": round(total["memory"] / 1e6, 1)}


def kind_figures(injected: int, survived: int, seconds: list[float]) -> dict[str, Any]:
    worst = round(max(seconds), 1) if seconds else None
    median = round(statistics.median(seconds), 1) if seconds else None
    return {"injected": injected, "survived": survived, "median_s": median, "worst_s": worst}


def verdict(invariants: Invariants) -> dict[str, Any]:
    return {
        "invariants": len(invariants.checked),
        "checks": sum(invariants.checked.values()),
        "broken": invariants.broken,
    }


def table(result: dict[str, Any]) -> str:
    lines = []
    for key, value in result.items():
        if key == "faults":
            lines += [f"{kind:40}{figures}" for kind, figures in value.items()]
        elif key == "broken":
            lines += [f"BROKEN {text}" for text in value]
        else:
            lines.append(f"{key:40}{value}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
