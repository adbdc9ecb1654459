"""A fleet whose launcher is in one network namespace, and whose environments are in others."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from chaos_fleet import ChaosFleet, environment
from namespaces import Host, Network

ACTOR_PORT = 5501  # nobody else is in the namespace
ENVS_EACH = 2
STARTS_WITHIN_S = 60.0


class Elsewhere:
    """A role in a namespace of its own, started with `dreamfleet role` and run by a launcher of its own."""

    def __init__(self, host: Host, fleet_file: Path, role: str, *arguments: str) -> None:
        self.host = host
        self.role = role
        self._folder = fleet_file.parent
        words = [sys.executable, "-m", "dreamfleet", "role", role, "--fleet", str(fleet_file), *arguments]
        self._printed = self._folder / f"{role}-{host.number}.stderr"
        with self._printed.open("ab") as printed:
            self.process = subprocess.Popen(host.command(*words), env=environment(), stderr=printed)

    @property
    def folder(self) -> Path:
        return self._folder / "remote" / f"{socket.gethostname()}-{self.process.pid}"

    def state(self) -> dict[str, Any]:
        """Of the role: its process and what it reports."""
        try:
            roles: dict[str, Any] = json.loads((self.folder / "status.json").read_text())["roles"]
        except (FileNotFoundError, ValueError):
            return {}
        return roles.get(self.role, {})

    def progress(self) -> tuple[int, int]:
        """The role's process and the steps it has made."""
        state = self.state()
        return state.get("pid", 0), (state.get("status") or {}).get("steps", 0)

    def events(self, event: str) -> list[dict[str, Any]]:
        path = self.folder / "events.jsonl"
        *lines, _ = path.read_text().split("\n") if path.exists() else [""]
        return [entry for line in lines if (entry := json.loads(line))["event"] == event]

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class NetworkFleet:
    """Agent, replay and logger in one namespace, and a worker with two environments in each of some others."""

    def __init__(self, network: Network, folder: Path, workers: int = 2, ipv6: bool = False) -> None:
        self.network = network
        self.server = network.add()
        address = f"[{self.server.address6}]" if ipv6 else self.server.address
        listens = f"run.actor_addr=tcp://{address}:{ACTOR_PORT}"
        overrides = ["run.remote_envs=true", f"run.envs={workers * ENVS_EACH}", "run.save_every=1", listens]
        self.fleet = ChaosFleet(folder / "run", *overrides, host=self.server.command())
        self.fleet_file = folder / "run" / "fleet.json"
        deadline = time.monotonic() + STARTS_WITHIN_S
        self.fleet.wait(self.fleet_file.exists, deadline, "a fleet file")
        self.workers = [self.join(network.add()) for _ in range(workers)]
        self.await_back(self.fleet.started, STARTS_WITHIN_S)

    def join(self, host: Host) -> Elsewhere:
        return Elsewhere(host, self.fleet_file, "env", f"--envs={ENVS_EACH}")

    def vanish(self, worker: Elsewhere) -> None:
        """The worker's host loses its power: nobody is told."""
        self.workers.remove(worker)
        self.network.remove(worker.host)
        worker.process.wait()

    def come_back(self, worker: Elsewhere) -> Elsewhere:
        """The host that vanished starts again, with the same addresses, and joins."""
        self.workers.append(self.join(self.network.add(worker.host.number)))
        return self.workers[-1]

    def envs(self) -> int:
        """From which the actor has heard within the last seconds."""
        agent = self.fleet.status()["roles"].get("agent", {}).get("status") or {}
        return int(agent.get("actor", {}).get("envs", 0))

    def await_back(self, since: float, limit_s: float, gone: set[int] | None = None) -> None:
        """Until every role is ready, steps and updates grow, and all environments of all workers take part."""
        deadline = time.monotonic() + limit_s
        before = {worker.process.pid: worker.progress() for worker in self.workers}
        self.fleet.await_progress(since, gone or set(), limit_s)

        def all_step() -> bool:
            now = {worker.process.pid: worker.progress() for worker in self.workers}
            return all(now[pid][1] > 0 and now[pid] != before[pid] for pid in now)

        self.fleet.wait(all_step, deadline, f"steps of all workers after {before}")
        envs = ENVS_EACH * len(self.workers)
        self.fleet.wait(lambda: self.envs() == envs, deadline, f"{envs} environments")

    def processes(self) -> list[psutil.Process]:
        """Of all roles and launchers."""
        launchers = [psutil.Process(role.process.pid) for role in self.workers]
        elsewhere = [process for one in launchers for process in (one, *one.children(recursive=True))]
        return [*self.fleet.processes(), *elsewhere]

    def sockets(self) -> Path:
        """The private folder of the fleet's local sockets."""
        addresses = json.loads(self.fleet_file.read_text())["addresses"]
        return Path(addresses["logger"][0].removeprefix("ipc://")).parent

    def end(self) -> int:
        """Ends the run; workers end with it. Returns its exit code."""
        code = self.fleet.end(60)
        for worker in self.workers:
            with contextlib.suppress(subprocess.TimeoutExpired):
                worker.process.wait(20)
            worker.end()
        return code
