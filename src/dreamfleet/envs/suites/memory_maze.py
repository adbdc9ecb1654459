"""Memory Maze: find the object of the colour shown, in a maze that stays the same for an episode."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType
from typing import Any

from dreamfleet.core.errors import ConfigError
from dreamfleet.envs.catalog import unknown_task
from dreamfleet.envs.gym.dm_env import DmEnv
from dreamfleet.envs.options import EnvOptions
from dreamfleet.envs.render.backend import require_renderer

SIZES = ("9x9", "11x11", "13x13", "15x15")


def make(task: str, options: EnvOptions, seed: int, /, **kwargs: Any) -> DmEnv:
    """Only the image is observed unless `image_only_obs=False`; further keyword arguments go to the library's task."""
    if task not in SIZES:
        raise unknown_task("memory_maze", task, SIZES)
    height, width = options.size or (64, 64)
    if height != width:
        raise ConfigError(f"memory_maze:{task} draws squares: set env.size to two equal numbers, not {height}x{width}")
    require_renderer(f"memory_maze:{task}")
    build = getattr(_library(), f"memory_maze_{task}")
    env = build(**{"image_only_obs": True, "camera_resolution": height, "seed": seed % 2**32, **kwargs})
    return DmEnv(env, repeat=options.repeat or 1)


def tasks() -> list[str]:
    return list(SIZES)


def _library() -> ModuleType:
    """`memory_maze.tasks`, without running the package's own module, which demands the old `gym` to register ids."""
    name = "memory_maze"
    if name not in sys.modules:
        spec = importlib.util.find_spec(name)
        if spec is None:
            raise ConfigError("memory_maze is not installed: pip install 'dreamfleet[memory-maze]'")
        sys.modules[name] = importlib.util.module_from_spec(spec)
    return importlib.import_module(f"{name}.tasks")
