"""Crafter's worlds in a small part of the time: all cells at once, instead of one by one.

A world is made from some 27,000 values of a noise, each computed in Python, at some of 53,248 points. Which corners of
the noise's lattice a point gets its value from, and how far away they are, does not depend on the world's seed. It is
learned once, by watching the library; what is left for a seed is one pass over all points, and Crafter's rules for all
cells together. Values are the same to the bit and random numbers are drawn in the same order: worlds are Crafter's own.
"""

from __future__ import annotations

import hashlib
import inspect
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np

RULES = "135599bea2a2f05c5e83be19a73cab7e0fe79ec15bdb72123671d44d351e1cfa"  # SHA-256 of a known worldgen
DRAWS = 5  # random numbers of a cell at most: three for what it is made of, two for who stands there
LOCK = threading.Lock()  # one world at a time: Crafter's module is changed meanwhile


class Layer(NamedTuple):
    """A noise over all cells: where it is cut through, how large its features are, and what cells are divided by."""

    z: int
    size: int
    x: float = 1
    y: float = 1


LAYERS = {
    "start": Layer(8, 3),
    "lakes": Layer(3, 15),
    "ponds": Layer(3, 5),
    "mountains": Layer(0, 15),
    "hills": Layer(0, 5),
    "caves": Layer(6, 7),
    "tunnels": Layer(7, 3, 0.5, 5),
    "shafts": Layer(7, 3, 5, 0.5),
    "coal": Layer(1, 8),
    "iron": Layer(2, 6),
    "lava": Layer(6, 5),
    "sand": Layer(4, 9),
    "trees": Layer(5, 7),
}


class Lattice:
    """What the values of the noise at some points are made of. The library is watched computing them."""

    def __init__(self, points: Sequence[tuple[float, float, float]]) -> None:
        from opensimplex.constants import GRADIENTS3, NORM_CONSTANT3
        from opensimplex.internals import _extrapolate3, _noise3

        self._gradients, self._scale, self._count = GRADIENTS3, NORM_CONSTANT3, len(points)
        corners: list[tuple[int, int, int]] = []
        away: list[tuple[float, ...]] = []  # how far the point is from the corner

        def watch(perm: Any, perm_gradient: Any, x: int, y: int, z: int, *distances: float) -> float:
            """Stands in for the library's function that a corner's contribution comes from."""
            corners.append((x & 255, y & 255, z & 255))
            away.append(distances)
            return 0.0

        function = getattr(_noise3, "py_func", _noise3)  # numba's have one in Python as well
        watched = FunctionType(function.__code__, {**function.__globals__, _extrapolate3.__name__: watch})
        ends = [0]
        for point in points:
            watched(*point, None, None)
            ends.append(len(corners))
        self._numbers = np.repeat(np.arange(len(points)), np.diff(ends))  # the point of each corner
        self._corners = np.array(corners, np.intp).T.copy()
        self._away = np.array(away).T.copy()
        share = 2 - self._away[0] ** 2 - self._away[1] ** 2 - self._away[2] ** 2
        share *= share
        self._share = share * share  # how much the corner counts

    def values(self, perm: np.ndarray, perm_gradient: np.ndarray) -> np.ndarray:
        x, y, z = self._corners
        index = perm_gradient[(perm[(perm[x] + y) & 255] + z) & 255]
        dx, dy, dz = self._away
        gradients = self._gradients
        # Added up as the library does, for the same roundings.
        along = gradients[index] * dx + gradients[index + 1] * dy + gradients[index + 2] * dz
        return np.asarray(np.bincount(self._numbers, self._share * along, self._count) / self._scale)


class Terrain:
    """Makes worlds of one size."""

    def __init__(self, width: int, height: int) -> None:
        self._shape = len(LAYERS), width, height
        cells = [(x, y) for x in range(width) for y in range(height)]
        self._lattice = Lattice(
            [
                (x / layer.x / layer.size, y / layer.y / layer.size, layer.z)
                for layer in LAYERS.values()
                for x, y in cells
            ]
        )

    def generate(self, world: Any, player: Any) -> None:
        import opensimplex

        own = opensimplex.OpenSimplex(seed=world.random.randint(0, 2**31 - 1))
        values = self._lattice.values(own._perm, own._perm_grad_index3).reshape(self._shape)
        noise = dict(zip(LAYERS, values, strict=True))
        x, y = np.ogrid[: self._shape[1], : self._shape[2]]
        distance = np.sqrt((x - player.pos[0]) ** 2 + (y - player.pos[1]) ** 2)
        with Draws(world.random, DRAWS * distance.size) as draws:
            tunnels = set_materials(world, noise, distance, draws)
            set_creatures(world, player, tunnels, distance, draws)


class Draws:
    """Random numbers ahead of time. In the end, the generator is where it would be if each had been drawn by itself."""

    def __init__(self, random: np.random.RandomState, most: int) -> None:
        self._random = random
        self._before = random.get_state()
        self._numbers: list[float] = random.random_sample(most).tolist()
        self._used = 0

    def __enter__(self) -> Draws:
        return self

    def __exit__(self, *_: object) -> None:
        self._random.set_state(self._before)
        self._random.random_sample(self._used)

    def above(self, threshold: float) -> bool:
        number = self._numbers[self._used]
        self._used += 1
        return number > threshold


def set_materials(world: Any, noise: dict[str, np.ndarray], distance: np.ndarray, draws: Draws) -> np.ndarray:
    """Returns which cells are tunnels."""
    start = 1 / (1 + np.exp(-(4 - distance + 2 * noise["start"])))
    water = noise["lakes"] + 0.15 * noise["ponds"] + 0.1 - 2 * start
    height = (noise["mountains"] + 0.3 * noise["hills"]) / 1.3 - (4 * start + 0.3 * water)
    meadow = start > 0.5
    rock: np.ndarray = ~meadow & (height > 0.15)
    cave = rock & (noise["caves"] > 0.15) & (height > 0.3)
    tunnel: np.ndarray = rock & ~cave & ((noise["tunnels"] > 0.4) | (noise["shafts"] > 0.4))
    solid = rock & ~cave & ~tunnel
    low = ~meadow & ~rock
    sand = low & (water > 0.25) & (water <= 0.35) & (noise["sand"] > -0.2)
    lake = low & ~sand & (water > 0.3)
    wood = low & ~sand & ~lake & (noise["trees"] > 0)
    coal, iron, deep = solid & (noise["coal"] > 0), solid & (noise["iron"] > 0.4), solid & (height > 0.18)
    ids = world._mat_ids
    cells = np.full(distance.shape, ids["grass"], np.uint8)
    for material, where in (("path", cave | tunnel), ("stone", solid), ("sand", sand), ("water", lake)):
        cells[where] = ids[material]
    cells[solid & (height > 0.3) & (noise["lava"] > 0.35)] = ids["lava"]
    for cell in np.argwhere(wood | coal | iron | deep).tolist():
        at = tuple(cell)
        if wood[at]:
            if draws.above(0.8):
                cells[at] = ids["tree"]
        elif coal[at] and draws.above(0.85):
            cells[at] = ids["coal"]
        elif iron[at] and draws.above(0.75):
            cells[at] = ids["iron"]
        elif deep[at] and draws.above(0.994):
            cells[at] = ids["diamond"]
    world._mat_map[:] = cells
    return tunnel


def set_creatures(world: Any, player: Any, tunnels: np.ndarray, distance: np.ndarray, draws: Draws) -> None:
    from crafter import constants, objects

    ids, cells = world._mat_ids, world._mat_map
    walkable = np.isin(cells, [ids[material] for material in constants.walkable])
    pasture, far = (cells == ids["grass"]) & (distance > 3), walkable & (distance > 10)
    dark = (cells == ids["path"]) & tunnels
    for cell in np.argwhere(pasture | far | dark).tolist():
        at = tuple(cell)
        if pasture[at] and draws.above(0.985):
            world.add(objects.Cow(world, at))
        elif far[at] and draws.above(0.993):
            world.add(objects.Zombie(world, at, player))
        elif dark[at] and draws.above(0.95):
            world.add(objects.Skeleton(world, at, player))


@cache
def quick_worlds() -> QuickWorlds:
    """One for all environments of a process: what it learns is the same for all."""
    return QuickWorlds()


class QuickWorlds:
    """With libraries that are not as expected, worlds are made as Crafter makes them."""

    def __init__(self) -> None:
        self._terrains: dict[tuple[int, int], Terrain] = {}
        self.known = rules_are_known() and noise_is_known()

    @contextmanager
    def used(self) -> Iterator[None]:
        if not self.known:
            yield
            return
        from crafter import worldgen

        with LOCK:
            own = worldgen.generate_world
            worldgen.generate_world = self._generate
            try:
                yield
            finally:
                worldgen.generate_world = own

    def _generate(self, world: Any, player: Any) -> None:
        size = tuple(world.area)
        if size not in self._terrains:
            self._terrains[size] = Terrain(*size)
        self._terrains[size].generate(world, player)


def rules_are_known() -> bool:
    from crafter import worldgen

    try:
        source = inspect.getsource(worldgen)
    except OSError:
        return False
    return hashlib.sha256(source.encode()).hexdigest() == RULES


def noise_is_known() -> bool:
    import opensimplex

    points = [(0.0, 0.5, 8), (7.3, 2.6, 3), (21.0, 4.2, 0)]
    try:
        own = opensimplex.OpenSimplex(1)
        values = Lattice(points).values(own._perm, own._perm_grad_index3)
        return bool(values.tolist() == [own.noise3(*point) for point in points])
    except (ImportError, AttributeError, TypeError):
        return False
