"""Connections without a key, held against a running fleet: environment steps per second in calm and in the flood.

    python benchmarks/keyless.py [--json] [--connections 10000] [--files 1024] [--rounds 3] [--servers actor]

Runs `dreamfleet train` as a user would and opens TCP connections to its actor, replay and logger that never say a word,
from processes of their own. Every connection that a server closes is opened again at once. Calm and flood alternate,
`--rounds` floods between calms; of each phase, the rate, the connections that the kernel has open at its begin and its
end, and the cores that ZeroMQ's threads take are printed. `--files` starts the fleet with so low a hard limit of open
files (`ulimit -n`). In the last flood a worker with the key joins, and at the end the fleet is asked to stop: it must
end with a last snapshot, as without all this.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import selectors
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any

EACH = 2500  # connections of one process
START_LIMIT_S = 120.0
JOIN_LIMIT_S = 60.0
TRY_EVERY_S = 0.2
FULL_LIMIT_S, FULL_S = 20.0, 1.0  # until a flood is there; a server that took in no more for so long is full


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--connections", type=int, default=10_000, help="to hold, over all servers together")
    parser.add_argument("--files", type=int, default=0, help="hard limit of open files of the fleet (0: as here)")
    parser.add_argument("--rounds", type=int, default=3, help="floods, each between two calms")
    parser.add_argument("--servers", nargs="+", default=["actor", "replay", "logger"], help="to connect to")
    parser.add_argument("--seconds", type=float, default=10.0, help="length of each phase")
    parser.add_argument("--join-within", type=float, default=60.0, help="seconds to join in; 0: only after the floods")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = measure(Path(folder), options)
    print(json.dumps(result) if options.json else table(result))


def measure(run: Path, options: argparse.Namespace) -> dict[str, Any]:
    fleet = start_fleet(run, options.files)
    seconds = options.seconds
    try:
        await_status(run, fleet, lambda status: updates(status) > 4, START_LIMIT_S)
        at = ports(run, options.servers)
        calm, floods, opened = [phase(run, fleet, at, seconds)], [], 0
        for number in range(options.rounds):
            with Flood(at, options.connections) as flood:
                flood.await_open()
                floods.append(phase(run, fleet, at, seconds))
                last = number == options.rounds - 1
                joined_during_s = time_to_join(run, fleet, options.join_within) if last else None
                opened += flood.opened()
            calm.append(phase(run, fleet, at, seconds))
        joined_after_s = time_to_join(run, fleet, JOIN_LIMIT_S)
        status = read_status(run)
    finally:
        fleet.send_signal(signal.SIGINT)
        printed = fleet.communicate(timeout=90)[1]
    before, during, after = (median_rate(phases) for phases in (calm[:-1], floods, calm[1:]))
    return {
        "connections": options.connections,
        "servers": options.servers,
        "files": options.files or resource.getrlimit(resource.RLIMIT_NOFILE)[1],
        "opened": opened,
        "calm": calm,
        "floods": floods,
        "env_steps_per_s": {"before": before, "during": during, "after": after},
        "ratio": {"during": round(during / before, 2), "after": round(after / before, 2)},
        "worker_joined_during_s": joined_during_s,
        "worker_joined_after_s": joined_after_s,
        "restarts": sum(role["restarts"] for role in status["roles"].values()),
        "exit_code": fleet.returncode,
        "snapshot": (run / "snapshots" / "latest").exists(),
        "printed": [line for line in printed.splitlines() if "fail" in line or "files" in line],
    }


def phase(run: Path, fleet: subprocess.Popen[str], at: list[int], seconds: float) -> dict[str, Any]:
    """The rate of so many seconds, and what the kernel says at their begin and end."""
    begun, first = time.monotonic(), zeromq_cpu_s(run)
    open_at_begin, files_at_begin = open_connections(at), files_of_agent(run)
    rate = steps_per_s(run, fleet, seconds)
    took = time.monotonic() - begun
    return {
        "env_steps_per_s": rate,
        "open": [open_at_begin, open_connections(at)],
        "files_of_agent": [files_at_begin, files_of_agent(run)],
        "zeromq_cores": {role: round((cpu - first[role]) / took, 2) for role, cpu in zeromq_cpu_s(run).items()},
    }


def median_rate(phases: list[dict[str, Any]]) -> float:
    return round(statistics.median(of["env_steps_per_s"] for of in phases), 1)


def open_connections(ports: list[int]) -> int:
    """Connections of the servers that are established, as the kernel counts them: taken in or ready to be."""
    found = 0
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            _, local, _, state, *_ = line.split()
            found += state == "01" and int(local.rpartition(":")[2], 16) in ports
    return found


def zeromq_cpu_s(run: Path) -> dict[str, float]:
    """Of each server's process: the CPU seconds of the threads in which ZeroMQ reads, writes and accepts."""
    ticks = os.sysconf("SC_CLK_TCK")
    found = {}
    for role in ("agent", "replay", "logger"):
        threads = Path(f"/proc/{read_status(run)['roles'][role]['pid']}/task").iterdir()
        stats = [(thread / "stat").read_text() for thread in threads]
        values = [stat.rpartition(")")[2].split() for stat in stats if "(ZMQbg/IO" in stat]
        found[role] = sum(int(value[11]) + int(value[12]) for value in values) / ticks
    return found


