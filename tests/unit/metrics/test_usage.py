"""The use of this process's resources, against what the operating system says."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace

import psutil
import pytest

from dreamfleet.metrics.usage import GpuUsage, MachineUsage, ProcessUsage


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
    assert usage.metrics("replay").keys() == {f"usage/replay/{name}" for name in stats}


def test_shows_what_is_left_of_the_machine(tmp_path: Path) -> None:
    metrics = MachineUsage(tmp_path).metrics()
    assert 0 <= metrics["usage/machine/cpu_percent"] <= 100
    assert 0 < metrics["usage/machine/ram_percent"] <= 100
    assert 0 < metrics["usage/machine/ram_free_gb"] < psutil.virtual_memory().total / 1e9
    free = psutil.disk_usage(str(tmp_path)).free / 1e9
    assert metrics["usage/machine/disk_free_gb"] == pytest.approx(free, abs=5.0)


def test_a_folder_that_is_gone_has_no_disk(tmp_path: Path) -> None:
    assert "usage/machine/disk_free_gb" not in MachineUsage(tmp_path / "gone").metrics()


class FakeNvml(ModuleType):
    """Three GPUs; the handle of each is its number. The last one does not tell how busy it is."""

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.nvmlInit = lambda: None
        self.nvmlDeviceGetCount = lambda: 3
        self.nvmlDeviceGetHandleByIndex = lambda number: number
        self.nvmlDeviceGetHandleByUUID = {"GPU-b": 1}.__getitem__
        self.nvmlDeviceGetMemoryInfo = lambda number: SimpleNamespace(used=(number + 1) * 10**10, total=8 * 10**10)

    def nvmlDeviceGetUtilizationRates(self, number: int) -> SimpleNamespace:  # noqa: N802
        if number == 2:
            raise RuntimeError("not supported")
        return SimpleNamespace(gpu=40 + number)


@pytest.mark.parametrize(
    ("visible", "shown"),
    [
        (None, {"gpu0": (10, 12.5, 40), "gpu1": (20, 25, 41), "gpu2": (30, 37.5, None)}),
        ("1", {"gpu0": (20, 25, 41)}),
        ("2, GPU-b", {"gpu0": (30, 37.5, None), "gpu1": (20, 25, 41)}),
        ("", {}),
        ("MIG-unknown", {}),
    ],
)
def test_shows_the_gpus_that_this_process_sees(monkeypatch, visible, shown) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    expected = {}
    for name, (ram_gb, ram_percent, percent) in shown.items():
        expected[f"usage/{name}/ram_gb"] = ram_gb
        expected[f"usage/{name}/ram_percent"] = ram_percent
        if percent is not None:
            expected[f"usage/{name}/percent"] = percent
    assert GpuUsage().metrics() == expected


def test_without_the_library_or_a_driver_there_are_no_figures_of_gpus(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert GpuUsage().metrics() == {}
    without_driver = FakeNvml()
    without_driver.nvmlInit = lambda: {}["driver"]
    monkeypatch.setitem(sys.modules, "pynvml", without_driver)
    assert GpuUsage().metrics() == {}
