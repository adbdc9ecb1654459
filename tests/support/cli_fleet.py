"""Runs `dreamfleet train` in a process of its own, as a user would, and looks at its run folder."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from support.fleet_probe import is_running, wait_until

TESTS = Path(__file__).parents[1]
SOURCE = TESTS.parent / "src"


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{SOURCE}{os.pathsep}{TESTS}", "COLUMNS": "200"}


def dreamfleet(
    *arguments: str, timeout_s: float = 60.0, folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end, in a folder of its own where one is given."""
    return subprocess.run(
        [sys.executable, "-m", "dreamfleet", *arguments],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def copy_invitation(run: Path, elsewhere: Path, key: str) -> Path:
    """What a user copies to the other machine: two files."""
    (elsewhere / "keys").mkdir(parents=True, exist_ok=True)
    shutil.copy(run / "keys" / f"{key}.json", elsewhere / "keys")
    return Path(shutil.copy(run / "fleet.json", elsewhere))


class CliFleet:
    """A fleet that trains until it is stopped; small batches so that training starts at once."""

    def __init__(self, run: Path, *overrides: str) -> None:
        self.run = run
        small = [
            "replay.size=1e5",
            "batch_size=2",
            "batch_length=8",
            "report_length=4",
            "run.log_every=1",
            "run.eval_envs=0",
        ]
        arguments = ["train", "agent=random", "env=dummy", *small, *overrides, "--run-dir", str(run)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "dreamfleet", *arguments],
            env=environment(),
            stderr=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> CliFleet:
        return self

    def __exit__(self, *error: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.communicate(timeout=20)
            except subprocess.TimeoutExpired:
                self.process.kill()
        if self.process.stderr:
            self.process.stderr.close()

    def status(self) -> dict[str, Any]:
        path = self.run / "status.json"
        return json.loads(path.read_text()) if path.exists() else {"state": "none", "roles": {}}

    def role(self, name: str) -> dict[str, Any]:
        return self.status()["roles"].get(name, {}).get("status") or {}

    def step(self) -> int:
        return int(self.role("agent").get("actor", {}).get("step", 0))

    def updates(self) -> int:
        return int(self.role("agent").get("learner", {}).get("updates", 0))

    def wait(self, condition: Any, what: str, timeout_s: float = 30.0) -> None:
        wait_until(lambda: self.process.poll() is not None or condition(), timeout_s, what)
        assert self.process.poll() is None, f"the fleet ended before: {what}\n{self.process.communicate()[1]}"

    def wait_training(self) -> None:
        self.wait(lambda: self.updates() > 0 and self.step() > 0, "the first update")

    @contextlib.contextmanager
    def joined(
        self, kind: str, fleet_file: Path | None = None, *options: str, screen: Path | None = None
    ) -> Iterator[subprocess.Popen[bytes]]:
        """A role that joins this fleet and prints into `screen`; whatever happens, it is gone afterwards."""
        file = fleet_file or self.run / "fleet.json"
        command = [sys.executable, "-m", "dreamfleet", "role", kind, "--fleet", str(file), *options]
        with (screen or Path(os.devnull)).open("wb") as printed:
            role = subprocess.Popen(command, env=environment(), stderr=printed)
        try:
            yield role
        finally:
            if role.poll() is None:
                role.send_signal(signal.SIGINT)
            role.wait(20)

    def processes(self) -> list[psutil.Process]:
        return [process := psutil.Process(self.process.pid), *process.children(recursive=True)]

    def stop(self, number: signal.Signals = signal.SIGINT, timeout_s: float = 20.0) -> tuple[int, str]:
        self.process.send_signal(number)
        return self.finish(timeout_s)

    def finish(self, timeout_s: float = 60.0) -> tuple[int, str]:
        printed = self.process.communicate(timeout=timeout_s)[1]
        return self.process.returncode, printed

    def sockets(self) -> Path:
        """The private folder of the fleet's local sockets."""
        addresses = json.loads((self.run / "fleet.json").read_text())["addresses"]
        return Path(addresses["actor"][0].removeprefix("ipc://")).parent


def expect_nothing_left(pids: list[int], sockets: Path) -> None:
    assert not [pid for pid in pids if is_running(pid)]
    assert not sockets.exists()
