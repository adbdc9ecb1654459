"""The built-in board game of falling blocks as a suite. It is a Gymnasium environment, so `env.read` applies to it."""

from __future__ import annotations

from dreamfleet.core.errors import ConfigError
from dreamfleet.envs.builtin.blocks import Blocks
from dreamfleet.envs.catalog import unknown_task
from dreamfleet.envs.options import EnvOptions


def make(
    task: str, options: EnvOptions, seed: int, rows: int = 4, columns: int = 6, blocks: int = 30, high: int = 3
) -> Blocks:
    if task not in tasks():
        raise unknown_task("blocks", task, tasks())
    try:
        return Blocks(rows, columns, blocks, high)
    except ValueError as error:
        raise ConfigError(f"blocks:{task}: {error}: set env.kwargs.rows, columns, blocks or high") from error


def tasks() -> list[str]:
    return ["default"]
