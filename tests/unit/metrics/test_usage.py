"""The use of this process's resources, against what the operating system says."""

from __future__ import annotations

import time

import psutil

from dreamfleet.metrics.usage import ProcessUsage


def test_shows_what_this_process_uses() -> None:
    usage = ProcessUsage()
    start = time.process_time()
    while time.process_time() - start < 0.05:
        pass
    stats = usage.stats()
    assert stats["cpu_percent"] > 0
    assert stats["cpu_total_s"] >= 0.05
    assert 0 < stats["ram_gb"] < psutil.virtual_memory().total / 1e9
    assert stats["threads"] >= 1
