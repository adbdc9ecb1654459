"""The built-in test environment as a suite."""

from __future__ import annotations

from dreamfleet.envs.dummy import Dummy
from dreamfleet.envs.options import EnvOptions


def make(task: str, options: EnvOptions, seed: int, length: int = 100, size: int = 64) -> Dummy:
    return Dummy(seed, length, size)


def tasks() -> list[str]:
    return ["default"]
