"""A vectorised Gymnasium environment as an `EnvBatch` of ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from dreamfleet.core.errors import EnvError
from dreamfleet.core.interfaces import Arrays
from dreamfleet.core.spaces import LOG_PREFIX, Space
from dreamfleet.envs.gym.actions import Actions
from dreamfleet.envs.gym.env import FLAG_SPACES, NUMBERS, reset, wrong_step
from dreamfleet.envs.gym.observations import Observations
from dreamfleet.envs.gym.value_types import FINAL_OBS, expect_info, rows_of
from dreamfleet.envs.options import EnvOptions
from dreamfleet.envs.reward_parts import several_parts

FINAL_INFO = "final_info"


class GymnasiumBatch:
    """Gives each row the same steps that its environment would have given alone, whatever the autoreset mode.

    NEXT_STEP: a row that ended begins its next episode on the following step, whose action it ignores.
    SAME_STEP: the environment has begun the next episode already and keeps the last observation in its infos.
    DISABLED: rows that ended are reset at once, so that they too have begun.
    """

    def __init__(self, env: Any, name: str, options: EnvOptions, seed: int, notes: list[str]) -> None:
        _check_options(options, name)
        self._env = env
        self.name = name
        self.num_envs = int(env.num_envs)
        self._mode = _autoreset_mode(env, name)
        space = env.single_observation_space
        self._observe = Observations(space, name, options, notes, self.num_envs)
        self.readings = self._observe.readings
        self._observe_one = Observations(space, name, options, [])
        self._act = Actions(env.single_action_space, name, batched=True)
        self._seed: int | None = seed
        self._fresh = True
        self._ended = self._no_rows()  # by the last step, while the next episode is still to begin
        self._begun = self._no_rows()
        self._first: Arrays = {}
        self.obs_space: dict[str, Space] = {**self._observe.spaces, **FLAG_SPACES}
        self.act_space: dict[str, Space] = {**self._act.spaces, "reset": Space(bool)}

    def step(self, actions: Mapping[str, np.ndarray]) -> Arrays:
        asked = actions["reset"]
        if self._fresh or (asked.all() and not self._ended.all()):
            return self._begin()
        if (asked & ~self._ended).any():
            rows = np.flatnonzero(asked & ~self._ended).tolist()
            raise EnvError(f"{self.name} cannot reset its rows {rows} alone in mid-episode: reset all rows or none")
        result = self._env.step(self._act(actions))
        if not isinstance(result, tuple) or len(result) != 5:
            raise wrong_step(self.name, result)
        obs, reward, terminated, truncated, infos = result
        is_first, self._ended = self._ended, self._no_rows()
        terminated = rows_of(terminated, bool, self.num_envs, "terminated", self.name)
        last = terminated | rows_of(truncated, bool, self.num_envs, "truncated", self.name)
        if np.ndim(reward) > 1 and np.size(reward[0]) > 1:
            raise several_parts(self.name, np.shape(reward)[1:])
        reward = rows_of(reward, np.float32, self.num_envs, "the reward", self.name)
        reward[is_first] = 0  # belongs to no action
        expect_info(infos, self.name)
        shown = {**self._observe(obs), **self._row_numbers(infos, "log")}
        flags = {"reward": reward, "is_first": is_first, "is_last": last, "is_terminal": terminated}
        self._begun = self._no_rows()
        if self._mode is AutoresetMode.NEXT_STEP:
            self._ended = last
        elif last.any():
            shown = self._begin_rows(shown, last, infos)
        return {**shown, **flags}

    def begun(self) -> np.ndarray:
        return self._begun

    def first(self) -> Arrays:
        return self._first

    def close(self) -> None:
        self._env.close()

    def _begin(self) -> Arrays:
        obs, infos = reset(self._env, self.name, self._seed)
        self._seed = None
        self._fresh = False
        self._ended = self._no_rows()
        self._begun = self._no_rows()
        return self._first_step(obs, infos, ~self._no_rows())

    def _begin_rows(self, shown: Arrays, rows: np.ndarray, infos: Mapping[str, Any]) -> Arrays:
        """Splits off what belongs to the next episode of `rows`; returns the rest, with their last observations."""
        # Copied, for the environment may reuse its arrays when it resets.
        last = {key: np.array(value) for key, value in shown.items()}
        if self._mode is AutoresetMode.DISABLED:
            obs, infos = reset(self._env, self.name, None, options={"reset_mask": rows.copy()})
            self._first = self._first_step(obs, infos, rows)
        else:
            self._first = {**shown, **self._first_flags(rows)}
            self._put_last(last, rows, infos)
        self._begun = rows.copy()
        return last

    def _put_last(self, step: Arrays, rows: np.ndarray, infos: Mapping[str, Any]) -> None:
        final = infos.get(FINAL_OBS)
        if final is None:
            raise EnvError(
                f"{self.name} has autoreset mode SAME_STEP, but no {FINAL_OBS!r} in the infos of a step that ended an "
                "episode: put the last observations there, or declare the mode that it has"
            )
        if isinstance(final, np.ndarray) and final.dtype == object:
            for row in np.flatnonzero(rows):
                for key, value in self._observe_one(final[row]).items():
                    step[key][row] = value
        else:
            for key, value in self._observe(final).items():
                step[key][rows] = value[rows]
        numbers = self._row_numbers(infos.get(FINAL_INFO) or {}, "log")
        for key in {*numbers, *(key for key in step if key.startswith(LOG_PREFIX))}:
            missing = np.full(self.num_envs, np.nan)
            step.setdefault(key, missing.copy())[rows] = numbers.get(key, missing)[rows]

    def _first_step(self, obs: Any, infos: Mapping[str, Any], rows: np.ndarray) -> Arrays:
        return {**self._observe(obs), **self._row_numbers(infos, "log"), **self._first_flags(rows)}

    def _first_flags(self, rows: np.ndarray) -> Arrays:
        none = self._no_rows
        reward = np.zeros(self.num_envs, np.float32)
        return {"reward": reward, "is_first": rows.copy(), "is_last": none(), "is_terminal": none()}

    def _row_numbers(self, infos: Mapping[str, Any], prefix: str) -> Arrays:
        """Numbers in the infos, one per row and NaN in rows that have none. `_key` says which rows have `key`."""
        numbers: Arrays = {}
        for key, value in infos.items():
            if key in (FINAL_OBS, FINAL_INFO) or (str(key).startswith("_") and str(key)[1:] in infos):
                continue
            name = f"{prefix}/{key}"
            if isinstance(value, Mapping):
                found = self._row_numbers(value, name)
            else:
                row = self._one_per_row(value)
                found = {} if row is None else {name: row}
            mask = infos.get(f"_{key}")
            for inner, row in found.items():
                if mask is not None:  # holds for all that is inside, which need not have masks of its own
                    row[~np.asarray(mask, bool)] = np.nan
                if not np.isnan(row).all():
                    numbers[inner] = row
        return numbers

    def _one_per_row(self, value: Any) -> np.ndarray | None:
        if isinstance(value, NUMBERS):  # one for all
            return np.full(self.num_envs, float(value))
        if not isinstance(value, np.ndarray | list | tuple) or np.shape(value)[:1] != (self.num_envs,):
            return None
        array = np.asarray(value)
        if array.shape != (self.num_envs,):
            return None
        if array.dtype == object:  # where Gymnasium knows no array type for what the rows have
            return np.array([float(one) if isinstance(one, NUMBERS) else np.nan for one in array])
        return array.astype(np.float64) if array.dtype.kind in "biuf" else None

    def _no_rows(self) -> np.ndarray:
        return np.zeros(self.num_envs, bool)


def _autoreset_mode(env: Any, name: str) -> AutoresetMode:
    mode = (getattr(env, "metadata", None) or {}).get("autoreset_mode")
    try:
        return AutoresetMode(mode)
    except ValueError:
        known = ", ".join(f"AutoresetMode.{known.name}" for known in AutoresetMode)
        raise EnvError(
            f"{name}: metadata['autoreset_mode'] is {mode!r}: set it to what the environment does at an episode's end, "
            f"one of {known}"
        ) from None


def _check_options(options: EnvOptions, name: str) -> None:
    if options.repeat > 1:
        raise EnvError(
            f"env.repeat={options.repeat} does not work with a vectorised environment, and {name} is one: "
            "repeat actions inside its environments, or set env.vector=false"
        )
    if options.time_limit:
        raise EnvError(
            f"env.time_limit={options.time_limit} does not work with a vectorised environment, and {name} is one: "
            f"give it env.kwargs.max_episode_steps={options.time_limit}, or set env.vector=false"
        )
