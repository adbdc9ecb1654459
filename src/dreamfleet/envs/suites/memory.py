"""The built-in memory task as a suite."""

from __future__ import annotations

from dreamfleet.core.errors import ConfigError
from dreamfleet.envs.builtin.memory import Memory
from dreamfleet.envs.catalog import unknown_task
from dreamfleet.envs.options import EnvOptions


def make(task: str, options: EnvOptions, seed: int, cues: int = 2, delay: int = 5) -> Memory:
    if task not in tasks():
        raise unknown_task("memory", task, tasks())
    try:
        return Memory(seed, cues=cues, delay=delay)
    except ValueError as error:
        raise ConfigError(f"memory:{task}: {error}: set env.kwargs.cues to 2 or more, delay to 0 or more") from error


def tasks() -> list[str]:
    return ["default"]
