"""A fleet in processes of its own whose run folder is watched, and a disk small enough to be filled."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

from dreamfleet.core.roles import RoleKind
from namespaces import Host, Network

TESTS = Path(__file__).parents[1] / "tests"
sys.path.append(str(TESTS))

from support import raising  # noqa: E402 - beside the tests, which use it too

DISK_MB = 256  # an hour's replay, snapshots and metrics are about half of it
MIN_FILE_BYTES = 1000  # where no small disk can be mounted
JOIN_S = 30.0  # until a worker can join, and for it to leave at the end
ACTOR_PORT = 5501  # in network namespaces, where nobody else is
NEW_MOUNTS = 0x00020000  # CLONE_NEWNS
LOOK_EVERY_S = 0.05
ENVS = 4
COMMON = [
    "agent=support.raising:Agent",
    "env=support.raising:Env",
    "env.restarts=100000",
    "replay.size=1e6",
    "replay.chunksize=256",
    "batch_size=2",
    "batch_length=8",
    "report_length=4",
    f"run.envs={ENVS}",
    "run.envs_per_worker=1",
    "run.eval_envs=0",
    "run.train_ratio=4",
    "run.log_every=1",
    "run.report_every=1",
    "run.min_disk_gb=0.01",
    "run.max_restarts=100000",
    "run.env_worker_restarts=100000",
    "run.stop_timeout_s=20",
]


class Ended(Exception):
    """The fleet ended by itself; with its last words."""


class ChaosFleet:
    """The environment and the agent are those of `tests/support/raising.py`: the agent ends the run at a window that
    crosses a cut, or a step that comes twice, and both raise errors when they are asked to. With `join`, one more
    environment is a worker with a launcher of its own. With a `network`, that one is on a host of its own and outlives
    the fleet's launcher.
    """

    def __init__(self, run: Path, *overrides: str, join: bool = False, network: Network | None = None) -> None:
        self.run = run
        self.envs = ENVS + join
        self._network = network
        self._server, self.elsewhere = (network.add(), network.add()) if network else (None, None)
        if self._server:
            overrides = (*overrides, f"run.actor_addr=ipc://{{auto}},tcp://{self._server.address}:{ACTOR_PORT}")
        self.raising = run.with_name(f"{run.name}.raising")
        self.raising.mkdir()
        self._join = join
        self._joined: subprocess.Popen[bytes] | None = None
        self._overrides = [*COMMON, *overrides]
        self._words = run.with_name(f"{run.name}.stderr")
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "chaos_program", *self._overrides, "--run-dir", str(self.run)]
        self.started = time.time()
        (self.run / "fleet.json").unlink(missing_ok=True)  # of an earlier launcher
        with self._words.open("wb") as words:
            self.process = subprocess.Popen(on(self._server, command), env=self._environment(), stderr=words)
        if self._join and not self._joined:
            self.join()

    def join(self) -> None:
        """Starts the worker that has a launcher of its own."""
        fleet_file = self.run / "fleet.json"
        self.wait(fleet_file.exists, time.monotonic() + JOIN_S, "a fleet file")
        command = [sys.executable, "-m", "dreamfleet", "role", "env", "--fleet", str(fleet_file)]
        self._joined = subprocess.Popen(on(self.elsewhere, command), env=self._environment(), stderr=subprocess.DEVNULL)

    def vanish(self) -> None:
        """The host of the worker that joined loses its power: no connection is closed."""
        assert self._network and self.elsewhere and self._joined
        self._network.remove(self.elsewhere)
        self._joined.wait()

    def come_back(self) -> None:
        """The host that vanished starts again, with the same address, and joins."""
        assert self._network and self.elsewhere
        self.elsewhere = self._network.add(self.elsewhere.number)
        self.join()

    def _environment(self) -> dict[str, str]:
        own = [str(Path(__file__).parent), str(TESTS)]
        path = os.pathsep.join([*own, *filter(None, [os.environ.get("PYTHONPATH")])])
        # Where the size of files is limited, compiled modules would be cut short as well, and stay so.
        return {
            **os.environ,
            "PYTHONPATH": path,
            "PYTHONDONTWRITEBYTECODE": "1",
            raising.VARIABLE: str(self.raising),
        }

    def status(self) -> dict[str, Any]:
        """Of this launcher; an earlier one's is none."""
        status = read_status(self.run)
        return status if status.get("time", 0) > self.started else {"time": 0.0, "state": "none", "roles": {}}

    def events(self, event: str) -> list[dict[str, Any]]:
        path = self.run / "events.jsonl"
        *lines, _ = path.read_text().split("\n") if path.exists() else [""]
        return [entry for line in lines if f'"{event}"' in line and (entry := json.loads(line))["event"] == event]

    def pids(self, *kinds: RoleKind) -> dict[str, int]:
        """Of the roles that are alive, or of those of some kinds."""
        own = {process.pid for process in self.processes()}
        roles = self.status()["roles"].items()
        return {
            name: role["pid"] for name, role in roles if role["pid"] in own and (not kinds or role["kind"] in kinds)
        }

    def processes(self) -> list[psutil.Process]:
        try:
            return [launcher := psutil.Process(self.process.pid), *launcher.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def counts(self) -> tuple[int, int]:
        """Steps and updates."""
        agent = self.status()["roles"].get("agent", {}).get("status") or {}
        return int(agent.get("actor", {}).get("step", 0)), int(agent.get("learner", {}).get("updates", 0))

    def has_begun(self, role: str, seconds: float) -> bool:
        """Whether it is ready, and in its first life has been there for some time."""
        found = self.status()["roles"].get(role, {})
        return found.get("state") == "ready" and (found["restarts"] > 0 or found["uptime_s"] > seconds)

    def await_start(self, role: str, before: int) -> int:
        """The process of a role's next life, as soon as it has begun."""

        def newest() -> int:
            return [int(entry["detail"]["pid"]) for entry in self.events("start") if entry["role"] == role][-1]

        self.wait(lambda: newest() != before, time.monotonic() + JOIN_S, f"the next {role}")
        return newest()

    def worker_steps(self) -> dict[str, tuple[int, int]]:
        """The process of each env worker, also of the one that joined, and the steps that it has made."""
        roles = {name: role for name, role in self.status()["roles"].items() if role["kind"] == RoleKind.ENV}
        if self._joined:
            folder = self.run / "remote" / f"{socket.gethostname()}-{self._joined.pid}"
            roles["joined"] = read_status(folder).get("roles", {}).get("env", {"pid": 0, "status": None})
        return {name: (role["pid"], (role["status"] or {}).get("steps", 0)) for name, role in roles.items()}

    def live_envs(self) -> int:
        """Environments that the actor heard of within the last seconds, by its own count."""
        agent = self.status()["roles"].get("agent", {}).get("status") or {}
        return int(agent.get("actor", {}).get("envs", 0))

    def await_running(self, since: float, gone: set[int], limit_s: float) -> None:
        """Until nobody is one of those who are `gone`, every role is ready, and steps and updates grow, whatever
        workers take part.
        """

        def all_ready() -> bool:
            status = self.status()
            roles = status["roles"].values()
            fresh = status["time"] > since and not gone & {role["pid"] for role in roles}
            return bool(roles) and fresh and all(role["state"] == "ready" for role in roles)

        deadline = time.monotonic() + limit_s
        self.wait(all_ready, deadline, "all roles ready")
        before = self.counts()
        self.wait(lambda: all(b > a for a, b in zip(before, self.counts(), strict=True)), deadline, "progress")

    def await_progress(self, since: float, gone: set[int], limit_s: float) -> None:
        """Until the run goes on, every worker makes steps, and the actor hears of every environment."""
        deadline = time.monotonic() + limit_s
        before = self.worker_steps()
        self.await_running(since, gone, limit_s)

        def all_step() -> bool:
            now = self.worker_steps()
            return all(steps > 0 and (pid, steps) != before.get(name) for name, (pid, steps) in now.items())

        self.wait(all_step, deadline, "steps of every worker")
        self.wait(lambda: self.live_envs() >= self.envs, deadline, f"{self.envs} environments")

    def wait(self, condition: Callable[[], bool], deadline: float, what: str) -> None:
        while not condition():
            if self.process.poll() is not None:
                raise Ended(f"code {self.process.returncode} while waiting for {what}: {self.last_words()}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"{what} did not come: {self.describe()}")
            time.sleep(LOOK_EVERY_S)

    def describe(self) -> str:
        roles = self.status()["roles"]
        return ", ".join(f"{name} {role['state']}" for name, role in roles.items()) or "no status"

    def last_words(self) -> str:
        return " | ".join(self._words.read_text(errors="replace").splitlines()[-3:])

    def sockets(self) -> Path:
        addresses = json.loads((self.run / "fleet.json").read_text())["addresses"]
        return Path(addresses["actor"][0].removeprefix("ipc://")).parent

    def end(self, limit_s: float) -> int:
        """Asks it to stop; kills it if it does not. Returns the exit code, or another one than 0 of who has joined."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        codes = [wait_or_kill(self.process, limit_s)]
        if self._joined:
            codes.append(wait_or_kill(self._joined, JOIN_S))
            self._joined = None
        return codes[-1] or codes[0]


def on(host: Host | None, command: list[str]) -> list[str]:
    """The command that runs there; without a host, here."""
    return host.command(*command) if host else command


def read_status(folder: Path) -> dict[str, Any]:
    try:
        status: dict[str, Any] = json.loads((folder / "status.json").read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return status


def wait_or_kill(process: subprocess.Popen[bytes], limit_s: float) -> int:
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def all_gone(processes: list[psutil.Process], limit_s: float) -> bool:
    """A zombie is gone: to reap it is the business of its parent, or of the system once that is dead."""
    deadline = time.monotonic() + limit_s
    while any(map(is_running, processes)):
        if time.monotonic() > deadline:
            return False
        time.sleep(LOOK_EVERY_S)
    return True


def is_running(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@contextlib.contextmanager
def small_disk() -> Iterator[tuple[Path, bool]]:
    """A folder, and whether it is a small file system of its own, which nobody but this process and its children sees.

    That needs to be allowed to mount; else the folder is a plain one.
    """
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    mounted = False
    try:
        if ctypes.CDLL(None).unshare(NEW_MOUNTS) == 0:
            private = ["mount", "--make-rprivate", "/"]
            small = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "chaos", str(folder)]
            mounted = all(subprocess.run(words, check=False).returncode == 0 for words in (private, small))
        yield folder, mounted
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(folder)], check=False)
        shutil.rmtree(folder, ignore_errors=True)


def fill_disk(folder: Path, seconds: float) -> None:
    """Leaves no byte free for a while."""
    ballast = folder / "ballast"
    try:
        with ballast.open("wb", buffering=0) as file:
            until = time.monotonic() + seconds
            size = 1 << 20
            while time.monotonic() < until:
                try:
                    file.write(bytes(size))
                except OSError:  # full: what is freed meanwhile is taken as well
                    size = max(512, size // 2)
                    time.sleep(0.005)
    finally:
        ballast.unlink()


def limit_files(fleet: ChaosFleet, seconds: float) -> None:
    """No file of the fleet's may grow beyond a few bytes for a while: nearest to a full disk without one."""
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        _limit(fleet, MIN_FILE_BYTES, hard)  # again and again: roles may have been started meanwhile
        time.sleep(LOOK_EVERY_S)
    _limit(fleet, hard, hard)


def _limit(fleet: ChaosFleet, soft: int, hard: int) -> None:
    for process in fleet.processes():
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (soft, hard))
