"""Crafter's game in a tenth of the time: the same worlds, pixels, rewards and random numbers.

Worlds are made for all cells at once, see `crafter_worlds`. The ground is drawn at once as well, instead of cell by
cell, and the player's belongings only when they have changed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from functools import partial
from typing import Any

import crafter
import numpy as np
from crafter import engine

from dreamfleet.envs.suites.crafter.worlds import quick_worlds

NOTHING = 127  # the grey beyond the edge of the world
MAX_KEPT = 256  # drawings of belongings


class Game(crafter.Env):  # type: ignore[misc]
    """One seed gives one game, which the library's own does not promise: see `order_chunks`."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        own: Any = self
        self._local_view = QuickView(self._world, self._textures, own._local_view._grid)
        self._item_view = QuickItems(self._textures, own._item_view._grid)
        self._sem_view = no_map  # of the whole world, for `info`, where nobody looks at it

    def reset(self) -> np.ndarray:
        with quick_worlds().used():
            image: np.ndarray = super().reset()
        self._player.distance = partial(distance, self._player)  # asked for every creature in every step
        order_chunks(self)
        return image


def distance(player: Any, target: Any) -> int:
    x, y = np.asarray(getattr(target, "pos", target)).tolist()
    own_x, own_y = player.pos.tolist()
    steps: int = abs(x - own_x) + abs(y - own_y)
    return steps


def no_map() -> None:
    return None


def order_chunks(env: Any) -> None:
    """Crafter keeps creatures in sets and draws from them by position, which depends on memory addresses.

    In the order of their making, one seed gives one game.
    """
    world = env._world
    number = {id(thing): index for index, thing in enumerate(world._objects)}
    ordered: defaultdict[Any, OrderedSet] = defaultdict(OrderedSet)
    for key, things in world._chunks.items():
        for thing in sorted(things, key=lambda thing: number[id(thing)]):
            ordered[key].add(thing)
    world._chunks = ordered


class OrderedSet(dict[Any, None]):
    """As much of a set as Crafter uses, in the order of insertion."""

    def add(self, item: Any) -> None:
        self[item] = None

    def remove(self, item: Any) -> None:
        del self[item]


class QuickView(engine.LocalView):  # type: ignore[misc]
    """Takes the place of Crafter's own. What stands on the ground, and the light, are drawn by the library."""

    def __init__(self, world: Any, textures: Any, grid: Any) -> None:
        super().__init__(world, textures, grid)
        self._tiles: dict[tuple[int, int], np.ndarray] = {}

    def __call__(self, player: Any, unit: np.ndarray) -> np.ndarray:
        self._center = np.array(player.pos)
        canvas = self._ground(unit)
        width, height = self._grid.tolist()
        left, top = (self._center - self._offset).tolist()
        for thing in self._world.objects:
            x, y = thing.pos.tolist()
            x, y = x - left, y - top
            if 0 <= x < width and 0 <= y < height:
                engine._draw_alpha(canvas, np.array([x, y]) * unit, self._textures.get(thing.texture, unit))
        canvas = self._light(canvas, self._world.daylight)
        shown: np.ndarray = self._sleep(canvas) if player.sleeping else canvas
        return shown

    def _ground(self, unit: np.ndarray) -> np.ndarray:
        tiles = self._tiles_of(int(unit[0]), int(unit[1]))
        cells = np.full(self._grid, len(tiles) - 1)
        begin = self._center - self._offset
        low, high = np.maximum(begin, 0), np.minimum(begin + self._grid, self._area)
        inside = tuple(slice(a, b) for a, b in zip(low - begin, high - begin, strict=True))
        cells[inside] = self._world._mat_map[low[0] : high[0], low[1] : high[1]]
        width, height = (self._grid * unit).tolist()
        drawn: np.ndarray = tiles[cells].transpose(0, 2, 1, 3, 4).reshape(width, height, 3)
        return drawn

    def _tiles_of(self, width: int, height: int) -> np.ndarray:
        """The pictures of all materials by their number, and the grey one last."""
        if (width, height) not in self._tiles:
            names = self._world._mat_names
            pictures = [self._textures.get(names[number], (width, height))[..., :3] for number in range(len(names))]
            self._tiles[width, height] = np.stack([*pictures, np.full_like(pictures[0], NOTHING)])
        return self._tiles[width, height]


class QuickItems(engine.ItemView):  # type: ignore[misc]
    """Takes the place of Crafter's own, whose drawings it keeps: the caller copies what it gets."""

    def __init__(self, textures: Any, grid: Any) -> None:
        super().__init__(textures, grid)
        self._kept: dict[Any, np.ndarray] = {}

    def __call__(self, inventory: Mapping[str, int], unit: np.ndarray) -> np.ndarray:
        key = (*inventory.items(), *unit.tolist())
        if key not in self._kept:
            if len(self._kept) >= MAX_KEPT:
                self._kept.clear()
            self._kept[key] = super().__call__(inventory, unit)
        return self._kept[key]
