"""Takes the images of one episode now and then, out of the steps of many environments that pass by."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from dreamfleet.core.interfaces import Arrays
from dreamfleet.core.spaces import are_images

MAX_FRAMES = 1000
MAX_BYTES = 32 << 20


class EpisodeRecorder:
    """Follows an environment whose episode begins, at once and then `every_s` seconds after the last recording (0:
    never). Of a long episode the beginning is recorded. Environments that are not followed cost nothing.

    An environment that is silent for `timeout_s` seconds is given up. One that starts over is recorded from there.
    """

    def __init__(self, every_s: float, timeout_s: float, now: Callable[[], float] = time.monotonic) -> None:
        self._every_s = every_s
        self._timeout_s = timeout_s
        self._now = now
        self._due = now() if every_s > 0 else np.inf
        self._env: int | None = None
        self._frames: dict[str, list[np.ndarray]] = {}
        self._seen = 0.0

    def add(self, envs: np.ndarray, data: Arrays) -> Arrays | None:
        """Takes one step of each of `envs`; returns per image the frames of an episode that is complete."""
        now = self._now()
        if self._env is None:
            if now < self._due or not data["is_first"].any():
                return None
            self._begin(envs, data)
        elif now - self._seen > self._timeout_s:
            self._env = None
            return None
        return self._follow(envs, data, now) if self._env is not None else None

    def _begin(self, envs: np.ndarray, data: Arrays) -> None:
        images = [key for key, value in data.items() if are_images(value)]
        if not images:
            self._due = np.inf  # and none will ever come
            return
        self._env = int(envs[np.flatnonzero(data["is_first"])[0]])
        self._frames = {key: [] for key in images}

    def _follow(self, envs: np.ndarray, data: Arrays, now: float) -> Arrays | None:
        rows = np.flatnonzero(envs == self._env)
        if not rows.size:
            return None
        row, self._seen = rows[0], now
        if data["is_first"][row]:
            self._frames = {key: [] for key in self._frames}
        size = 0
        for key, frames in self._frames.items():
            frames.append(data[key][row].copy())  # a view would keep all of its message
            size += len(frames) * frames[-1].nbytes
        length = len(next(iter(self._frames.values())))
        if not data["is_last"][row] and length < MAX_FRAMES and size < MAX_BYTES:
            return None
        self._env = None
        self._due = now + self._every_s
        taken, self._frames = self._frames, {}
        return {key: np.stack(frames) for key, frames in taken.items()}
