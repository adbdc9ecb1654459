"""Atari with the settings of the 100k steps benchmark: no sticky actions, in colour, with only the actions needed."""

from __future__ import annotations

from dreamfleet.envs.options import EnvOptions
from dreamfleet.envs.suites.atari import Atari, AtariSettings, make_game

# The benchmark's 26; `make` takes every other ROM of ale-py too.
NAMES = """
alien amidar assault asterix bank_heist battle_zone boxing breakout chopper_command crazy_climber demon_attack freeway
frostbite gopher hero jamesbond kangaroo krull kung_fu_master ms_pacman pong private_eye qbert road_runner seaquest
up_n_down
"""
GAMES = NAMES.split()


def make(
    task: str,
    options: EnvOptions,
    seed: int,
    *,
    sticky: bool = False,
    gray: bool = False,
    actions: str = "needed",
    lives: str = "unused",
    noops: int = 30,
    autostart: bool = False,
    pooling: int = 2,
    clip_reward: bool = False,
    length: int = 108_000,
) -> Atari:
    size, repeat, resize = options.size or (64, 64), options.repeat or 4, options.resize or "bilinear"
    settings = AtariSettings(
        size, repeat, sticky, gray, actions, lives, noops, autostart, pooling, clip_reward, length, resize
    )
    return make_game("atari100k", task, settings, seed)


def tasks() -> list[str]:
    return list(GAMES)
