"""Minigrid and BabyAI: grid worlds by their id, such as `MiniGrid-Empty-5x5-v0`, or that without `MiniGrid-`."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from dreamfleet.core.errors import ConfigError
from dreamfleet.envs.catalog import unknown_task
from dreamfleet.envs.options import EnvOptions

PREFIX = "MiniGrid-"
VIEWS = ("partial", "full", "symbolic")


class Pixels(gymnasium.ObservationWrapper[Any, Any, Any]):
    """`image`: the cells drawn as large as fit, centred on black, so that no pixel is blurred; and `direction`.

    A partial view is what the agent sees, turned with it; a full one is the whole grid. The mission text is left out.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], size: tuple[int, int], partial: bool) -> None:
        super().__init__(env)
        self._size = size
        self._partial = partial
        grid: Any = env.unwrapped
        self._grid = grid
        cells = grid.agent_view_size if partial else max(grid.height, grid.width)
        self._tile = min(size) // cells
        if self._tile < 2:
            raise ConfigError(f"{cells} cells do not fit into an image of {size[0]}x{size[1]}: set a larger env.size")
        image = spaces.Box(0, 255, (*size, 3), np.uint8)
        self.observation_space = spaces.Dict({"image": image, "direction": spaces.Discrete(4)})

    def observation(self, observation: dict[str, Any]) -> dict[str, Any]:
        drawn = self._grid.get_frame(highlight=True, tile_size=self._tile, agent_pov=self._partial)
        image = np.zeros((*self._size, 3), np.uint8)
        top, left = (self._size[0] - drawn.shape[0]) // 2, (self._size[1] - drawn.shape[1]) // 2
        image[top : top + drawn.shape[0], left : left + drawn.shape[1]] = drawn
        return {"image": image, "direction": observation["direction"]}


class Symbols(gymnasium.ObservationWrapper[Any, Any, Any]):
    """`object`, `color` and `state` of each cell in view, as classes and not as a tiny image; and `direction`."""

    PARTS = ("object", "color", "state")

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        from minigrid.core.constants import COLOR_TO_IDX, OBJECT_TO_IDX, STATE_TO_IDX

        super().__init__(env)
        grid: Any = env.unwrapped
        classes = [max(table.values()) + 1 for table in (OBJECT_TO_IDX, COLOR_TO_IDX, STATE_TO_IDX)]
        classes[2] = max(classes[2], 4)  # for an agent in view the state is its direction
        shape = (grid.agent_view_size,) * 2
        cells = {key: spaces.MultiDiscrete(np.full(shape, n)) for key, n in zip(self.PARTS, classes, strict=True)}
        self.observation_space = spaces.Dict({**cells, "direction": spaces.Discrete(4)})

    def observation(self, observation: dict[str, Any]) -> dict[str, Any]:
        cells = {key: observation["image"][..., index].astype(np.int64) for index, key in enumerate(self.PARTS)}
        return {**cells, "direction": observation["direction"]}


def make(
    task: str, options: EnvOptions, seed: int, /, *, view: str = "partial", **kwargs: Any
) -> gymnasium.Env[Any, Any]:
    """`view` is `partial` (pixels of what the agent sees), `full` (pixels of the whole grid) or `symbolic`.

    Other keyword arguments go to `gymnasium.make`. The time limit of the task is a truncation.
    """
    known = _ids()
    name = task if task in known else PREFIX + task
    if name not in known:
        raise unknown_task("minigrid", task, [*known, *(each.removeprefix(PREFIX) for each in known)])
    if view not in VIEWS:
        raise ConfigError(f"minigrid:{task}: env.kwargs.view={view!r} is not one of {', '.join(VIEWS)}")
    env = gymnasium.make(name, disable_env_checker=True, **kwargs)
    if view == "symbolic":
        return Symbols(env)
    return Pixels(env, options.size or (64, 64), view == "partial")


def tasks() -> list[str]:
    return _ids()


def _ids() -> list[str]:
    import minigrid  # noqa: F401  registers them

    return sorted(spec.id for spec in gymnasium.registry.values() if str(spec.entry_point).startswith("minigrid."))
