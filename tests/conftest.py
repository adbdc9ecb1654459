"""Fixtures shared by all tests."""

from __future__ import annotations

import pytest


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
