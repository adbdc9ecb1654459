"""Warnings before the machine runs out of disk space, memory or open files."""

from __future__ import annotations

import contextlib
import resource
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from dreamfleet.core.text.formatting import nbytes
from dreamfleet.supervision.machine import memory_bytes

LOOK_EVERY_S = 5.0
MIN_MEMORY = 0.05  # share of the memory available to this process
MAX_FILES = 0.8  # share of the files that a process may open
RELEASE = 1.2  # factor of hysteresis: a shortage ends at this multiple of the limit


@dataclass(frozen=True)
class Shortage:
    """`what` is "disk", "memory", or "files of ROLE"."""

    what: str
    text: str


class ResourceMonitor:
    """Monitor of the machine's resources. `look` returns new shortages, `shortages` contains the current ones.

    `on_disk` is called with True when the disk is nearly full and with False when it has space again, so that
    non-essential writers can pause.
    """

    def __init__(
        self,
        folder: Path,
        min_disk_gb: float,
        on_disk: Callable[[bool], None] = lambda low: None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._min_disk_gb = min_disk_gb
        self._on_disk = on_disk
        self._now = now
        self._next = now()
        self.shortages: dict[str, Shortage] = {}

    def look(self, pids: Mapping[str, int]) -> list[Shortage]:
        """Return new shortages. `pids` are those of the roles. Checks only every few seconds."""
        now = self._now()
        if now < self._next:
            return []
        self._next = now + LOOK_EVERY_S
        found = {shortage.what: shortage for shortage in (*self._disk(), *self._memory(), *self._files(pids))}
        new = [shortage for what, shortage in found.items() if what not in self.shortages]
        if ("disk" in found) != ("disk" in self.shortages):
            self._on_disk("disk" in found)
        self.shortages = found
        return new

    def _disk(self) -> Iterator[Shortage]:
        with contextlib.suppress(OSError):  # writers report a missing folder themselves
            free_gb = shutil.disk_usage(self._folder).free / 1e9
            if free_gb < self._min_disk_gb * self._release("disk"):
                yield Shortage(
                    "disk",
                    f"the disk of {self._folder} has {free_gb:.2f} GB left, run.min_disk_gb={self._min_disk_gb:g}: "
                    "free some space; until then, only the final snapshot is written",
                )

    def _memory(self) -> Iterator[Shortage]:
        try:
            total, free = memory_bytes()
        except OSError:  # for example, no file can be opened
            return
        if free < MIN_MEMORY * total * self._release("memory"):
            yield Shortage(
                "memory",
                f"{nbytes(free)} of {nbytes(total)} memory are left: reduce replay.size, replay.size_bytes or "
                "run.envs before the system kills a role",
            )

    def _files(self, pids: Mapping[str, int]) -> Iterator[Shortage]:
        for role, pid in pids.items():
            what = f"files of {role}"
            with contextlib.suppress(psutil.Error, OSError, AttributeError):  # it ended, or is unsupported
                process = psutil.Process(pid)
                used, limit = process.num_fds(), process.rlimit(resource.RLIMIT_NOFILE)[0]
                if 0 < MAX_FILES * limit < used * self._release(what):
                    yield Shortage(what, f"{role} has {used} of {limit} files open: raise the limit with ulimit -n")

    def _release(self, what: str) -> float:
        return RELEASE if what in self.shortages else 1.0
