"""What this process may use of the machine: containers are often given less of it than it has."""

from __future__ import annotations

import math
import os
from pathlib import Path

import psutil

CGROUP = Path("/sys/fs/cgroup")
UNLIMITED = 1 << 60  # control groups of the first version write no limit as a number of about this size


def usable_cores() -> float:
    """Cores that this process may run on, by affinity and by the quota of its control group."""
    cores = float(len(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else float(os.cpu_count() or 1)
    return min(cores, cgroup_cores())


def machine_busy_s() -> float:
    """Seconds that all cores of the machine have worked for anyone since it was started, added up."""
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system)


def cgroup_cores(root: Path = CGROUP) -> float:
    """The quota of the control group; infinite without one."""
    words = _words(root / "cpu.max") or [
        *_words(root / "cpu/cpu.cfs_quota_us"),
        *_words(root / "cpu/cpu.cfs_period_us"),
    ]
    if len(words) != 2 or not words[0].isdigit() or not int(words[1]):
        return math.inf
    return int(words[0]) / int(words[1])


def memory_bytes(root: Path = CGROUP) -> tuple[int, int]:
    """All memory that this process may use, and how much of it is free."""
    memory = psutil.virtual_memory()
    total, free = int(memory.total), int(memory.available)
    for limit_file, used_file, stat_file in (
        ("memory.max", "memory.current", "memory.stat"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"),
    ):
        limit, used, stat = _words(root / limit_file), _words(root / used_file), _words(root / stat_file)
        if limit and limit[0].isdigit() and int(limit[0]) < min(total, UNLIMITED):
            total = int(limit[0])
            # What files take in memory counts as used, but is given up when it is needed.
            cached = int(stat[stat.index("inactive_file") + 1]) if "inactive_file" in stat else 0
            free = min(free, total - (int(used[0]) if used else 0) + cached)
    return total, max(0, free)


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []
