"""What the guards warn of: once, before it breaks, and again only after it was plenty in between."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from dreamfleet.supervision import resources
from dreamfleet.supervision.resources import LOOK_EVERY_S, ResourceMonitor


class Machine:
    """What the guards see of the machine, and a clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.now = 0.0
        self.disk_gb = self.memory_gb = 50.0
        self.disk_told: list[bool] = []
        monkeypatch.setattr(resources.shutil, "disk_usage", lambda path: SimpleNamespace(free=self.disk_gb * 1e9))
        monkeypatch.setattr(resources, "memory_bytes", lambda: (int(100e9), int(self.memory_gb * 1e9)))
        self._resource_monitor = ResourceMonitor(folder, 1.0, self.disk_told.append, lambda: self.now)

    def look(self, **pids: int) -> list[str]:
        self.now += LOOK_EVERY_S
        return [shortage.text for shortage in self._resource_monitor.look(pids)]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machine:
    return Machine(monkeypatch, tmp_path)


def test_a_nearly_full_disk_is_told_once_and_to_whoever_may_pause(machine: Machine, tmp_path: Path) -> None:
    assert machine.look() == []
    machine.disk_gb = 0.9
    (text,) = machine.look()
    assert text.startswith(f"the disk of {tmp_path} has 0.90 GB left, run.min_disk_gb=1")
    machine.disk_gb = 1.1  # not plenty yet
    assert machine.look() == []
    assert machine.disk_told == [True]
    machine.disk_gb = 1.3
    assert machine.look() == []
    assert machine.disk_told == [True, False]
    machine.disk_gb = 0.5
    assert len(machine.look()) == 1


def test_little_memory_is_told_with_what_to_lower(machine: Machine) -> None:
    machine.memory_gb = 4.0
    (text,) = machine.look()
    assert text.startswith("4.0 GB of 100.0 GB memory are left")
    assert "replay.size" in text


def test_open_files_are_compared_with_the_limit_of_each_role(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    monkeypatch.setattr(psutil.Process, "num_fds", lambda process: int(0.9 * limit))
    (text,) = machine.look(agent=os.getpid())
    assert text == f"agent has {int(0.9 * limit)} of {limit} files open: raise the limit with ulimit -n"


def test_a_role_that_is_gone_is_left_out(machine: Machine) -> None:
    assert machine.look(agent=2**22 - 1) == []


def test_the_guards_look_every_few_seconds_only(machine: Machine) -> None:
    machine.look()
    machine.disk_gb = 0.1
    machine.now -= LOOK_EVERY_S / 2
    assert machine.look(agent=os.getpid()) == []
