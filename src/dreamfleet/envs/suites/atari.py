"""Atari games through ale-py, which brings the ROMs, with the settings of the 200M frames benchmark."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from dreamfleet.core.errors import ConfigError
from dreamfleet.core.spaces import Space
from dreamfleet.envs.catalog import unknown_task
from dreamfleet.envs.options import EnvOptions

# The benchmark's 57; `make` takes every other ROM of ale-py too.
NAMES = """
alien amidar assault asterix asteroids atlantis bank_heist battle_zone beam_rider berzerk bowling boxing breakout
centipede chopper_command crazy_climber defender demon_attack double_dunk enduro fishing_derby freeway frostbite gopher
gravitar hero ice_hockey jamesbond kangaroo krull kung_fu_master montezuma_revenge ms_pacman name_this_game phoenix
pitfall pong private_eye qbert riverraid road_runner robotank seaquest skiing solaris space_invaders star_gunner
surround tennis time_pilot tutankham up_n_down venture video_pinball wizard_of_wor yars_revenge zaxxon
"""
GAMES = NAMES.split()

NOOP, FIRE = 0, 1  # numbers of ALE's own, the same for every game
FILTERS = {"area": Image.Resampling.BOX, "bilinear": Image.Resampling.BILINEAR}


@dataclass(frozen=True)
class AtariSettings:
    size: tuple[int, int]
    repeat: int
    sticky: bool  # each frame repeats the previous action with a probability of 0.25
    gray: bool
    actions: str  # "all" 18 or the "needed" ones of the game
    lives: str  # "unused", or "reset": a lost life ends the episode and the game
    noops: int  # an episode begins after 0 to this many frames without action
    autostart: bool  # presses FIRE to begin
    pooling: int
    clip_reward: bool  # to its sign
    length: int  # frames after which an episode is cut
    resize: str


class Atari:
    """One game.

    A step acts for `repeat` frames, or until the game is over, and sums their rewards. What is seen is the maximum
    over the last `pooling` frames (the hardware draws some sprites on every other one), in colour, resized by Pillow,
    then made gray where asked: (299 R + 587 G + 114 B) / 1000, rounded down.

    The end of the game is a termination. The cap of `length` frames is a truncation: the state goes on, so its value
    is bootstrapped. (The published code reports both as terminations.) Frames before the first observation do
    not count.

    Random streams: ALE's `random_seed` is `seed` modulo 2^31; at each start of an episode, the number of frames
    without action is `default_rng(seed).integers(noops + 1)`, drawn from one generator for the life of the object.
    """

    def __init__(self, game: str, settings: AtariSettings, seed: int) -> None:
        from ale_py import ALEInterface, LoggerMode, roms

        ALEInterface.setLoggerMode(LoggerMode.Error)
        self._ale = ALEInterface()
        self._ale.setInt("random_seed", seed % 2**31)
        self._ale.setFloat("repeat_action_probability", 0.25 if settings.sticky else 0.0)
        rom = roms.get_rom_path(game)
        if rom is None:
            raise ConfigError(f"ale-py has no ROM of {game!r}: pip install --force-reinstall ale-py")
        self._ale.loadROM(rom)
        all_actions = settings.actions == "all"
        self._actions = self._ale.getLegalActionSet() if all_actions else self._ale.getMinimalActionSet()
        self._set = settings
        self._rng = np.random.default_rng(seed)
        screen = (*self._ale.getScreenDims(), 3)
        self._screens = deque([np.zeros(screen, np.uint8) for _ in range(settings.pooling)])  # the newest first
        self._frames = 0
        self._done = True
        self.obs_space = {
            "image": Space(np.uint8, (*settings.size, 1 if settings.gray else 3)),
            "reward": Space(np.float32),
            "is_first": Space(bool),
            "is_last": Space(bool),
            "is_terminal": Space(bool),
        }
        self.act_space = {"action": Space(np.int32, (), 0, len(self._actions)), "reset": Space(bool)}

    def step(self, action: Mapping[str, Any]) -> dict[str, Any]:
        if action["reset"] or self._done:
            self._reset()
            return self._observe(0.0, first=True)
        chosen = self._actions[int(action["action"])]
        lives = self._ale.lives()
        reward, over = 0.0, False
        for _ in range(self._set.repeat):
            reward += self._ale.act(chosen)
            self._look()
            self._frames += 1
            over = self._ale.game_over() or (self._set.lives == "reset" and self._ale.lives() < lives)
            self._done = over or self._frames >= self._set.length
            if self._done:
                break
        if self._set.clip_reward:
            reward = float(np.sign(reward))
        return self._observe(reward, terminal=over)

    def close(self) -> None:
        pass

    def _reset(self) -> None:
        self._ale.reset_game()
        for _ in range(self._rng.integers(self._set.noops + 1)):
            self._begin(NOOP)
        if self._set.autostart:
            self._begin(FIRE)
        self._look()
        for older in list(self._screens)[1:]:
            older[:] = self._screens[0]
        self._frames = 0
        self._done = False

    def _begin(self, action: int) -> None:
        self._ale.act(action)
        if self._ale.game_over():
            self._ale.reset_game()

    def _look(self) -> None:
        self._screens.rotate(1)
        self._ale.getScreenRGB(self._screens[0])

    def _observe(self, reward: float, first: bool = False, terminal: bool = False) -> dict[str, Any]:
        return {
            "image": self._image(),
            "reward": np.float32(reward),
            "is_first": np.bool_(first),
            "is_last": np.bool_(self._done),
            "is_terminal": np.bool_(terminal),
        }

    def _image(self) -> np.ndarray:
        pooled = np.maximum.reduce(list(self._screens))
        height, width = self._set.size
        image = np.array(Image.fromarray(pooled).resize((width, height), FILTERS[self._set.resize]))
        if not self._set.gray:
            return image
        red, green, blue = (image[..., channel].astype(np.uint32) for channel in range(3))
        return ((299 * red + 587 * green + 114 * blue) // 1000).astype(np.uint8)[..., None]


def make(
    task: str,
    options: EnvOptions,
    seed: int,
    *,
    sticky: bool = True,
    gray: bool = True,
    actions: str = "all",
    lives: str = "unused",
    noops: int = 30,
    autostart: bool = False,
    pooling: int = 2,
    clip_reward: bool = False,
    length: int = 108_000,
) -> Atari:
    size, repeat, resize = options.size or (96, 96), options.repeat or 4, options.resize or "bilinear"
    settings = AtariSettings(
        size, repeat, sticky, gray, actions, lives, noops, autostart, pooling, clip_reward, length, resize
    )
    return make_game("atari", task, settings, seed)


def make_game(suite: str, task: str, settings: AtariSettings, seed: int) -> Atari:
    from ale_py import roms

    game = {"james_bond": "jamesbond"}.get(task, task)
    if game not in (known := roms.get_all_rom_ids()):
        raise unknown_task(suite, task, known)
    for name, value, choices in (
        ("actions", settings.actions, ("all", "needed")),
        ("lives", settings.lives, ("unused", "reset")),
    ):
        if value not in choices:
            raise ConfigError(f"{suite}:{task}: env.kwargs.{name}={value!r} is not one of {', '.join(choices)}")
    if settings.pooling < 1 or settings.noops < 0 or settings.length < 1:
        raise ConfigError(
            f"{suite}:{task}: env.kwargs pooling={settings.pooling}, noops={settings.noops}, length={settings.length}: "
            "pooling and length are at least 1, noops at least 0"
        )
    return Atari(game, settings, seed)


def tasks() -> list[str]:
    return list(GAMES)
