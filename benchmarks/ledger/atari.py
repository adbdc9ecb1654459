"""Scores of a random policy and of a human player, which normalise the returns of Atari games."""

from __future__ import annotations

RANDOM_HUMAN = {
    "alien": (227.8, 7127.7),
    "amidar": (5.8, 1719.5),
    "assault": (222.4, 742.0),
    "asterix": (210.0, 8503.3),
    "bank_heist": (14.2, 753.1),
    "battle_zone": (2360.0, 37187.5),
    "boxing": (0.1, 12.1),
    "breakout": (1.7, 30.5),
    "chopper_command": (811.0, 7387.8),
    "crazy_climber": (10780.5, 35829.4),
    "demon_attack": (152.1, 1971.0),
    "freeway": (0.0, 29.6),
    "frostbite": (65.2, 4334.7),
    "gopher": (257.6, 2412.5),
    "hero": (1027.0, 30826.4),
    "jamesbond": (29.0, 302.8),
    "kangaroo": (52.0, 3035.0),
    "krull": (1598.0, 2665.5),
    "kung_fu_master": (258.5, 22736.3),
    "ms_pacman": (307.3, 6951.6),
    "pong": (-20.7, 14.6),
    "private_eye": (24.9, 69571.3),
    "qbert": (163.9, 13455.0),
    "road_runner": (11.5, 7845.0),
    "seaquest": (68.4, 42054.7),
    "up_n_down": (533.4, 11693.2),
}


def human_normalised(game: str, score: float) -> float:
    """Return 0 for a random policy's score and 1 for the human player's."""
    random, human = RANDOM_HUMAN[game]
    return (score - random) / (human - random)
