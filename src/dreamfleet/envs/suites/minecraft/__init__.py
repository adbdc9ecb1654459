"""Minecraft through MineRL: `diamond` rewards each step of the way from wood to a diamond once per episode."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dreamfleet.core.spaces import EPISODE_FLAGS, Space
from dreamfleet.envs.catalog import unknown_task
from dreamfleet.envs.options import EnvOptions
from dreamfleet.envs.suites.minecraft.world import KEYS, make_world

NAMES = """
log planks stick crafting_table wooden_pickaxe cobblestone stone_pickaxe iron_ore furnace iron_ingot iron_pickaxe
diamond
"""
MILESTONES = NAMES.split()
HEALTH_REWARD = 0.01  # for all of the health gained, its negative for all of it lost
TURN = 15.0  # degrees
PITCH_LIMIT = 60.0  # looking further up or down shows nothing of use
JUMP_STEPS = 10  # a jump goes on, moving forward, so that it gets onto blocks
ATTACK_STEPS = 30  # so that single actions can break blocks at normal speed
COMMANDS = ("place", "equip", "craft", "nearbyCraft", "nearbySmelt")
NOTHING: dict[str, Any] = {
    **dict.fromkeys(KEYS, 0),
    "camera": (0.0, 0.0),
    **dict.fromkeys(COMMANDS, "none"),
}
ACTIONS: dict[str, dict[str, Any]] = {
    "noop": {},
    "attack": {"attack": 1},
    "turn_up": {"camera": (-TURN, 0.0)},
    "turn_down": {"camera": (TURN, 0.0)},
    "turn_left": {"camera": (0.0, -TURN)},
    "turn_right": {"camera": (0.0, TURN)},
    "forward": {"forward": 1},
    "back": {"back": 1},
    "left": {"left": 1},
    "right": {"right": 1},
    "jump": {"jump": 1, "forward": 1},
    "place_dirt": {"place": "dirt"},
    "craft_planks": {"craft": "planks"},
    "craft_stick": {"craft": "stick"},
    "craft_crafting_table": {"craft": "crafting_table"},
    "place_crafting_table": {"place": "crafting_table"},
    "craft_wooden_pickaxe": {"nearbyCraft": "wooden_pickaxe"},
    "craft_stone_pickaxe": {"nearbyCraft": "stone_pickaxe"},
    "craft_iron_pickaxe": {"nearbyCraft": "iron_pickaxe"},
    "equip_wooden_pickaxe": {"equip": "wooden_pickaxe"},
    "equip_stone_pickaxe": {"equip": "stone_pickaxe"},
    "equip_iron_pickaxe": {"equip": "iron_pickaxe"},
    "craft_furnace": {"nearbyCraft": "furnace"},
    "place_furnace": {"place": "furnace"},
    "smelt_iron_ingot": {"nearbySmelt": "iron_ingot"},
}


class Minecraft:
    """One player in a new world each episode.

    Observes `image`, `inventory` (how many of each item), `inventory_max` (the most held in this episode), `equipped`
    (one-hot), and `health`, `hunger` and `breath`, each 1 when full. Dying is a termination, `length` steps a
    truncation. With `logs`, `log/achievement/ITEM` is 1 in the step that earns it.
    """

    def __init__(
        self,
        env: Any,
        items: list[str],
        seed: int,
        *,
        size: tuple[int, int],
        length: int,
        hold_attack: bool,
        logs: bool,
    ) -> None:
        self._env = env
        self._items = items
        self._rng = np.random.default_rng(seed)
        self._length, self._hold_attack, self._logs = length, hold_attack, logs
        self._names = list(ACTIONS)
        self._steps, self._done = 0, True
        self._pitch, self._jumping, self._attacking = 0.0, 0, 0
        self._most = np.zeros(len(items), np.float32)
        self._health = 0.0
        self._earned: set[str] = set()
        many = Space(np.float32, (len(items),), 0.0)
        scalar = Space(np.float32)
        self.obs_space = {
            "image": Space(np.uint8, (*size, 3)),
            "inventory": many,
            "inventory_max": many,
            "equipped": Space(np.float32, (len(items) + 1,), 0.0, 1.0),
            **dict.fromkeys(("health", "hunger", "breath", "reward"), scalar),
            **dict.fromkeys(EPISODE_FLAGS, Space(bool)),
            **({f"log/achievement/{item}": scalar for item in MILESTONES} if logs else {}),
        }
        self.act_space = {"action": Space(np.int32, (), 0, len(ACTIONS)), "reset": Space(bool)}

    def step(self, action: Mapping[str, Any]) -> dict[str, Any]:
        if action["reset"] or self._done:
            self._env.seed(int(self._rng.integers(2**31 - 1)))  # MineRL forgets it with every reset
            raw = self._env.reset()
            self._steps, self._done = 0, False
            self._pitch, self._jumping, self._attacking = 0.0, 0, 0
            self._most = np.zeros(len(self._items), np.float32)
            self._health = float(raw["life_stats"]["life"]) / 20
            self._earned = set()
            return self._observe(raw, first=True)
        raw, _, over, _ = self._env.step(self._command(self._names[int(action["action"])]))
        self._steps += 1
        self._done = bool(over) or self._steps >= self._length
        return self._observe(raw, terminal=bool(over))

    def close(self) -> None:
        self._env.close()

    def _command(self, name: str) -> dict[str, Any]:
        command = {**NOTHING, **ACTIONS[name]}
        self._jumping = JUMP_STEPS if command["jump"] else self._jumping
        if self._jumping > 0:
            self._jumping -= 1
            command |= {"jump": 1, "forward": 1}
        self._attacking = ATTACK_STEPS if command["attack"] and self._hold_attack else self._attacking
        if self._attacking > 0:
            self._attacking -= 1
            command |= {"attack": 1, "jump": 0}
        pitch, yaw = command["camera"]
        if abs(self._pitch + pitch) > PITCH_LIMIT:
            pitch = 0.0
        self._pitch += pitch
        return command | {"camera": np.array([pitch, yaw], np.float32)}

    def _observe(self, raw: Mapping[str, Any], first: bool = False, terminal: bool = False) -> dict[str, Any]:
        held = {name: float(count) for name, count in raw["inventory"].items()}
        held["log"] = held.get("log", 0.0) + held.pop("log2", 0.0)  # the wood of two more kinds of trees
        held.pop("air", None)  # the empty slots
        inventory = np.array([held.get(item, 0.0) for item in self._items], np.float32)
        self._most = np.maximum(self._most, inventory)
        new = [] if first else [item for item in MILESTONES if held.get(item) and item not in self._earned]
        self._earned.update(new)
        stats = raw["life_stats"]
        health = float(stats["life"]) / 20
        reward = len(new) + HEALTH_REWARD * (health - self._health)
        self._health = health
        return {
            "image": np.asarray(raw["pov"]),
            "inventory": inventory,
            "inventory_max": self._most,
            "equipped": self._equipped(str(raw["equipped_items"]["mainhand"]["type"])),
            "health": np.float32(health),
            "hunger": np.float32(stats["food"] / 20),
            "breath": np.float32(stats["air"] / 300),
            "reward": np.float32(reward),
            "is_first": np.bool_(first),
            "is_last": np.bool_(self._done),
            "is_terminal": np.bool_(terminal),
            **({f"log/achievement/{item}": np.float32(item in new) for item in MILESTONES} if self._logs else {}),
        }

    def _equipped(self, item: str) -> np.ndarray:
        """The last place is for what is no item of the list."""
        one_hot = np.zeros(len(self._items) + 1, np.float32)
        one_hot[self._items.index(item) if item in self._items else -1] = 1.0
        return one_hot


def make(
    task: str, options: EnvOptions, seed: int, *, break_speed: float = 100.0, length: int = 36_000, logs: bool = False
) -> Minecraft:
    """At a `break_speed` of 1, attacks are held instead, and MineRL needs no patch."""
    if task != "diamond":
        raise unknown_task("minecraft", task, tasks())
    size = options.size or (64, 64)
    env, items = make_world(size, break_speed)
    return Minecraft(env, items, seed, size=size, length=length, hold_attack=break_speed == 1, logs=logs)


def tasks() -> list[str]:
    return ["diamond"]
