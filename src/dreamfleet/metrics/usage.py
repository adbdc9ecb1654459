"""What is used of the machine: by this process, by all, and of its GPUs. For the metrics and the status."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Any

import psutil


class ProcessUsage:
    """CPU seconds are counted since the previous call; 100 percent is one core."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._cpu_s = self._cpu_total_s()
        self._time = time.monotonic()
        self._last: dict[str, float] = {"cpu_percent": 0.0, "cpu_total_s": 0.0, "ram_gb": 0.0, "threads": 0}

    def stats(self) -> dict[str, float]:
        """Return the figures; the last ones while they cannot be read, as when no file can be opened."""
        with contextlib.suppress(OSError):
            self._last = self._read()
        return self._last

    def _read(self) -> dict[str, float]:
        cpu_s, now = self._cpu_total_s(), time.monotonic()
        percent = 100 * (cpu_s - self._cpu_s) / max(1e-9, now - self._time)
        self._cpu_s, self._time = cpu_s, now
        return {
            "cpu_percent": round(percent, 1),
            "cpu_total_s": round(cpu_s, 3),
            "ram_gb": round(self._process.memory_info().rss / 1e9, 3),
            "threads": self._process.num_threads(),
        }

    def metrics(self, role: str) -> dict[str, float]:
        return {f"usage/{role}/{name}": value for name, value in self.stats().items()}

    def _cpu_total_s(self) -> float:
        times = self._process.cpu_times()
        return float(times.user + times.system)


class MachineUsage:
    """Of the machine that this process runs on, whoever uses it: 100 percent are all cores."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        psutil.cpu_percent()  # counts from here on

    def metrics(self) -> dict[str, float]:
        try:
            memory = psutil.virtual_memory()
            cpu_percent = psutil.cpu_percent()
        except OSError:  # as when no file can be opened
            return self._disk()
        return {
            "usage/machine/cpu_percent": cpu_percent,
            "usage/machine/ram_percent": memory.percent,
            "usage/machine/ram_free_gb": round(memory.available / 1e9, 3),
            **self._disk(),
        }

    def _disk(self) -> dict[str, float]:
        try:
            return {"usage/machine/disk_free_gb": round(psutil.disk_usage(str(self._folder)).free / 1e9, 3)}
        except OSError:  # a folder that is gone is noticed by those who write into it
            return {}


class GpuUsage:
    """Memory and use of the GPUs that this process may see, asked of the driver by nvidia-ml-py.

    Without that library, a driver or a GPU there are no figures, and nothing is said about it.
    """

    def __init__(self) -> None:
        self._nvml: Any = None
        self._devices: dict[str, Any] = {}
        with contextlib.suppress(Exception):
            import pynvml

            pynvml.nvmlInit()
            self._nvml = pynvml
            self._devices = self._visible()

    def metrics(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for name, device in self._devices.items():
            with contextlib.suppress(Exception):  # a virtual GPU may not tell everything
                memory = self._nvml.nvmlDeviceGetMemoryInfo(device)
                found[f"usage/{name}/ram_gb"] = round(memory.used / 1e9, 3)
                found[f"usage/{name}/ram_percent"] = round(100 * memory.used / memory.total, 1)
            with contextlib.suppress(Exception):
                found[f"usage/{name}/percent"] = float(self._nvml.nvmlDeviceGetUtilizationRates(device).gpu)
        return found

    def _visible(self) -> dict[str, Any]:
        """By the numbers that this process has for them, which CUDA_VISIBLE_DEVICES may have changed."""
        nvml, wanted = self._nvml, os.environ.get("CUDA_VISIBLE_DEVICES")
        if wanted is None:
            names = [str(number) for number in range(nvml.nvmlDeviceGetCount())]
        else:
            names = [name.strip() for name in wanted.split(",") if name.strip()]
        devices = {}
        for number, name in enumerate(names):
            by_number = name.isdigit()
            found = nvml.nvmlDeviceGetHandleByIndex(int(name)) if by_number else nvml.nvmlDeviceGetHandleByUUID(name)
            devices[f"gpu{number}"] = found
        return devices
