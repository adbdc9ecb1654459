"""Names what a thread waits for, so that the status can say it while it happens and the metrics how long it took."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum


class Wait(StrEnum):
    """What a part of a fleet waits for. Code decides by these names; `core.text.words` has the text for people.

    They are part of the names of metrics (`wait/learner/replay_to_sample_s`) and of `status.json`.
    """

    # The actor; the last two are the time that its connection to a role had no room.
    OBSERVATIONS = "observations"
    REPLAY_TO_ACCEPT_STEPS = "replay_to_accept_steps"
    REPLAY_TO_COME_BACK = "replay_to_come_back"
    LOGGER_TO_ACCEPT_STEPS = "logger_to_accept_steps"
    REPLAY = "replay"
    LOGGER = "logger"
    # The learner.
    REPLAY_TO_START = "replay_to_start"
    REPLAY_TO_SAMPLE = "replay_to_sample"
    REPLAY_TO_ACCEPT_LATENTS = "replay_to_accept_latents"
    SNAPSHOT_TO_BE_CAPTURED = "snapshot_to_be_captured"
    SNAPSHOT_TO_BE_WRITTEN = "snapshot_to_be_written"
    # Replay, whose limiter holds one side back until the other one has done its part.
    ACTOR_TO_INSERT = "actor_to_insert"
    LEARNER_TO_SAMPLE = "learner_to_sample"
    # Env workers.
    ACTIONS = "actions"
    ACTOR_TO_ACCEPT_ENVIRONMENTS = "actor_to_accept_environments"
    ACTOR_TO_HAVE_ROOM = "actor_to_have_room"
    ENV_STEP = "env_step"  # of an environment that is named beside it
    ENV_RESTART = "env_restart"  # likewise
    SUPERVISOR_TO_STOP = "supervisor_to_stop"  # at the end of a run


LIMITED = (Wait.REPLAY_TO_SAMPLE, Wait.REPLAY_TO_ACCEPT_STEPS)  # end when replay's limiter allows it
IN_ENV = (Wait.ENV_STEP, Wait.ENV_RESTART)  # for nobody but an environment


class LimiterState(StrEnum):
    """What replay's limiter waits for before it lets the side go on that is ahead."""

    OPEN = "open"
    FIRST_UPDATE = "first_update"  # the steps before it
    STEPS = "steps"
    WINDOW = "window"  # there are enough steps, and not one window among them
    SAMPLES = "samples"

    @property
    def holds_envs(self) -> bool:
        """Whether it holds inserting back; in the other states, but for `OPEN`, it holds the learner."""
        return self is LimiterState.SAMPLES


class Waits:
    """Used as `with waits(Wait.REPLAY_TO_SAMPLE): ...` around a blocking call. Threads may wait at the same time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards both tables
        self._open: dict[tuple[int, Wait], float] = {}
        self._total_s: dict[Wait, float] = {}

    @contextmanager
    def __call__(self, name: Wait) -> Iterator[None]:
        key = (threading.get_ident(), name)
        start = time.monotonic()
        with self._lock:
            self._open[key] = start
        try:
            yield
        finally:
            with self._lock:
                del self._open[key]
                self._total_s[name] = self._total_s.get(name, 0.0) + time.monotonic() - start

    def current(self) -> dict[Wait, float]:
        """What is being waited for right now, and for how many seconds so far."""
        now = time.monotonic()
        with self._lock:
            return {name: round(now - start, 1) for (_, name), start in self._open.items()}

    def totals(self) -> dict[Wait, float]:
        """Seconds waited in all, by name, waits in progress included."""
        now = time.monotonic()
        with self._lock:
            totals = dict(self._total_s)
            for (_, name), start in self._open.items():
                totals[name] = totals.get(name, 0.0) + now - start
        return totals

    def metrics(self, part: str) -> dict[str, float]:
        """Return the totals under the names that metrics have for them."""
        return {f"wait/{part}/{name}_s": seconds for name, seconds in self.totals().items()}
