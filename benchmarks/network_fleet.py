"""A fleet whose launcher is in one network namespace, and whose environments are in others."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from chaos_fleet import ACTOR_PORT, LOOK_EVERY_S, TESTS, ChaosFleet, Ended, read_status
from namespaces import Host, Network
from support.cli_fleet import copy_invitation

REPLAY_PORT, LOGGER_PORT = 5502, 5503  # nobody else is in the namespaces
ENVS_EACH = 2
STARTS_WITHIN_S = 60.0


class ServedFleet(ChaosFleet):
    """Agent, replay and logger on a host; the agent checks every window (`tests/support/surviving.py`)."""

    def __init__(self, run: Path, host: Host, *overrides: str) -> None:
        self._host = host
        super().__init__(
            run, "agent=support.surviving:Checking", "env=support.surviving:Living", "run.report_every=0", *overrides
        )

    def start(self) -> None:
        command = [sys.executable, "-m", "dreamfleet", "train", *self._overrides, "--run-dir", str(self.run)]
        self.started = time.time()
        with self._words.open("wb") as words:
            self.process = subprocess.Popen(self._host.command(*command), env=environment(), stderr=words)


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
        state: dict[str, Any] = read_status(self.folder).get("roles", {}).get(self.role, {})
        return state

    def progress(self) -> tuple[int, int]:
        """The role's process and the steps it has made."""
        state = self.state()
        return state.get("pid", 0), (state.get("status") or {}).get("steps", 0)

    def events(self, event: str) -> list[dict[str, Any]]:
        path = self.folder / "events.jsonl"
        *lines, _ = path.read_text().split("\n") if path.exists() else [""]
        return [entry for line in lines if (entry := json.loads(line))["event"] == event]

    def await_another(self, pid: int, limit_s: float) -> None:
        """Until the role is ready in another process than the one that was killed."""
        deadline = time.monotonic() + limit_s
        while (state := self.state()).get("pid") == pid or state.get("state") != "ready":
            if self.process.poll() is not None:
                raise Ended(f"{self.role} elsewhere: code {self.process.returncode}: {self.last_words()}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.role} did not come back: {self.last_words()}")
            time.sleep(LOOK_EVERY_S)

    def last_words(self) -> str:
        return " | ".join(self._printed.read_text(errors="replace").splitlines()[-3:])

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class NetworkFleet:
    """Agent, replay and logger in one namespace, and a worker with two environments in each of some others.

    With `remote_replay`, replay is in another one, with a folder of its own.
    """

    def __init__(
        self, network: Network, folder: Path, workers: int = 2, remote_replay: bool = False, ipv6: bool = False
    ) -> None:
        self.network = network
        self.server = network.add()
        address = f"[{self.server.address6}]" if ipv6 else self.server.address
        listens = f"run.actor_addr=tcp://{address}:{ACTOR_PORT}"
        overrides = ["run.remote_envs=true", f"run.envs={workers * ENVS_EACH}", "run.save_every=1", listens]
        self._elsewhere = folder / "elsewhere"
        replay_host = network.add() if remote_replay else None
        if replay_host:
            overrides += ["run.remote_replay=true", f"run.replay_addr=tcp://{replay_host.address}:{REPLAY_PORT}"]
            overrides += [f"run.logger_addr=ipc://{{auto}},tcp://{self.server.address}:{LOGGER_PORT}"]
        self.fleet = ServedFleet(folder / "run", self.server, *overrides)
        self.fleet_file = folder / "run" / "fleet.json"
        deadline = time.monotonic() + STARTS_WITHIN_S
        self.fleet.wait(self.fleet_file.exists, deadline, "a fleet file")
        self.replay = self._bring_replay(replay_host) if replay_host else None
        self.workers = [self.join(network.add()) for _ in range(workers)]
        self.await_back(self.fleet.started, STARTS_WITHIN_S)

    def join(self, host: Host) -> Elsewhere:
        return Elsewhere(host, self.fleet_file, "env", f"--envs={ENVS_EACH}")

    def vanish(self, worker: Elsewhere) -> None:
        """The worker's host loses its power: no connection is closed."""
        self.workers.remove(worker)
        self.network.remove(worker.host)
        worker.process.wait()

    def come_back(self, worker: Elsewhere) -> Elsewhere:
        """The host that vanished starts again, with the same addresses, and joins."""
        self.workers.append(self.join(self.network.add(worker.host.number)))
        return self.workers[-1]

    def vanish_replay(self) -> None:
        """Replay's host loses its power; its disk stays."""
        assert self.replay
        self.network.remove(self.replay.host)
        self.replay.process.wait()

    def bring_replay_back(self) -> None:
        assert self.replay
        self.replay = self._bring_replay(self.network.add(self.replay.host.number))

    def _bring_replay(self, host: Host) -> Elsewhere:
        return Elsewhere(host, copy_invitation(self.fleet.run, self._elsewhere, "replay"), "replay")

    def envs(self) -> int:
        """From which the actor has heard within the last seconds."""
        agent = self.fleet.status()["roles"].get("agent", {}).get("status") or {}
        return int(agent.get("actor", {}).get("envs", 0))

    def await_back(self, since: float, limit_s: float, gone: set[int] | None = None) -> None:
        """Until no role is one of the processes that are `gone`, every role is ready, steps and updates grow, and
        all environments of all workers take part.
        """
        deadline = time.monotonic() + limit_s
        before = {worker.process.pid: worker.progress() for worker in self.workers}
        for role in self._roles_elsewhere():
            if (pid := role.state().get("pid")) in (gone or ()):
                role.await_another(pid, limit_s)
        self.fleet.await_running(since, gone or set(), limit_s)

        def all_step() -> bool:
            now = {worker.process.pid: worker.progress() for worker in self.workers}
            return all(now[pid][1] > 0 and now[pid] != before[pid] for pid in now)

        self.fleet.wait(all_step, deadline, f"steps of all workers after {before}")
        envs = ENVS_EACH * len(self.workers)
        self.fleet.wait(lambda: self.envs() == envs, deadline, f"{envs} environments")

    def processes(self) -> list[psutil.Process]:
        """Of all roles and launchers."""
        launchers = [psutil.Process(role.process.pid) for role in self._roles_elsewhere()]
        elsewhere = [process for one in launchers for process in (one, *one.children(recursive=True))]
        return [*self.fleet.processes(), *elsewhere]

    def sockets(self) -> Path:
        """The private folder of the fleet's local sockets."""
        addresses = json.loads(self.fleet_file.read_text())["addresses"]
        return Path(addresses["logger"][0].removeprefix("ipc://")).parent

    def end(self) -> int:
        """Ends the run; the roles elsewhere end with it. Returns its exit code."""
        code = self.fleet.end(60)
        for role in self._roles_elsewhere():
            with contextlib.suppress(subprocess.TimeoutExpired):
                role.process.wait(20)
            role.end()
        return code

    def _roles_elsewhere(self) -> list[Elsewhere]:
        return [*self.workers, *([self.replay] if self.replay else [])]


def environment() -> dict[str, str]:
    """Where agents and environments of the tests are found."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])}
