"""CPU and memory available to this process. Containers often limit them."""

from __future__ import annotations

import math
import os
from pathlib import Path

import psutil

CGROUP = Path("/sys/fs/cgroup")
UNLIMITED = 1 << 60  # version 1 control groups represent no limit by a number of about this size


def usable_cores() -> float:
    """Return the number of cores available to this process, from its affinity and control group quota."""
    cores = float(len(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else float(os.cpu_count() or 1)
    return min(cores, cgroup_cores())


def machine_busy_s() -> float:
    """Return the total CPU seconds of all cores since the machine started."""
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system)


def cgroup_cores(root: Path = CGROUP) -> float:
    """Return the CPU quota of the control group, or infinity if there is none."""
    words = _words(root / "cpu.max") or [
        *_words(root / "cpu/cpu.cfs_quota_us"),
        *_words(root / "cpu/cpu.cfs_period_us"),
    ]
    if len(words) != 2 or not words[0].isdigit() or not int(words[1]):
        return math.inf
    return int(words[0]) / int(words[1])


def memory_bytes(root: Path = CGROUP) -> tuple[int, int]:
    """Return the total and the free memory available to this process."""
    memory = psutil.virtual_memory()
    total, free = int(memory.total), int(memory.available)
    for limit_file, used_file, stat_file in (
        ("memory.max", "memory.current", "memory.stat"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"),
    ):
        limit, used, stat = _words(root / limit_file), _words(root / used_file), _words(root / stat_file)
        if limit and limit[0].isdigit() and int(limit[0]) < min(total, UNLIMITED):
            total = int(limit[0])
            # The page cache counts as used, but the system frees it on demand.
            cached = int(stat[stat.index("inactive_file") + 1]) if "inactive_file" in stat else 0
            free = min(free, total - (int(used[0]) if used else 0) + cached)
    return total, max(0, free)


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []
