"""Procgen: 16 games whose levels are generated. Its library needs NumPy 1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from PIL import Image

from dreamfleet.core.spaces import Space
from dreamfleet.envs.catalog import unknown_task
from dreamfleet.envs.options import EnvOptions

NAMES = """
bigfish bossfight caveflyer chaser climber coinrun dodgeball fruitbot heist jumper leaper maze miner ninja plunder
starpilot
"""
GAMES = NAMES.split()
# Steps after which the library cuts an episode, as its saved states tell; 1000 for the others.
TIMEOUTS = {"bigfish": 6000, "bossfight": 4000, "leaper": 500, "maze": 500, "plunder": 4000}
ACTIONS = 15
RESTART = -1  # the library's action that ends an episode
OWN_SIZE = (64, 64)
FILTERS = {"area": Image.Resampling.BOX, "bilinear": Image.Resampling.BILINEAR}


class Procgen:
    """One game through the library's gym3 interface.

    The library draws 64x64 by itself; for another size its drawing of 512x512 is made smaller. It goes on to the next
    level within the step that ends an episode and never shows the last state, so a last step repeats the image before
    it. An end at the game's time limit without completing the level is a truncation, every other one a termination.
    """

    def __init__(self, game: str, seed: int, size: tuple[int, int], resize: str, **kwargs: Any) -> None:
        from procgen import ProcgenGym3Env

        self._small = size == OWN_SIZE
        render_mode = None if self._small else "rgb_array"
        self._env = ProcgenGym3Env(
            num=1, env_name=game, rand_seed=seed % 2**31, num_threads=0, render_mode=render_mode, **kwargs
        )
        self._size, self._filter = size, FILTERS[resize]
        self._timeout = TIMEOUTS.get(game, 1000)
        self._steps = 0
        self._image = np.zeros((*size, 3), np.uint8)
        self._done = False  # it begins with an episode already
        self._fresh = True
        self.obs_space = {
            "image": Space(np.uint8, (*size, 3)),
            "reward": Space(np.float32),
            "is_first": Space(bool),
            "is_last": Space(bool),
            "is_terminal": Space(bool),
        }
        self.act_space = {"action": Space(np.int32, (), 0, ACTIONS), "reset": Space(bool)}

    def step(self, action: Mapping[str, Any]) -> dict[str, Any]:
        if action["reset"] or self._done or self._fresh:
            if not self._done and not self._fresh:
                self._env.act(np.array([RESTART]))
            self._done = self._fresh = False
            self._steps = 0
            self._image = self._draw()
            return self._observe(0.0, first=True)
        self._env.act(np.array([action["action"]]))
        reward, _, first = self._env.observe()
        self._steps += 1
        self._done = bool(first[0])
        if not self._done:
            self._image = self._draw()
            return self._observe(float(reward[0]))
        complete = bool(self._env.get_info()[0]["prev_level_complete"])
        return self._observe(float(reward[0]), terminal=complete or self._steps < self._timeout)

    def close(self) -> None:
        self._env.close()

    def _observe(self, reward: float, first: bool = False, terminal: bool = False) -> dict[str, Any]:
        return {
            "image": self._image,
            "reward": np.float32(reward),
            "is_first": np.bool_(first),
            "is_last": np.bool_(self._done),
            "is_terminal": np.bool_(terminal),
        }

    def _draw(self) -> np.ndarray:
        if self._small:
            return np.array(self._env.observe()[1]["rgb"][0])
        height, width = self._size
        large = Image.fromarray(np.asarray(self._env.get_info()[0]["rgb"]))
        return np.array(large.resize((width, height), self._filter))


def make(task: str, options: EnvOptions, seed: int, /, **kwargs: Any) -> Procgen:
    """Keyword arguments go to the library, such as `distribution_mode`, `num_levels` and `start_level`."""
    if task not in GAMES:
        raise unknown_task("procgen", task, GAMES)
    return Procgen(task, seed, options.size or (96, 96), options.resize or "bilinear", **kwargs)


def tasks() -> list[str]:
    return list(GAMES)
