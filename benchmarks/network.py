"""Faults of a network: a fleet over network namespaces, and what of it survives.

    python benchmarks/network.py [--remote-replay] [--count 3] [--kinds "cut" "slow"] [--seed 0] [--json]

Agent, replay and logger in one namespace, two workers with two environments each in others (`network_fleet.py`), the
counting environment and the agent that checks every window it trains on. Each kind of fault is injected `--count` times
in random order. While one worker is cut off, the run has to go on with the other one; when the fault is over, all
environments have to be back by themselves, and what the newest snapshot promises is compared with what is there
(`invariants.py`). With --remote-replay, replay is in a namespace of its own and has faults too; of the run, its records
alone are looked at. Recovery counts from the end of the fault, or from the kill. Exit code 1 if a fault was not
survived or an invariant is broken, 2 where no namespaces can be made.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cables import AWAY_S, CUT_S, HALF_OPEN_S, IMPAIRED_S, IMPAIRMENTS, LOSSY, flap, hold, impair
from chaos import ORPHANS_S, usage
from chaos_fleet import Ended, all_gone
from invariants import Invariants
from namespaces import LOST, Network, Quality, Unavailable
from network_fleet import Elsewhere, NetworkFleet

RECOVERY_LIMIT_S = 60.0


class NetworkFaults:
    """One run, and what was done to its network. A fault returns the processes that it killed."""

    def __init__(self, network: Network, folder: Path, seed: int, remote_replay: bool) -> None:
        self.rng = random.Random(seed)
        self.network = network
        self.folder = folder
        self.remote_replay = remote_replay
        self.lives = 0
        self.joined = self._start()
        self.faults: dict[str, Callable[[], set[int]]] = {
            **{name: lambda parts=parts: self._impair(*parts) for name, parts in IMPAIRMENTS.items()},  # type: ignore[misc]
            "flapping": self._flap,
            "all workers cut off": self._cut_server,
            "worker's host vanishes and returns": self._vanish,
            "worker's role killed": lambda: self._kill_elsewhere(self._worker()),
            "agent killed": self._kill_agent,
        }
        if remote_replay:
            self.faults |= {
                "replay cut": lambda: self._impair_replay(LOST, LOST, CUT_S),
                "replay half-open": lambda: self._impair_replay(Quality(), LOST, HALF_OPEN_S),
                "replay lossy": lambda: self._impair_replay(LOSSY, LOSSY, IMPAIRED_S),
                "replay's host vanishes and returns": self._vanish_replay,
                "replay's role killed": lambda: self._kill_elsewhere(self._replay()),
            }
        self.injected: Counter[str] = Counter()
        self.survived: Counter[str] = Counter()
        self.recovery_s: dict[str, list[float]] = {}

    def run(self, kinds: list[str], count: int) -> dict[str, Any]:
        order = [kind for kind in kinds for _ in range(count)]
        self.rng.shuffle(order)
        self.recovery_s = {kind: [] for kind in kinds}
        first = self._usage()
        for kind in order:
            self._inject(kind)
        last = self._usage()
        self._end()
        return {**self._figures(kinds), "usage_first": first, "usage_last": last}

    def _start(self) -> NetworkFleet:
        """The first run, or another one in place of one that did not survive."""
        for host in list(self.network.hosts.values()):
            self.network.remove(host)
        self.lives += 1
        folder = self.folder / str(self.lives)
        folder.mkdir()
        broken = self.invariants.broken if self.lives > 1 else []
        self.invariants = Invariants(folder / "run")
        self.invariants.broken.extend(broken)
        return NetworkFleet(self.network, folder, remote_replay=self.remote_replay)

    def _inject(self, kind: str) -> None:
        self.injected[kind] += 1
        print(f"{time.strftime('%X')} {kind}", end=" ", file=sys.stderr, flush=True)
        try:
            gone = self.faults[kind]()
            self.network.heal()
            since = time.time()
            self.joined.await_back(since, RECOVERY_LIMIT_S, gone)
        except (Ended, TimeoutError) as error:
            print(f"NOT SURVIVED: {type(error).__name__}: {error}", file=sys.stderr)
            self.network.heal()
            self.joined.end()
            self.joined = self._start()
            return
        self.survived[kind] += 1
        self.recovery_s[kind].append(time.time() - since)
        print(f"{self.recovery_s[kind][-1]:.1f} s", file=sys.stderr)
        before = len(self.invariants.broken)
        self.invariants.look_at_records() if self.remote_replay else self.invariants.look()
        for text in self.invariants.broken[before:]:
            print(f"BROKEN after {kind}: {text}", file=sys.stderr)

    def _usage(self) -> dict[str, Any]:
        """Of the fleet, without its connections: they are counted by namespace."""
        return {key: value for key, value in usage(self.joined.fleet).items() if key != "sockets"}

    def _end(self) -> None:
        processes, sockets = self.joined.processes(), self.joined.sockets()
        code = self.joined.end()
        self.invariants.expect("the run ends as asked", code == 130, f"code {code}: {self.joined.fleet.last_words()}")
        self.invariants.expect("no process is left", all_gone(processes, ORPHANS_S), processes)
        self.invariants.expect("no sockets are left", not sockets.exists(), sockets)

    def _worker(self) -> Elsewhere:
        return self.rng.choice(self.joined.workers)

    def _impair(self, sends: Quality, receives: Quality, seconds: tuple[float, float]) -> set[int]:
        since = time.time()
        impair(self._worker().host, sends, receives, self.rng.uniform(*seconds))
        self.joined.fleet.await_running(since, set(), RECOVERY_LIMIT_S)
        return set()

    def _flap(self) -> set[int]:
        flap(self._worker().host, self.rng)
        return set()

    def _cut_server(self) -> set[int]:
        self.joined.server.cut()
        hold(self.rng.uniform(*CUT_S))
        return set()

    def _vanish(self) -> set[int]:
        worker = self._worker()
        self.joined.vanish(worker)
        since = time.time()
        hold(self.rng.uniform(*AWAY_S))
        self.joined.fleet.await_running(since, set(), RECOVERY_LIMIT_S)
        self.joined.come_back(worker)
        return set()

    def _kill_elsewhere(self, role: Elsewhere) -> set[int]:
        pid = role.state()["pid"]
        os.kill(pid, signal.SIGKILL)
        return {pid}

    def _replay(self) -> Elsewhere:
        assert self.joined.replay
        return self.joined.replay

    def _impair_replay(self, sends: Quality, receives: Quality, seconds: tuple[float, float]) -> set[int]:
        impair(self._replay().host, sends, receives, self.rng.uniform(*seconds))
        return set()

    def _vanish_replay(self) -> set[int]:
        self.joined.vanish_replay()
        hold(self.rng.uniform(*AWAY_S))
        self.joined.bring_replay_back()
        return set()

    def _kill_agent(self) -> set[int]:
        pid = self.joined.fleet.pids()["agent"]
        os.kill(pid, signal.SIGKILL)
        return {pid}

    def _figures(self, kinds: list[str]) -> dict[str, Any]:
        everything = [value for values in self.recovery_s.values() for value in values]
        return {
            "faults": {kind: self._of_kind(kind) for kind in kinds},
            "injected": self.injected.total(),
            "survived": self.survived.total(),
            **recovery(everything),
            "steps_of_the_run": self.joined.fleet.counts()[0],
            "runs": self.lives,
            "invariants": len(self.invariants.checked),
            "checks": sum(self.invariants.checked.values()),
            "broken": self.invariants.broken,
        }

    def _of_kind(self, kind: str) -> dict[str, Any]:
        return {"injected": self.injected[kind], "survived": self.survived[kind], **recovery(self.recovery_s[kind])}


def recovery(seconds: list[float]) -> dict[str, Any]:
    return {
        "median_s": round(statistics.median(seconds), 1) if seconds else None,
        "worst_s": round(max(seconds), 1) if seconds else None,
    }


def table(result: dict[str, Any]) -> str:
    lines = ["| fault | injected | survived | recovery, median | worst |", "|---|---|---|---|---|"]
    for kind, of in [*result["faults"].items(), ("all", result)]:
        lines.append(f"| {kind} | {of['injected']} | {of['survived']} | {of['median_s']} s | {of['worst_s']} s |")
    others = {key: value for key, value in result.items() if key not in ("faults", "broken")}
    return "\n".join([*lines, *(f"{key}: {value}" for key, value in others.items()), *result["broken"]])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=3, help="how often each kind of fault is injected")
    parser.add_argument("--kinds", nargs="+", help="only these kinds of faults")
    parser.add_argument("--remote-replay", action="store_true", help="replay in a namespace of its own")
    parser.add_argument("--seed", type=int, default=0, help="of the faults; their moments depend on the machine too")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    options = parser.parse_args()
    try:
        network = Network(options.seed)
    except Unavailable as error:
        parser.exit(2, f"no network namespaces: {error}\n")
    with tempfile.TemporaryDirectory(prefix="network-", ignore_cleanup_errors=True) as folder, network:
        faults = NetworkFaults(network, Path(folder), options.seed, options.remote_replay)
        if unknown := set(options.kinds or ()) - set(faults.faults):
            parser.error(f"no such kinds: {', '.join(sorted(unknown))}; there are {', '.join(faults.faults)}")
        found = faults.run(options.kinds or list(faults.faults), options.count)
    machine = {"cores": os.cpu_count(), "python": platform.python_version(), "system": platform.system()}
    result = {"machine": machine, "seed": options.seed, **found}
    print(json.dumps(result) if options.json else table(result))
    sys.exit(bool(result["broken"]) or result["survived"] < result["injected"])


if __name__ == "__main__":
    main()
