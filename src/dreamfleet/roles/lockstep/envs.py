"""Environments that step in lock step, and the record of their actions from which they can be brought back."""

from __future__ import annotations

import uuid
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from dreamfleet.config.args import FleetArgs
from dreamfleet.core.context import RoleContext
from dreamfleet.core.error_origin import told
from dreamfleet.core.errors import CheckpointMismatch, ConfigError, DreamfleetError, EnvFailed
from dreamfleet.core.interfaces import Arrays, EnvBatch
from dreamfleet.core.text.words import waits_status
from dreamfleet.roles.env_worker.group import StepGroup, act_call_of, expect_same_spaces, stored_keys
from dreamfleet.roles.env_worker.instance import EnvInstance, EnvMaker, MakeEnv
from dreamfleet.roles.env_worker.measurements import EpisodeLogs, StepClock, StepTimes

FIRST_ROUNDS = 1024  # that the record has room for; it doubles when they are used up


class ActionRecord:
    """The actions of every round since the run began, one array per key with the axes: round, environment, action's."""

    def __init__(self) -> None:
        self._arrays: Arrays = {}
        self._rounds = 0

    def __len__(self) -> int:
        return self._rounds

    def append(self, actions: Mapping[str, np.ndarray]) -> None:
        if not self._arrays:
            self._arrays = {key: np.empty((FIRST_ROUNDS, *value.shape), value.dtype) for key, value in actions.items()}
        for key, value in actions.items():
            array = self._arrays[key]
            if self._rounds == len(array):
                array = self._arrays[key] = np.concatenate([array, np.empty_like(array)])
            array[self._rounds] = value
        self._rounds += 1

    def save(self) -> Arrays:
        return {key: array[: self._rounds] for key, array in self._arrays.items()}

    def load(self, data: Mapping[str, np.ndarray]) -> None:
        self._arrays = {key: np.array(value) for key, value in data.items()}
        self._rounds = min((len(array) for array in self._arrays.values()), default=0)

    def __iter__(self) -> Iterator[Arrays]:
        for number in range(self._rounds):
            yield {key: array[number] for key, array in self._arrays.items()}


class LockstepEnvs:
    """All environments of a mode, one round at a time: `step` gives their observations, `take` their next actions.

    An environment's state cannot be saved, but one that is recreated with the same seed and given the same actions
    comes to the same state: `repeat` does that, and compares all observations on the way by their checksums.

    One that raises an error ends the run: a restart is nothing that could be repeated.
    """

    def __init__(self, make_env: MakeEnv, count: int, mode: str, args: FleetArgs) -> None:
        maker = EnvMaker(make_env, mode)  # with the same seeds in every life: it does what it did before
        self.mode = mode
        self.count = count
        self.instances: list[EnvInstance] = []
        try:
            for index in range(count):
                self.instances.append(maker.make(index, 1))
                _expect_alone(self.instances[-1])
            expect_same_spaces(self.instances)
        except BaseException:
            self.close(RoleContext())
            raise
        self.clock = StepClock(args.env_step_timeout_s)
        self.times = StepTimes(self.instances)
        self._logs = EpisodeLogs()
        self._group = StepGroup(self.instances, act_call_of(mode, apart=True), self.clock, self._logs)
        self._keys = stored_keys(self.instances[0])
        self._checksums = dict.fromkeys(self._keys, 0)
        self._actions: Arrays = {}  # to the last observations
        self._record = ActionRecord()
        self._id = uuid.uuid4().hex

    @property
    def steps(self) -> int:
        return self._group.steps

    def join_request(self) -> Arrays:
        return self._group.join_request()

    def begin(self, slots: np.ndarray) -> np.ndarray:
        """Takes its slots from the actor and returns the streams: one for each environment, for as long as it runs."""
        streams = np.arange(self.count, dtype=np.int64)
        self._group.begin(slots, streams, np.arange(self.count, dtype=np.int32))
        return streams

    def step(self) -> Arrays:
        """The next observations, with `slot` and `stream`. The arrays are used again by the next step."""
        try:
            self._group.step(self._actions)
        except DreamfleetError:
            raise
        except Exception as error:
            name = self.clock.running[0].name if self.clock.running else f"a {self.mode} environment"
            raise EnvFailed(f"{name} failed: {told(error)}") from error
        observed = self._group.request.arrays
        for key in self._keys:
            self._checksums[key] = zlib.crc32(observed[key].tobytes(), self._checksums[key])
        return observed

    def take(self, actions: Mapping[str, np.ndarray]) -> None:
        self._actions = dict(actions)
        self._record.append(actions)

    def metrics(self) -> dict[str, Any]:
        """What a worker tells the logger, since the last time; the process itself is measured elsewhere."""
        worker = {"worker": self._id, "mode": self.mode, "restarts": 0, "usage": {}}
        return {**worker, **self.times.take(), "logs": self._logs.take()}

    def status(self) -> dict[str, Any]:
        shown = {"mode": self.mode, "envs": self.count, "steps": self.steps, "step_ms": self.times.shown}
        return {**shown, "restarts": 0, **waits_status({}, self.clock.waiting())}

    def save(self) -> tuple[Arrays, dict[str, int]]:
        """The record, and a checksum per key of the observations that it led to."""
        return self._record.save(), dict(self._checksums)

    def repeat(self, record: Mapping[str, np.ndarray]) -> Iterator[Arrays]:
        """Plays a saved record again from the beginning; gives the observations of every round."""
        past = ActionRecord()
        past.load(record)
        for actions in past:
            yield self.step()
            self.take(actions)

    def expect(self, checksums: Mapping[str, int]) -> None:
        """Raises unless the observations so far are those that the checksums are of."""
        for key, checksum in checksums.items():
            if self._checksums.get(key) != checksum:
                raise CheckpointMismatch(
                    f"the {self.mode} environments cannot be brought back: given the same seeds and actions again, "
                    f"their observation {key!r} differs. Make the environment depend on its seed alone, or go on with "
                    "run.script=parallel"
                )

    def close(self, context: RoleContext) -> None:
        for instance in self.instances:
            instance.close(context)


def _expect_alone(instance: EnvInstance) -> None:
    if isinstance(instance.env, EnvBatch):
        raise ConfigError(
            f"{instance.name} is vectorised, and run.script=single steps environments one by one: set "
            "env.vector=false, or run.script=parallel"
        )