def start_fleet(run: Path, files: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "dreamfleet", "train", "agent=random", "env=dummy", "replay.size=1e5"]
    command += ["batch_size=8", "batch_length=16", "report_length=8"]
    command += ["run.envs=8", "run.eval_envs=0", "run.train_ratio=1", "run.save_every=5", "run.log_every=1"]
    command += ["--run-dir", str(run)]
    limited = ["bash", "-c", f'ulimit -n {files}; exec "$@"', "bash", *command] if files else command
    return subprocess.Popen(limited, stderr=subprocess.PIPE, text=True)


class Flood:
    """Processes that hold connections to the ports, and open again what a server closes."""

    def __init__(self, ports: list[int], connections: int) -> None:
        self._ports = ports
        self._connections = connections
        context = multiprocessing.get_context("spawn")
        self._opened: list[Synchronized[int]] = []
        self._processes = []
        for start in range(0, connections, EACH):
            opened = context.Value("i", 0)
            arguments = (ports, min(EACH, connections - start), opened)
            self._processes.append(context.Process(target=hold, args=arguments, daemon=True))
            self._opened.append(opened)

    def __enter__(self) -> Flood:
        for process in self._processes:
            process.start()
        return self

    def __exit__(self, *error: object) -> None:
        for process in self._processes:
            process.kill()
            process.join()

    def opened(self) -> int:
        """All that ever were."""
        return sum(value.value for value in self._opened)

    def await_open(self) -> None:
        """Until all are open, or no more become open: a server that is full accepts no more."""
        deadline = time.monotonic() + FULL_LIMIT_S
        most, since = 0, time.monotonic()
        while most < self._connections and time.monotonic() < min(deadline, since + FULL_S if most else deadline):
            if (found := open_connections(self._ports)) > most:
                most, since = found, time.monotonic()
            threading.Event().wait(TRY_EVERY_S)


def hold(ports: list[int], count: int, opened: Synchronized[int]) -> None:  # pragma: no cover, in a process of its own
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    selector = selectors.DefaultSelector()

    def connect(port: int) -> None:
        connection = socket.socket()
        connection.setblocking(False)
        connection.connect_ex(("127.0.0.1", port))
        selector.register(connection, selectors.EVENT_WRITE, port)

    for number in range(count):
        connect(ports[number % len(ports)])
    while True:
        for key, event in selector.select():
            connection: Any = key.fileobj
            if event & selectors.EVENT_WRITE and not connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                opened.value += 1
                selector.modify(connection, selectors.EVENT_READ, key.data)
            elif not is_open(connection):
                selector.unregister(connection)
                connection.close()
                connect(key.data)


def is_open(connection: socket.socket) -> bool:
    try:
        return bool(connection.recv(4096))
    except BlockingIOError:
        return True
    except OSError:
        return False


def ports(run: Path, servers: list[str]) -> list[int]:
    addresses = json.loads((run / "fleet.json").read_text())["addresses"]
    remote = [address for server in servers for address in addresses[server] if address.startswith("tcp")]
    return [int(address.rpartition(":")[2]) for address in remote]


def steps_per_s(run: Path, fleet: subprocess.Popen[str], seconds: float) -> float:
    first = read_status(run)
    last = await_status(run, fleet, lambda status: status["time"] >= first["time"] + seconds, seconds + 30)

    def when(status: dict[str, Any]) -> float:
        return float(status["time"] - status["roles"]["agent"]["report_age_s"])

    return round((step(last) - step(first)) / max(1e-9, when(last) - when(first)), 1)


def time_to_join(run: Path, fleet: subprocess.Popen[str], limit_s: float) -> float | None:
    """Seconds until a worker with the key, started now, has an environment in the run; None if it could not join."""
    if not limit_s:
        return None
    envs = read_status(run)["roles"]["agent"]["status"]["actor"]["envs"]
    command = [sys.executable, "-m", "dreamfleet", "role", "env", "--fleet", str(run / "fleet.json"), "--envs", "1"]
    begun = time.monotonic()
    worker = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        await_status(run, fleet, lambda s: s["roles"]["agent"]["status"]["actor"]["envs"] > envs, limit_s)
    except TimeoutError:
        return None
    finally:
        worker.send_signal(signal.SIGINT)
        worker.wait(20)
    return round(time.monotonic() - begun, 1)


def files_of_agent(run: Path) -> int:
    pid = read_status(run)["roles"]["agent"]["pid"]
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def read_status(run: Path) -> dict[str, Any]:
    path = run / "status.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"roles": {}, "time": 0.0}
    return found


def await_status(
    run: Path, fleet: subprocess.Popen[str], ready: Callable[[dict[str, Any]], bool], limit_s: float
) -> dict[str, Any]:
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if fleet.poll() is not None:
            raise SystemExit(f"the fleet ended by itself:\n{fleet.communicate()[1]}")
        if ready(status := read_status(run)):
            return status
        threading.Event().wait(TRY_EVERY_S)
    raise TimeoutError(f"the fleet did not get there within {limit_s:g} s")


def step(status: dict[str, Any]) -> int:
    return int(status["roles"]["agent"]["status"]["actor"]["step"])


def updates(status: dict[str, Any]) -> int:
    agent = status["roles"].get("agent", {}).get("status") or {}
    return int(agent.get("learner", {}).get("updates", 0))


def table(result: dict[str, Any]) -> str:
    return "\n".join(f"{key:24} {value}" for key, value in result.items())


if __name__ == "__main__":
    main()
