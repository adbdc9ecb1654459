"""Tries an environment out as the fleet would use it, and reports what the agent will see and what is wrong.

The report is a plain dictionary that grows while the inspection runs and is published with every finding: an
environment that never returns, or that ends its process, leaves behind what was known by then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from dreamfleet.core.errors import BadInput
from dreamfleet.core.spaces import LOG_PREFIX, Space, is_image
from dreamfleet.envs.inspection.comparison import Doing, compare_runs
from dreamfleet.envs.inspection.episode_counts import EpisodeCounts
from dreamfleet.envs.inspection.rows import EnvRows, check_flags, make_rows
from dreamfleet.envs.inspection.violations import Violations
from dreamfleet.envs.registry import Made

Report = dict[str, Any]
Limits = Callable[[Mapping[str, Space], Mapping[str, Space]], str | None]  # of observations and actions: what is wrong

EPISODES = 5
MIN_STEPS, MAX_STEPS = 1_000, 10_000
CRASHES = 3  # after which there is no point in going on
SAME_LENGTH = 50  # shorter episodes may well all have one length


class Inspection:
    """`build` makes the environment, given how often it has been restarted after an error. Call `run` once.

    Without `steps`, it goes on until a few episodes have ended and some steps were taken. `limits` are the agent's.
    """

    def __init__(
        self,
        build: Callable[[int], Made],
        publish: Callable[[Report], None],
        doing: Doing = lambda what, step: None,
        *,
        steps: int | None = None,
        seconds: float = 20.0,
        limits: Limits = lambda obs_space, act_space: None,
    ) -> None:
        self._build, self._publish, self._doing = build, publish, doing
        self._wanted, self._seconds, self._limits = steps, seconds, limits
        self._found = Violations(self._tell)
        self._episodes = EpisodeCounts()
        self._notes: list[str] = []
        self._log_keys: set[str] = set()
        self._rng = np.random.default_rng(0)
        self._crashes = 0
        self._step = 0
        self._limit = 0  # steps after which the environment says that it truncates; 0: it does not say
        self._times: dict[str, list[float]] = {"construct": [], "reset": [], "step": []}
        self._report: Report = {
            "observation": {},
            "action": {},
            "readings": {},
            "vectorised": None,
            "determinism": None,
        }

    def run(self) -> Report:
        """Raises `BadInput` where the environment cannot be made because of what the user typed."""
        deadline = time.monotonic() + self._seconds
        rows = self._make()
        while rows and not self._enough(deadline):
            rows = self._advance(rows)
        rows = rows and self._reset_within(rows)
        if rows:
            self._close(rows)
            self._judge_episodes()
            self._report["determinism"] = found = compare_runs(partial(self._build, 0), self._doing)
            if found["same"] is False:
                self._notes.append(
                    "a run cannot be repeated: take random numbers from self.np_random, which super().reset(seed=seed) "
                    "seeds, and from nowhere else"
                )
        self._tell()
        return self._report

    def _enough(self, deadline: float) -> bool:
        if time.monotonic() > deadline:
            return True
        if self._wanted is not None:
            return self._step >= self._wanted
        return self._step >= (MIN_STEPS if self._episodes.count >= EPISODES else MAX_STEPS)

    def _make(self) -> EnvRows | None:
        self._doing("construction", self._step)
        begin = time.perf_counter()
        try:
            made = self._build(self._crashes)
            rows = make_rows(made, self._found, self._notes)
        except BadInput:
            raise
        except Exception as error:
            self._found.add_error("construction", error)
            return None
        self._times["construct"].append(time.perf_counter() - begin)
        self._limit = declared_limit(made)
        self._report["observation"] = {key: describe(space) for key, space in rows.env.obs_space.items()}
        self._report["action"] = {key: describe(space) for key, space in rows.env.act_space.items() if key != "reset"}
        self._report["readings"] = {key: reading.to_json() for key, reading in rows.readings.items()}
        self._report["vectorised"] = rows.vectorised
        if not self._crashes and (problem := self._limits(rows.env.obs_space, rows.env.act_space)):
            self._found.add("agent", "environment", problem, "")
        self._tell()
        return rows

    def _advance(self, rows: EnvRows) -> EnvRows | None:
        """One step of all rows. Returns what to go on with: another environment after an error."""
        begins = rows.resets.copy()
        what = "reset" if begins.all() else "step"
        self._step += what == "step"
        self._found.step = self._step
        self._doing(what, self._step)
        try:
            seen = rows.step(self._rng)
            first = rows.begun()
        except Exception as error:
            self._found.add_error(what, error)
            return self._recreate(rows)
        self._times[what].append(rows.step_s)
        for row, obs in [*enumerate(seen), *first.items()]:
            check_flags(obs, bool(begins[row]), self._found)
            begins[row] = True  # for the row's second observation, if there is one
            self._log_keys.update(key for key in obs if key.startswith(LOG_PREFIX))
            self._episodes.take(row, obs)
        return rows

    def _recreate(self, rows: EnvRows) -> EnvRows | None:
        self._crashes += 1
        self._episodes.drop()
        self._close(rows)
        return self._make() if self._crashes < CRASHES else None

    def _reset_within(self, rows: EnvRows) -> EnvRows | None:
        """The fleet may begin a new episode before one has ended, for example when a worker has lost its connection."""
        self._episodes.drop()
        rows.resets[:] = True
        return self._advance(rows)

    def _close(self, rows: EnvRows) -> None:
        self._doing("close", self._step)
        try:
            rows.env.close()
        except Exception as error:
            self._found.add_error("close", error)

    def _judge_episodes(self) -> None:
        episodes = self._episodes
        if episodes.count == 0:
            within = f"no episode ended within {self._step} steps"
            if self._limit > self._step or self._step < MIN_STEPS:
                self._notes.append(f"{within}: give --steps for a longer look")
                return
            fix = "return truncated=True when time is up, or set env.time_limit; give more --steps if it takes longer"
            self._found.add("endless", "episode", within, fix)
        elif episodes.all_terminated_at() >= SAME_LENGTH:
            self._notes.append(
                f"all {episodes.count} episodes were terminated after {episodes.all_terminated_at()} steps: if that is "
                "a time limit, return truncated instead, so that the value of what would follow counts"
            )

    def _tell(self) -> None:
        self._report |= {
            "ok": not len(self._found),
            "notes": list(dict.fromkeys(self._notes)),  # a restarted one has the same again
            "log": sorted(self._log_keys),
            "steps": self._step,
            "episodes": self._episodes.to_json(),
            "speed": self._speed(),
            "violations": self._found.to_json(),
        }
        self._publish(self._report)

    def _speed(self) -> Report:
        mean = {what: float(np.mean(times)) if times else None for what, times in self._times.items()}
        rows = self._report["vectorised"] or 1
        return {
            "steps_per_s": rows / mean["step"] if mean["step"] else None,
            "construct_s": mean["construct"],
            "reset_s": mean["reset"],
        }


def declared_limit(made: Made) -> int:
    spec = getattr(made.made, "spec", None)
    return int(made.options.time_limit or getattr(spec, "max_episode_steps", None) or 0)


def describe(space: Space) -> dict[str, Any]:
    return {"kind": kind_of(space), **space.to_json()}


def kind_of(space: Space) -> str:
    """What an array is to the agent."""
    if space.dtype.kind == "b":
        return "binary"
    if is_image(space):
        return "image"
    if space.discrete:
        return "multi-discrete" if space.shape else "discrete"
    return {0: "scalar", 1: "vector"}.get(len(space.shape), "array")
