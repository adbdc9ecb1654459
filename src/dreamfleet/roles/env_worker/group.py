"""Environments that step one after the other and travel in one message."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter_ns
from typing import Any, NamedTuple

import numpy as np

from dreamfleet.core.errors import DreamfleetError, EnvError, SpaceMismatch
from dreamfleet.core.interfaces import Arrays
from dreamfleet.core.spaces import Space, without_log
from dreamfleet.roles.env_worker.instance import EnvRestarter, Seat
from dreamfleet.roles.env_worker.measurements import EpisodeLogs, StepClock
from dreamfleet.transport.codec import Outgoing

NO_STREAM = -1


class Asking(NamedTuple):
    """How a worker asks the actor for actions. Rows of both modes share the policy's calls unless it must tell them
    apart; what they are for is said for every row.
    """

    method: str = "act"
    evaluates: bool = False


def asking(mode: str, apart: bool) -> Asking:
    evaluates = mode == "eval"
    return Asking("act_eval" if evaluates and apart else "act", evaluates)


class StepGroup:
    """Observations are written straight into the buffer of the message. Keys under `log/` go to `logs`."""

    def __init__(self, seats: Sequence[Seat], asks: Asking, clock: StepClock, logs: EpisodeLogs) -> None:
        self.seats = list(seats)
        self.rows = len(self.seats)
        self.messages = 1
        self.steps = 0
        self.logs = logs
        self.numbers = np.array([seat.index for seat in seats], np.int32)
        self.outgoing = make_outgoing(asks, self.seats[0], self.rows)
        self.outgoing.arrays["stream"][:] = NO_STREAM
        self._clock = clock
        self._columns = [(key, self.outgoing.arrays[key]) for key in stored_keys(self.seats[0])]
        self._steps = [(seat, seat.env.step) for seat in self.seats]  # looked up once, not for every step
        self._is_last = self.outgoing.arrays["is_last"]
        self._idle = idle_actions(self.seats[0], self.rows)
        self._reset = np.ones(self.rows, bool)

    def introduction(self) -> Arrays:
        """What the actor needs to know; streams of an earlier connection are named so that their slots become free."""
        return {"env": self.numbers, "stream": self.outgoing.arrays["stream"].copy()}

    def begin(self, slots: np.ndarray, streams: np.ndarray, numbers: np.ndarray) -> None:
        self.outgoing.arrays["slot"][:] = slots
        self.outgoing.arrays["stream"][:] = streams
        self.numbers = np.array(numbers)
        for seat, number in zip(self.seats, self.numbers.tolist(), strict=True):
            seat.number = number
        self._reset[:] = True

    def advance(self, replies: Sequence[Arrays], restarts: EnvRestarter | None = None) -> list[Outgoing]:
        self.step(replies[0] if replies else {}, restarts)
        return [self.outgoing]

    def step(self, actions: Arrays, restarts: EnvRestarter | None = None) -> None:
        """Steps every environment with its row of `actions`; without any, every environment begins an episode."""
        given = list((actions or self._idle).items())
        columns, reset, clock, logs = self._columns, self._reset, self._clock, self.logs
        stored = len(columns)
        for row, (seat, step) in enumerate(self._steps):
            if restarts is not None:  # a stop waits for one step, not for those of all rows
                restarts.stop.check()
            action: dict[str, Any] = {"reset": reset[row]}
            for key, values in given:  # a comprehension would be a function call
                action[key] = values[row]
            start = perf_counter_ns()
            clock.running = (seat, start)
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
                seat.steps += 1
                seat.step_ns += took
                if took > seat.slowest_ns:
                    seat.slowest_ns = took
            for key, column in columns:
                column[row] = obs[key]
            if len(obs) != stored or logs.used:
                logs.add(seat.index, obs)
        clock.running = None
        self.steps += self.rows
        reset[:] = self._is_last

    def _restart(self, row: int, error: Exception, restarts: EnvRestarter) -> Any:
        """Another environment in another stream: what it sends has nothing to do with what was sent before."""
        self.logs.drop((self.seats[row].index,))
        reset: dict[str, Any] = {key: values[row] for key, values in self._idle.items()}
        self._steps[row] = self.seats[row], _gone  # so that nothing keeps the broken one while its successor is made
        obs = restarts.replace(self.seats[row], error, {**reset, "reset": np.bool_(True)})
        self._steps[row] = self.seats[row], self.seats[row].env.step
        sent = self.outgoing.arrays
        reply = restarts.join({"env": self.numbers[row : row + 1], "stream": sent["stream"][row : row + 1].copy()})
        sent["slot"][row], sent["stream"][row] = reply["slot"][0], reply["stream"][0]
        return obs


def _gone(action: Any) -> Any:
    raise EnvError("this environment was closed after an error")


def regroup(groups: Sequence[StepGroup], size: int, asks: Asking) -> list[StepGroup]:
    """The same environments in groups of another size, which go on where the old ones have come to."""
    arrays = [group.outgoing.arrays for group in groups]
    slots, streams = (np.concatenate([one[key] for one in arrays]) for key in ("slot", "stream"))
    numbers, reset = (np.concatenate(parts) for parts in zip(*[(g.numbers, g._reset) for g in groups], strict=True))
    seats = [seat for group in groups for seat in group.seats]
    made = []
    for start in range(0, len(seats), size):
        part = slice(start, start + size)
        group = StepGroup(seats[part], asks, groups[0]._clock, groups[0].logs)
        group.begin(slots[part], streams[part], numbers[part])
        group._reset[:] = reset[part]
        made.append(group)
    made[0].steps = sum(group.steps for group in groups)
    return made


def make_outgoing(asks: Asking, seat: Seat, rows: int) -> Outgoing:
    """The message with `rows` observations of environments like the one on this seat."""
    layout: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {
        "slot": (np.dtype(np.int32), (rows,)),
        "stream": (np.dtype(np.int64), (rows,)),
        "is_eval": (np.dtype(bool), (rows,)),
    }
    spaces = seat.obs_space
    layout.update({key: (spaces[key].dtype, (rows, *spaces[key].shape)) for key in stored_keys(seat)})
    outgoing = Outgoing(asks.method, layout)
    outgoing.arrays["is_eval"][:] = asks.evaluates
    return outgoing


def stored_keys(seat: Seat) -> list[str]:
    return list(without_log(seat.obs_space))


def idle_actions(seat: Seat, rows: int) -> Arrays:
    """Actions for steps that begin an episode, where nobody looks at them."""

    def idle(space: Space) -> np.ndarray:
        return np.zeros((rows, *space.shape), space.dtype)

    return {key: idle(space) for key, space in seat.act_space.items() if key != "reset"}


def expect_same_spaces(seats: Sequence[Seat]) -> None:
    for seat in seats[1:]:
        if seat.obs_space != seats[0].obs_space or seat.act_space != seats[0].act_space:
            raise SpaceMismatch("environments of one run must have the same spaces, and two of this worker differ")
