"""The built-in catch task as a suite: `default` shows an image, `vector` the board as numbers."""

from __future__ import annotations

from dreamfleet.core.errors import ConfigError
from dreamfleet.envs.builtin.catch import Catch
from dreamfleet.envs.catalog import unknown_task
from dreamfleet.envs.options import EnvOptions


def make(task: str, options: EnvOptions, seed: int, rows: int = 10, columns: int = 5) -> Catch:
    if task not in tasks():
        raise unknown_task("catch", task, tasks())
    try:
        return Catch(seed, image=task == "default", size=options.size or (48, 48), rows=rows, columns=columns)
    except ValueError as error:
        raise ConfigError(f"catch:{task}: {error}: set env.kwargs.rows, env.kwargs.columns or env.size") from error


def tasks() -> list[str]:
    return ["default", "vector"]
