"""Environments that step together (an `EnvBatch`) and travel in as few messages as the actor's batch allows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter_ns
from typing import Any

import numpy as np

from dreamfleet.core.errors import DreamfleetError
from dreamfleet.core.interfaces import Arrays
from dreamfleet.roles.env_worker.group import NO_STREAM, ActCall, idle_actions, prepare_request, stored_keys
from dreamfleet.roles.env_worker.instance import EnvInstance, EnvRestarter
from dreamfleet.roles.env_worker.measurements import EpisodeLogs, StepClock
from dreamfleet.transport.codec import PreparedRequest

Batched = Mapping[str, np.ndarray]


class BatchGroup:
    """One step goes out as one observation per row. Rows that began their next episode within that step have a second
    one, which is sent only after the answers to the first: a stream's steps must not pass each other on the way.
    """

    def __init__(
        self,
        instance: EnvInstance,
        indices: Sequence[int],
        act_call: ActCall,
        clock: StepClock,
        logs: EpisodeLogs,
        most_rows: int,
    ) -> None:
        self.instances = [instance]
        self.rows = instance.rows
        self.steps = 0
        self.logs = logs
        self._indices = list(indices)
        self.numbers = np.asarray(indices, np.int32)
        self._act_call = act_call
        self._clock = clock
        self._most_rows = most_rows
        self._keys = stored_keys(instance)
        self._parts = [np.arange(start, min(start + most_rows, self.rows)) for start in range(0, self.rows, most_rows)]
        self._step_messages = [prepare_request(act_call, instance, len(part)) for part in self._parts]
        self._first_messages: dict[int, list[PreparedRequest]] = {}  # by number of rows
        self.messages = len(self._parts)
        self._slots = np.zeros(self.rows, np.int32)
        self._streams = np.full(self.rows, NO_STREAM, np.int64)
        self._idle = idle_actions(instance, self.rows)
        self._reset = np.ones(self.rows, bool)
        self._begun = np.zeros(0, np.intp)  # rows whose first observation has not been sent
        self._first: Batched = {}
        self._actions: Arrays | None = None  # answers to the step, while those to the first observations are awaited

    def join_request(self) -> Arrays:
        return {"env": self.numbers, "stream": self._streams.copy()}

    def begin(self, slots: np.ndarray, streams: np.ndarray, numbers: np.ndarray) -> None:
        self._slots, self._streams, self.numbers = np.array(slots), np.array(streams), np.array(numbers)
        self.instances[0].number = int(self.numbers[0])
        self._reset[:] = True
        self._begun = self._begun[:0]
        self._actions = None

    def advance(self, replies: Sequence[Arrays], restarts: EnvRestarter | None = None) -> list[PreparedRequest]:
        """Takes the answers to the messages it returned last and returns the next ones."""
        actions = _join(replies)
        if self._actions is not None:
            for key, values in self._actions.items():
                values[self._begun] = actions[key]
            actions, self._actions = self._actions, None
        elif len(self._begun):
            self._actions = {key: values.copy() for key, values in actions.items()}
            return self._send_first()
        self._step(actions or self._idle, restarts)
        return self._step_messages

    def _step(self, actions: Arrays, restarts: EnvRestarter | None) -> None:
        instance = self.instances[0]
        start = perf_counter_ns()
        self._clock.running = (instance, start)
        try:
            obs = instance.env.step({**actions, "reset": self._reset.copy()})
            self._look_for_begun(instance)
        except DreamfleetError:
            raise
        except Exception as error:
            if restarts is None:
                raise
            obs = self._restart(error, restarts)
        else:
            took = perf_counter_ns() - start
            instance.steps += 1
            instance.step_ns += took
            instance.slowest_ns = max(instance.slowest_ns, took)
        self._clock.running = None
        self.steps += self.rows
        self._note_logs(obs, np.arange(self.rows))
        for part, message in zip(self._parts, self._step_messages, strict=True):
            self._fill(message, obs, part)
        self._reset[:] = obs["is_last"]
        self._reset[self._begun] = False

    def _look_for_begun(self, instance: EnvInstance) -> None:
        self._begun = np.flatnonzero(instance.env.begun())
        self._first = instance.env.first() if len(self._begun) else {}

    def _send_first(self) -> list[PreparedRequest]:
        rows = len(self._begun)
        if rows not in self._first_messages:
            sizes = [min(self._most_rows, rows - start) for start in range(0, rows, self._most_rows)]
            self._first_messages[rows] = [prepare_request(self._act_call, self.instances[0], size) for size in sizes]
        messages = self._first_messages[rows]
        for number, message in enumerate(messages):
            start = number * self._most_rows
            self._fill(message, self._first, self._begun[start : start + self._most_rows])
        self._note_logs(self._first, self._begun)
        self.steps += rows
        return messages

    def _fill(self, message: PreparedRequest, obs: Batched, rows: np.ndarray) -> None:
        arrays = message.arrays
        arrays["slot"][:] = self._slots[rows]
        arrays["stream"][:] = self._streams[rows]
        for key in self._keys:
            arrays[key][:] = obs[key][rows]

    def _restart(self, error: Exception, restarts: EnvRestarter) -> Any:
        """Reset all of them: how far each had come is unknown."""
        self.logs.drop(self._indices)
        everywhere = {**self._idle, "reset": np.ones(self.rows, bool)}
        obs = restarts.replace(self.instances[0], error, everywhere)
        reply = restarts.join(self.join_request())
        self.begin(reply["slot"], reply["stream"], reply["env"])
        return obs

    def _note_logs(self, obs: Batched, rows: np.ndarray) -> None:
        if self.logs.used or len(obs) != len(self._keys):
            self.logs.add_rows(self._indices, obs, rows)


def _join(replies: Sequence[Arrays]) -> Arrays:
    if len(replies) < 2:
        return replies[0] if replies else {}
    return {key: np.concatenate([reply[key] for reply in replies]) for key in replies[0]}
