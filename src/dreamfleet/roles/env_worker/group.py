"""Environments that step one after the other and travel in one message."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter_ns
from typing import Any, NamedTuple

import numpy as np

from dreamfleet.core.errors import DreamfleetError, EnvError, SpaceMismatch
from dreamfleet.core.interfaces import Arrays
from dreamfleet.core.spaces import Space, without_log
from dreamfleet.roles.env_worker.instance import EnvInstance, EnvRestarter
from dreamfleet.roles.env_worker.measurements import EpisodeLogs, StepClock
from dreamfleet.transport.codec import PreparedRequest

NO_STREAM = -1


class ActCall(NamedTuple):
    """The method with which a worker requests actions, and whether its rows are for evaluation.

    Rows of both modes share the policy's calls unless the agent acts differently in evaluation.
    """

    method: str = "act"
    evaluates: bool = False


def act_call_of(mode: str, apart: bool) -> ActCall:
    evaluates = mode == "eval"
    return ActCall("act_eval" if evaluates and apart else "act", evaluates)


class StepGroup:
    """Observations are written straight into the buffer of the message. Keys under `log/` go to `logs`."""

    def __init__(
        self, instances: Sequence[EnvInstance], act_call: ActCall, clock: StepClock, logs: EpisodeLogs
    ) -> None:
        self.instances = list(instances)
        self.rows = len(self.instances)
        self.messages = 1
        self.steps = 0
        self.logs = logs
        self.numbers = np.array([instance.index for instance in instances], np.int32)
        self.request = prepare_request(act_call, self.instances[0], self.rows)
        self.request.arrays["stream"][:] = NO_STREAM
        self._clock = clock
        self._columns = [(key, self.request.arrays[key]) for key in stored_keys(self.instances[0])]
        self._steps = [
            (instance, instance.env.step) for instance in self.instances
        ]  # looked up once, not for every step
        self._is_last = self.request.arrays["is_last"]
        self._idle = idle_actions(self.instances[0], self.rows)
        self._reset = np.ones(self.rows, bool)

    def join_request(self) -> Arrays:
        """What the actor needs to know; streams of an earlier connection are named so that their slots become free."""
        return {"env": self.numbers, "stream": self.request.arrays["stream"].copy()}

    def begin(self, slots: np.ndarray, streams: np.ndarray, numbers: np.ndarray) -> None:
        self.request.arrays["slot"][:] = slots
        self.request.arrays["stream"][:] = streams
        self.numbers = np.array(numbers)
        for instance, number in zip(self.instances, self.numbers.tolist(), strict=True):
            instance.number = number
        self._reset[:] = True

    def advance(self, replies: Sequence[Arrays], restarts: EnvRestarter | None = None) -> list[PreparedRequest]:
        self.step(replies[0] if replies else {}, restarts)
        return [self.request]

    def step(self, actions: Arrays, restarts: EnvRestarter | None = None) -> None:
        """Steps every environment with its row of `actions`; without any, every environment begins an episode."""
        given = list((actions or self._idle).items())
        columns, reset, clock, logs = self._columns, self._reset, self._clock, self.logs
        stored = len(columns)
        for row, (instance, step) in enumerate(self._steps):
            if restarts is not None:  # a stop waits for one step, not for those of all rows
                restarts.stop.check()
            action: dict[str, Any] = {"reset": reset[row]}
            for key, values in given:  # a comprehension would be a function act_call
                action[key] = values[row]
            start = perf_counter_ns()
            clock.running = (instance, start)
            try:
                obs = step(action)
            except DreamfleetError:
                raise
            except Exception as error:
                if restarts is None:
                    raise
                obs = self._restart(row, error, restarts)
            else:
                took = perf_counter_ns() - start
                instance.steps += 1
                instance.step_ns += took
                if took > instance.slowest_ns:
                    instance.slowest_ns = took
            for key, column in columns:
                column[row] = obs[key]
            if len(obs) != stored or logs.used:
                logs.add(instance.index, obs)
        clock.running = None
        self.steps += self.rows
        reset[:] = self._is_last

    def _restart(self, row: int, error: Exception, restarts: EnvRestarter) -> Any:
        """Another environment in another stream: what it sends has nothing to do with what was sent before."""
        self.logs.drop((self.instances[row].index,))
        reset: dict[str, Any] = {key: values[row] for key, values in self._idle.items()}
        self._steps[row] = (
            self.instances[row],
            _gone,
        )  # so that nothing keeps the broken one while its successor is made
        obs = restarts.replace(self.instances[row], error, {**reset, "reset": np.bool_(True)})
        self._steps[row] = self.instances[row], self.instances[row].env.step
        sent = self.request.arrays
        reply = restarts.join({"env": self.numbers[row : row + 1], "stream": sent["stream"][row : row + 1].copy()})
        sent["slot"][row], sent["stream"][row] = reply["slot"][0], reply["stream"][0]
        return obs


def _gone(action: Any) -> Any:
    raise EnvError("this environment was closed after an error")


def regroup(groups: Sequence[StepGroup], size: int, act_call: ActCall) -> list[StepGroup]:
    """The same environments in groups of another size, which go on where the old ones have come to."""
    arrays = [group.request.arrays for group in groups]
    slots, streams = (np.concatenate([one[key] for one in arrays]) for key in ("slot", "stream"))
    numbers, reset = (np.concatenate(parts) for parts in zip(*[(g.numbers, g._reset) for g in groups], strict=True))
    instances = [instance for group in groups for instance in group.instances]
    made = []
    for start in range(0, len(instances), size):
        part = slice(start, start + size)
        group = StepGroup(instances[part], act_call, groups[0]._clock, groups[0].logs)
        group.begin(slots[part], streams[part], numbers[part])
        group._reset[:] = reset[part]
        made.append(group)
    made[0].steps = sum(group.steps for group in groups)
    return made


def prepare_request(act_call: ActCall, instance: EnvInstance, rows: int) -> PreparedRequest:
    """Return the message with `rows` observations of environments like this one."""
    layout: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {
        "slot": (np.dtype(np.int32), (rows,)),
        "stream": (np.dtype(np.int64), (rows,)),
        "is_eval": (np.dtype(bool), (rows,)),
    }
    spaces = instance.obs_space
    layout.update({key: (spaces[key].dtype, (rows, *spaces[key].shape)) for key in stored_keys(instance)})
    request = PreparedRequest(act_call.method, layout)
    request.arrays["is_eval"][:] = act_call.evaluates
    return request


def stored_keys(instance: EnvInstance) -> list[str]:
    return list(without_log(instance.obs_space))


def idle_actions(instance: EnvInstance, rows: int) -> Arrays:
    """Actions for steps that begin an episode, where nobody looks at them."""

    def idle(space: Space) -> np.ndarray:
        return np.zeros((rows, *space.shape), space.dtype)

    return {key: idle(space) for key, space in instance.act_space.items() if key != "reset"}


def expect_same_spaces(instances: Sequence[EnvInstance]) -> None:
    for instance in instances[1:]:
        if instance.obs_space != instances[0].obs_space or instance.act_space != instances[0].act_space:
            raise SpaceMismatch("environments of one run must have the same spaces, and two of this worker differ")
