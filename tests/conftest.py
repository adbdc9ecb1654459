"""Fixtures shared by all tests."""

from __future__ import annotations

import os

import pytest

# Read by JAX when it is first used. Tests compile far more than they compute; the slow ones compile in full.
QUICK_TO_COMPILE = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"


def pytest_configure(config: pytest.Config) -> None:
    if "not slow" in (config.getoption("-m") or ""):
        os.environ.setdefault("XLA_FLAGS", QUICK_TO_COMPILE)


class ManualTime:
    """A time that passes only when a test says so; pass it as `time_fn`."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def manual_time() -> ManualTime:
    return ManualTime()
