"""Connections without a key, held against a running fleet: environment steps per second before, during and after.

    python benchmarks/keyless.py [--json] [--connections 10000] [--files 1024] [--reopen] [--servers actor]

Runs `dreamfleet train` as a user would and opens TCP connections to its actor, replay and logger that never say a word,
from processes of their own. `--files` starts the fleet with so low a hard limit of open files (`ulimit -n`).
With `--reopen` every connection that a server closes is opened again at once. Meanwhile a worker with the key joins,
and at the end the fleet is asked to stop: it must end with a last snapshot, as without all this.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import selectors
import signal
import socket
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--connections", type=int, default=10_000, help="to hold, over all servers together")
    parser.add_argument("--files", type=int, default=0, help="hard limit of open files of the fleet (0: as here)")
    parser.add_argument("--reopen", action="store_true", help="open again what a server closes")
    parser.add_argument("--servers", nargs="+", default=["actor", "replay", "logger"], help="to connect to")
    parser.add_argument("--seconds", type=float, default=10.0, help="length of each of the three measurements")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        flood = options.servers, options.connections, options.reopen
        result = measure(Path(folder), flood, options.files, options.seconds)
    print(json.dumps(result) if options.json else table(result))


def measure(run: Path, wanted: tuple[list[str], int, bool], files: int, seconds: float) -> dict[str, Any]:
    servers, connections, reopen = wanted
    fleet = start_fleet(run, files)
    try:
        await_status(run, fleet, lambda status: updates(status) > 4, START_LIMIT_S)
        before = steps_per_s(run, fleet, seconds)
        with Flood(ports(run, servers), connections, reopen) as flood:
            flood.await_opened()
            most = files_of_agent(run)
            during = steps_per_s(run, fleet, seconds)
            held = flood.held()
            joined_s = time_to_join(run, fleet)
            opened = flood.opened()
        joined_after_s = time_to_join(run, fleet) if joined_s is None else joined_s
        after = steps_per_s(run, fleet, seconds)
        status = read_status(run)
    finally:
        fleet.send_signal(signal.SIGINT)
        printed = fleet.communicate(timeout=90)[1]
    return {
        "connections": connections,
        "servers": servers,
        "files": files or resource.getrlimit(resource.RLIMIT_NOFILE)[1],
        "reopen": reopen,
        "opened": opened,
        "held_at_the_end": held,
        "files_of_agent": most,
        "env_steps_per_s": {"before": before, "during": during, "after": after},
        "ratio": {"during": round(during / before, 2), "after": round(after / before, 2)},
        "worker_joined_during_s": joined_s,
        "worker_joined_s": joined_after_s,
        "restarts": sum(role["restarts"] for role in status["roles"].values()),
        "exit_code": fleet.returncode,
        "snapshot": (run / "snapshots" / "latest").exists(),
        "printed": [line for line in printed.splitlines() if "fail" in line or "files" in line],
    }


def start_fleet(run: Path, files: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "dreamfleet", "train", "agent=random", "env=dummy", "replay.size=1e5"]
    command += ["run.envs=8", "run.eval_envs=0", "run.train_ratio=1", "run.save_every=5", "run.log_every=1"]
    command += ["--run-dir", str(run)]
    limited = ["bash", "-c", f'ulimit -n {files}; exec "$@"', "bash", *command] if files else command
    return subprocess.Popen(limited, stderr=subprocess.PIPE, text=True)


class Flood:
    """Processes that hold connections to the ports. `held` are open now, `opened` counts all that ever were."""

    def __init__(self, ports: list[int], connections: int, reopen: bool) -> None:
        self.connections = connections
        context = multiprocessing.get_context("spawn")
        self._held: list[Synchronized[int]] = []
        self._opened: list[Synchronized[int]] = []
        self._processes = []
        for start in range(0, connections, EACH):
            held, opened = context.Value("i", 0), context.Value("i", 0)
            arguments = (ports, min(EACH, connections - start), reopen, held, opened)
            self._processes.append(context.Process(target=hold, args=arguments, daemon=True))
            self._held.append(held)
            self._opened.append(opened)

    def __enter__(self) -> Flood:
        for process in self._processes:
            process.start()
        return self

    def __exit__(self, *error: object) -> None:
        for process in self._processes:
            process.kill()
            process.join()

    def held(self) -> int:
        return sum(value.value for value in self._held)

    def opened(self) -> int:
        return sum(value.value for value in self._opened)

    def await_opened(self, limit_s: float = 20.0) -> None:
        """Until all are open, or for as long as it may take: a server that is full accepts no more."""
        deadline = time.monotonic() + limit_s
        while self.opened() < self.connections and time.monotonic() < deadline:
            time.sleep(TRY_EVERY_S)


def hold(
    ports: list[int], count: int, reopen: bool, held: Synchronized[int], opened: Synchronized[int]
) -> None:  # pragma: no cover, in a process of its own
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    selector = selectors.DefaultSelector()
    established: set[socket.socket] = set()

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
                established.add(connection)
                opened.value += 1
                selector.modify(connection, selectors.EVENT_READ, key.data)
            elif not is_open(connection):
                selector.unregister(connection)
                connection.close()
                established.discard(connection)
                if reopen:
                    connect(key.data)
        held.value = len(established)


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


def time_to_join(run: Path, fleet: subprocess.Popen[str]) -> float | None:
    """Seconds until a worker with the key, started now, has an environment in the run; None if it could not join."""
    envs = read_status(run)["roles"]["agent"]["status"]["actor"]["envs"]
    command = [sys.executable, "-m", "dreamfleet", "role", "env", "--fleet", str(run / "fleet.json"), "--envs", "1"]
    begun = time.monotonic()
    worker = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        await_status(run, fleet, lambda s: s["roles"]["agent"]["status"]["actor"]["envs"] > envs, JOIN_LIMIT_S)
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
