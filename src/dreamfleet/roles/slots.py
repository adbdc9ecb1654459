"""Which environment sits where: the actor's table of slots, and the recurrent carries kept by slot."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping

import numpy as np

from dreamfleet.config.args import FleetArgs
from dreamfleet.core.errors import EnvError, NotNow
from dreamfleet.core.interfaces import Arrays, Carry
from dreamfleet.roles import tree

PADDING_SLOT = 0  # the slot of padding rows; no environment ever gets it
REPLACED_S = 1.0  # of silence, before another environment of the same number may have its slot
MAX_STREAM = (1 << 62) - 1
MAX_SLOTS = 8192  # unless the run is configured for more: each may cost the agent a recurrent state
MAX_ENVS = 1 << 20  # a larger number is a mistake


def num_local_envs(args: FleetArgs) -> int:
    """Numbers below are those of environments that the fleet's supervisor stops; others are remote."""
    return 0 if args.remote_envs else max(args.envs, args.eval_envs)


def protected_envs(args: FleetArgs, by_hand: bool) -> int:
    """How many environments the fleet itself starts; they do not come with the key of a worker."""
    return 0 if args.remote_envs or by_hand else args.envs + args.eval_envs


class SlotTable:
    """Gives every environment that joins a slot and a stream.

    A stream is one incarnation of an environment: it names its steps in replay and is never used twice, also not across
    restarts of the actor, since it is a random 62-bit number. That also keeps workers out of each other's slots, since
    none can know another one's streams. A slot is a row of the carry table and is
    used again once its environment has rejoined elsewhere, or, if a slot is needed, when it has been silent for
    `silent_s`, or for a second while another one joins under its number: the policy is recompiled when
    the table grows.
    Environment numbers below `reserved` are not given out: their environments may join last. Those from `num_local`
    on are remote. Whoever uses the table from several threads guards it with a lock.

    There is always room for `protected` environments of the fleet itself. A worker with a limited key shares what is
    left with others of its kind, and frees their silent slots only. While there are such own environments, it gets none
    of the reserved numbers.
    """

    def __init__(
        self,
        silent_s: float,
        reserved: int = 0,
        num_local: int = 0,
        protected: int = 0,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._silent_s = silent_s
        self._now = now
        self._num_local = num_local
        self._protected = protected
        self._max_slots = max(MAX_SLOTS, 4 * reserved)
        self._reserved = self._next_env = reserved
        self.streams = np.full(1, -1, np.int64)
        self.envs = np.full(1, -1, np.int32)
        self.remote = np.zeros(1, bool)
        self.limited = np.zeros(1, bool)
        self.seen = np.full(1, np.inf)
        self._rows = np.zeros(1, np.intp)  # by slot, for `first_of_each`

    def __len__(self) -> int:
        return len(self.streams)

    def join(
        self, envs: np.ndarray, old_streams: np.ndarray, limited: bool = False
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns slots, streams and environment numbers; a negative number asks for one that is free.

        Raises `NotNow` where there is no room. Another number than was asked for is given to whoever may not have it.
        """
        if (envs >= MAX_ENVS).any():
            raise EnvError(f"environment {envs.max()} cannot join: numbers go up to {MAX_ENVS - 1}")
        self.leave(old_streams)
        wanted = np.where(limited and self._protected and envs < self._reserved, -1, envs)
        slots = self._free(wanted, limited)
        numbers = self._numbers(wanted)
        self.streams[slots] = np.frombuffer(secrets.token_bytes(8 * len(envs)), np.int64) & MAX_STREAM
        self.envs[slots] = numbers
        self.remote[slots] = numbers >= self._num_local  # also when one joins again with the number it was given
        self.limited[slots] = limited
        self.seen[slots] = self._now()
        return slots, self.streams[slots], numbers

    def known(self, slots: np.ndarray, streams: np.ndarray) -> np.ndarray:
        """Which rows come from environments that hold the slot they name."""
        held = self.streams.take(slots, mode="clip")  # a negative one is taken for SCRATCH, whose stream is negative
        return np.asarray((held == streams) & (streams >= 0) & (slots < len(self)))

    def first_of_each(self, slots: np.ndarray, known: np.ndarray) -> np.ndarray:
        """Which of the known rows come before all others of their environment: one step of it is taken at a time."""
        named = slots.tolist()
        if len(set(named)) == len(named):
            return known
        rows = np.flatnonzero(known)[::-1]
        self._rows[slots[rows]] = rows
        return np.asarray(known & (self._rows.take(slots, mode="clip") == np.arange(len(slots))))

    def mark_seen(self, slots: np.ndarray) -> None:
        self.seen[slots] = self._now()

    def release(self, slots: np.ndarray) -> None:
        self.streams[slots] = -1

    def leave(self, streams: np.ndarray) -> None:
        """Free the slots of these streams; unknown ones are passed over."""
        self.streams[np.isin(self.streams, streams) & (self.streams >= 0)] = -1

    def forget(self) -> None:
        """Every environment has to join again, and begins a new stream."""
        self.streams[:] = -1

    def live(self, within_s: float, remote: bool = False) -> int:
        """Environments heard of in the last `within_s` seconds; on demand only those that joined from elsewhere."""
        live = (self.streams >= 0) & (self._now() - self.seen < within_s)
        return int((live & self.remote).sum() if remote else live.sum())

    def _numbers(self, wanted: np.ndarray) -> np.ndarray:
        """The numbers below `reserved` as they are wanted, others unless another environment has them by now."""
        numbers = wanted.astype(np.int32)
        if (wanted >= self._reserved).any() or (wanted < 0).any():
            taken = set(self.envs[self.streams >= 0].tolist())
            for row in np.flatnonzero(wanted >= self._reserved):
                if numbers[row] in taken:
                    numbers[row] = -1
                taken.add(int(numbers[row]))
            for row in np.flatnonzero(numbers < 0):
                numbers[row] = self._next_number(taken)
                taken.add(int(numbers[row]))
        return numbers

    def _next_number(self, taken: set[int]) -> int:
        """Numbers are given out in turn: one whose environment has left is free again much later."""
        while True:
            if self._next_env >= MAX_ENVS:
                self._next_env = self._reserved
            self._next_env += 1
            if self._next_env - 1 not in taken:
                return self._next_env - 1

    def _free(self, envs: np.ndarray, limited: bool) -> np.ndarray:
        count = len(envs)
        free = np.flatnonzero(self.streams[1:] < 0) + 1
        if min(len(free), self._room(limited)) < count:
            silent_s = self._now() - self.seen
            gone = silent_s > self._silent_s
            if limited and self._protected:
                gone &= self.limited
            else:  # a worker that died leaves its slots behind; the one in its place has the same numbers
                gone |= (silent_s > REPLACED_S) & np.isin(self.envs, envs[envs >= 0])
            self.streams[gone] = -1
            free = np.flatnonzero(self.streams[1:] < 0) + 1
        lacking = max(0, count - len(free))
        if self._room(limited) < count or len(self) + lacking > self._max_slots:
            raise NotNow(f"{count} environments cannot join: the actor has room for {self._max_slots}, set run.envs")
        if lacking:
            self._grow(min(max(lacking, len(self)), self._max_slots - len(self)))
            free = np.flatnonzero(self.streams[1:] < 0) + 1
        return free[:count].astype(np.int32)

    def _room(self, limited: bool) -> int:
        """How many more environments may join, were the table as large as it may be."""
        live = self.streams >= 0
        room = self._max_slots - 1 - int(live.sum())
        if not limited:
            return room
        return min(room, self._max_slots - 1 - self._protected - int((live & self.limited).sum()))

    def _grow(self, more: int) -> None:
        self.streams = np.pad(self.streams, (0, more), constant_values=-1)
        self.envs = np.pad(self.envs, (0, more), constant_values=-1)
        self.remote = np.pad(self.remote, (0, more))
        self.limited = np.pad(self.limited, (0, more))
        self.seen = np.pad(self.seen, (0, more))
        self._rows = np.pad(self._rows, (0, more))


class CarryTable:
    """One row of recurrent carry per slot, gathered and scattered for whole batches."""

    def __init__(self, init_policy: Callable[[int], Carry]) -> None:
        self._init_policy = init_policy
        self._rows = 1
        self._table = init_policy(1)

    def take(self, slots: np.ndarray, size: int) -> Carry:
        """The carries of `slots`; `size` is the number of slots there are by now."""
        if size > self._rows:
            more = self._init_policy(size - self._rows)
            self._table = tree.map(lambda a, b: np.concatenate([a, b]), self._table, more)
            self._rows = size
        return tree.map(lambda leaf: leaf[slots], self._table)

    def put(self, slots: np.ndarray, carry: Carry) -> None:
        def write(leaf: np.ndarray, value: np.ndarray) -> np.ndarray:
            leaf[slots] = value
            return leaf

        self._table = tree.map(write, self._table, carry)

    def save(self) -> Arrays:
        return {path: np.array(leaf) for path, leaf in tree.flatten(self._table).items()}

    def load(self, data: Mapping[str, np.ndarray]) -> None:
        paths = iter(tree.flatten(self._table))
        self._table = tree.map(lambda _: np.array(data[next(paths)]), self._table)
        self._rows = max((len(leaf) for leaf in tree.leaves(self._table)), default=self._rows)
