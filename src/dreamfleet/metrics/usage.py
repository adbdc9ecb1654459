"""CPU and memory use of this process, for the metrics and the status."""

from __future__ import annotations

import time

import psutil


class ProcessUsage:
    """CPU seconds are counted since the previous call; 100 percent is one core."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._cpu_s = self._cpu_total_s()
        self._time = time.monotonic()

    def stats(self) -> dict[str, float]:
        cpu_s, now = self._cpu_total_s(), time.monotonic()
        percent = 100 * (cpu_s - self._cpu_s) / max(1e-9, now - self._time)
        self._cpu_s, self._time = cpu_s, now
        return {
            "cpu_percent": round(percent, 1),
            "cpu_total_s": round(cpu_s, 3),
            "ram_gb": round(self._process.memory_info().rss / 1e9, 3),
            "threads": self._process.num_threads(),
        }

    def _cpu_total_s(self) -> float:
        times = self._process.cpu_times()
        return float(times.user + times.system)
