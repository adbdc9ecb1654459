"""DeepMind Lab: the 30 levels of the benchmark, or any level by its path."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from dreamfleet.core.spaces import Space
from dreamfleet.envs.catalog import unknown_task
from dreamfleet.envs.options import EnvOptions

NAMES = """
rooms_collect_good_objects_train rooms_exploit_deferred_effects_train rooms_select_nonmatching_object rooms_watermaze
rooms_keys_doors_puzzle language_select_described_object language_select_located_object language_execute_random_task
language_answer_quantitative_question lasertag_one_opponent_small lasertag_three_opponents_small
lasertag_one_opponent_large lasertag_three_opponents_large natlab_fixed_large_map natlab_varying_map_regrowth
natlab_varying_map_randomized skymaze_irreversible_path_hard skymaze_irreversible_path_varied
psychlab_arbitrary_visuomotor_mapping psychlab_continuous_recognition psychlab_sequential_comparison
psychlab_visual_search explore_object_locations_small explore_object_locations_large explore_obstructed_goals_small
explore_obstructed_goals_large explore_goal_locations_small explore_goal_locations_large explore_object_rewards_few
explore_object_rewards_many
"""
LEVELS = NAMES.split()
FOLDER = "contributed/dmlab30/"
HELD_OUT = {"rooms_collect_good_objects_test", "rooms_exploit_deferred_effects_test"}

# Look right, look down (pixels a frame), strafe right, move forward, fire, jump, crouch. The set known from PopArt.
ACTIONS = (
    (0, 0, 0, 1, 0, 0, 0),
    (0, 0, 0, -1, 0, 0, 0),
    (0, 0, -1, 0, 0, 0, 0),
    (0, 0, 1, 0, 0, 0, 0),
    (-10, 0, 0, 0, 0, 0, 0),
    (10, 0, 0, 0, 0, 0, 0),
    (-60, 0, 0, 0, 0, 0, 0),
    (60, 0, 0, 0, 0, 0, 0),
    (0, 10, 0, 0, 0, 0, 0),
    (0, -10, 0, 0, 0, 0, 0),
    (-10, 0, 0, 1, 0, 0, 0),
    (10, 0, 0, 1, 0, 0, 0),
    (-60, 0, 0, 1, 0, 0, 0),
    (60, 0, 0, 1, 0, 0, 0),
    (0, 0, 0, 0, 1, 0, 0),
)
WORDS, WIDTH = 32, 32


class Lab:
    """One level. Where levels are `episodic`, their end is a termination, else a truncation.

    Levels with language add `instruction`: for each of the first 32 words 32 normally distributed numbers, a fixed
    function of the word, and zeros after the last. With `use_seed`, the seed of each episode comes from ours.
    """

    def __init__(
        self,
        level: str,
        seed: int,
        *,
        size: tuple[int, int],
        repeat: int,
        episodic: bool,
        use_seed: bool,
        language: bool,
    ) -> None:
        import deepmind_lab

        config = {"height": str(size[0]), "width": str(size[1]), "logLevel": "WARN"}
        if level.rpartition("/")[2] in HELD_OUT:
            config["allowHoldOutLevels"] = "true"
        names = ["RGB_INTERLEAVED", *(["INSTR"] if language else [])]
        self._env = deepmind_lab.Lab(level, names, config=config)
        self._repeat, self._episodic, self._use_seed, self._language = repeat, episodic, use_seed, language
        self._rng = np.random.default_rng(seed)
        self._seen: dict[str, np.ndarray] = {}
        self._done = True
        text = {"instruction": Space(np.float32, (WORDS * WIDTH,))} if language else {}
        self.obs_space = {
            "image": Space(np.uint8, (*size, 3)),
            **text,
            "reward": Space(np.float32),
            "is_first": Space(bool),
            "is_last": Space(bool),
            "is_terminal": Space(bool),
        }
        self.act_space = {"action": Space(np.int32, (), 0, len(ACTIONS)), "reset": Space(bool)}

    def step(self, action: Mapping[str, Any]) -> dict[str, Any]:
        if action["reset"] or self._done:
            if self._use_seed:
                self._env.reset(seed=int(self._rng.integers(2**31 - 1)))
            else:
                self._env.reset()
            self._done = False
            return self._observe(0.0, first=True)
        chosen = np.array(ACTIONS[int(action["action"])], np.intc)
        reward = self._env.step(chosen, num_steps=self._repeat)
        self._done = not self._env.is_running()
        return self._observe(float(reward))

    def close(self) -> None:
        self._env.close()

    def _observe(self, reward: float, first: bool = False) -> dict[str, Any]:
        if not self._done:  # a level that has ended shows nothing: its last image stands for the end
            shown = self._env.observations()
            self._seen = {"image": np.array(shown["RGB_INTERLEAVED"])}
            if self._language:
                self._seen["instruction"] = embed(str(shown["INSTR"]))
        return {
            **self._seen,
            "reward": np.float32(reward),
            "is_first": np.bool_(first),
            "is_last": np.bool_(self._done),
            "is_terminal": np.bool_(self._done and self._episodic),
        }


def embed(text: str) -> np.ndarray:
    rows = np.zeros((WORDS, WIDTH), np.float32)
    for row, word in zip(rows, re.findall(r"[a-z0-9]+", text.lower()), strict=False):
        number = int.from_bytes(hashlib.sha256(word.encode()).digest()[:8], "little")
        row[:] = np.random.default_rng(number).standard_normal(WIDTH)
    return rows.ravel()


def make(task: str, options: EnvOptions, seed: int, *, episodic: bool = True, use_seed: bool = True) -> Lab:
    if task not in LEVELS and task not in HELD_OUT and "/" not in task:
        raise unknown_task("dmlab", task, [*LEVELS, *HELD_OUT])
    return Lab(
        task if "/" in task else FOLDER + task,
        seed,
        size=options.size or (64, 64),
        repeat=options.repeat or 4,
        episodic=episodic,
        use_seed=use_seed,
        language=task.rpartition("/")[2].startswith("language"),
    )


def tasks() -> list[str]:
    return list(LEVELS)
