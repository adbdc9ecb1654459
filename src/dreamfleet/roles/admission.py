"""Validation of messages from env workers: spaces of rows, metrics for the logger, and limits on their size."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy import count_nonzero, isfinite, isnan

from dreamfleet.config.args import FleetArgs
from dreamfleet.core.context import RoleContext
from dreamfleet.core.errors import DreamfleetError, EnvError, NotNow, ProtocolError, Refused, SpaceMismatch
from dreamfleet.core.events import Event
from dreamfleet.core.interfaces import Agent, HasRowSpace
from dreamfleet.core.spaces import EPISODE_FLAGS, REWARD, Space, without_log
from dreamfleet.envs.checks import StepCheck
from dreamfleet.metrics.workers import MAX_METRICS_BYTES, check_worker_metrics
from dreamfleet.roles.event_limit import EventRateLimiter, shown_reason
from dreamfleet.roles.remote_workers import ABOUT, read_identity
from dreamfleet.roles.slots import MAX_SLOTS, protected_envs
from dreamfleet.transport.batching import MAX_WAITING_BYTES
from dreamfleet.transport.codec import Message, unpack_json
from dreamfleet.transport.layout import ALIGN, HEADER_BYTES, MAX_DESCRIPTOR_BYTES, MessageLayout
from dreamfleet.transport.rows import row_template
from dreamfleet.transport.sockets import MAX_FRAME_BYTES

MAX_REFUSED = 3  # invalid messages of one worker before it is ignored
MAX_JOINED = 1024  # environments of one worker, unless the run is configured for more
MAX_PEERS = 4096  # remembered connections
MAX_HELD = 4 * MAX_SLOTS  # remembered streams, including those of closed connections
MAX_REPORTED = 20  # workers with a warning on the terminal
MAX_KNOWN = 256  # layouts
MAX_PENDING_BYTES = 4 << 20  # queued metrics of one worker while the logger is blocked
MAX_PENDING_MESSAGES = 1000  # of all workers
MIN_FRAME_BYTES = 4 << 20  # so that a request that is too large gets an error instead of a closed connection

OWN_KEYS = {"slot": Space(np.int32), "stream": Space(np.int64), "is_eval": Space(bool)}
INTRODUCTION = {"env": (np.dtype(np.int32), 1), "stream": (np.dtype(np.int64), 1)}
MAX_REWARD = Space(np.float64)  # if the agent does not define it
REWARDS = tuple(map(np.dtype, (np.float16, np.float32, np.float64)))
ROWS = ("act", "act_eval")
BOOLS = b"\0\1"
FIX = "start the worker with the run's configuration, environment and release"


class RowCheck:
    """Holds requests for actions to the spaces of the agent.

    A layout is looked at once, values of floats, flags and bounded integers with every request: as arrays, for all
    rows together. Of keys that the agent does not tell about, the first request of a peer that `may_decide` decides
    the layout. They take no infinities, nor do those of an agent without `row_space`.
    """

    def __init__(self, agent: Agent, most_rows: int, may_decide: Callable[[bytes], bool]) -> None:
        self._most_rows = most_rows
        self._may_decide = may_decide
        knows_all = isinstance(agent, HasRowSpace)
        told = agent.row_space if isinstance(agent, HasRowSpace) else getattr(agent, "obs_space", None)
        spaces = without_log(told) if isinstance(told, Mapping) else {}
        self.spaces = spaces if knows_all else {key: space.finite() for key, space in spaces.items()}
        flags = dict.fromkeys(EPISODE_FLAGS, Space(bool))
        self._spaces = {**OWN_KEYS, **flags, **self.spaces}
        self._others: Mapping[str, tuple[Any, ...]] | None = {} if knows_all else None
        self._known: dict[bytes, Callable[[Message], None]] = {}  # checks of values, by descriptor

    def __call__(self, request: Message) -> None:
        check = self._known.get(request.layout.descriptor)
        if check is None:
            check = self._inspect(request)
        check(request)

    def frame_bytes(self) -> int:
        """Return how large a frame of a request may be; of an agent that tells no spaces this is not known."""
        if not self.spaces:
            return MAX_FRAME_BYTES
        # The first frame has all small arrays together, with a little padding after each.
        first = HEADER_BYTES + MAX_DESCRIPTOR_BYTES + ALIGN * (len(self._spaces) + 2)
        return int(max(MIN_FRAME_BYTES, first + self.step_bytes(self._most_rows)))

    def step_bytes(self, envs: int) -> int:
        """Return the size of one step of so many environments, as far as the agent tells."""
        sizes = (
            math.prod(space.shape) * space.dtype.itemsize for space in {REWARD: MAX_REWARD, **self._spaces}.values()
        )
        return int(envs * sum(sizes))

    def _inspect(self, request: Message) -> Callable[[Message], None]:
        layout = request.layout
        rows, template = row_template(layout)
        if rows > self._most_rows:
            raise ProtocolError(f"a message has {rows} rows, at most {self._most_rows} are allowed")
        missing = [key for key in {**self._spaces, REWARD: None} if key not in template]
        if missing:
            raise SpaceMismatch(f"rows lack {missing}, which this run's agent needs: {FIX}")
        for key, found in template.items():
            space = self._space(key, found[0])
            if space is not None and found != (space.dtype, space.shape):
                wanted = f"{space.dtype}{list(space.shape)}"
                raise SpaceMismatch(f"rows have {key!r} as {found[0]}{list(found[1])} instead of {wanted}: {FIX}")
        others = {key: found for key, found in template.items() if key not in self._spaces and key != REWARD}
        if self._others is None:
            if not self._may_decide(request.peer):
                raise NotNow("the actor accepts remote workers once an environment of its own fleet has stepped")
            self._others = others
        if others != self._others:
            raise SpaceMismatch(
                f"besides the agent's observations, rows have {_words(others)} instead of {_words(self._others)}: {FIX}"
            )
        if len(self._known) >= MAX_KNOWN:
            self._known.clear()
        checks = {
            key: self._space(key, dtype) or Space(dtype, shape).finite() for key, (dtype, shape) in template.items()
        }
        self._known[layout.descriptor] = check = _ValueCheck(layout, checks, rows)
        return check

    def _space(self, key: str, dtype: np.dtype[Any]) -> Space | None:
        if key == REWARD and key not in self._spaces:
            return Space(dtype if dtype in REWARDS else np.float32)
        return self._spaces.get(key)


class _ValueCheck:
    """Looks at the values of requests of one layout, where the layout does not say all of them."""

    def __init__(self, layout: MessageLayout, spaces: Mapping[str, Space], rows: int) -> None:
        valued = {key: space for key, space in spaces.items() if space.dtype != bool and not _is_whole(space)}
        flags = [field for field in layout.fields if field.dtype == bool]
        self._small_flags = _joined((field.start, field.start + field.size) for field in flags if not field.large)
        self._large_flags = [field for field in flags if field.large]
        self._valued = [(field, _fits(valued[field.key], field.key)) for field in layout.fields if field.key in valued]
        self._check = StepCheck(valued, "a worker's message", rows)

    def __call__(self, request: Message) -> None:
        frame = request.frame
        for start, end in self._small_flags:
            if frame[start:end].strip(BOOLS):
                raise SpaceMismatch("a worker's message: flags have bytes that are neither true nor false")
        for flag in self._large_flags:
            if request.array(flag).tobytes().strip(BOOLS):
                raise SpaceMismatch(f"a worker's message: {flag.key!r} has bytes that are neither true nor false")
        for valued, fits in self._valued:
            if not fits(request.array(valued)):
                self._check({field.key: request.array(field) for field, _ in self._valued})  # which finds the words


@dataclass
class _Peer:
    """The state of one worker connection."""

    refused: int = 0
    limited: bool = True  # its key, as it showed when it joined
    streams: set[int] = field(default_factory=set)  # that it was given and has not given back


class Admission:
    """Validator of requests. It raises a typed error that replaces the answer to an invalid request.

    After several invalid messages, a worker is ignored: its slots are freed, and all its requests are answered with
    `Refused`. Workers are identified by their connection. Everything except `status` belongs to the server's thread.
    """

    def __init__(
        self, agent: Agent, args: FleetArgs, context: RoleContext, leave: Callable[[np.ndarray], None]
    ) -> None:
        self._has_own = bool(protected_envs(args, context.by_hand))
        self.rows = RowCheck(agent, args.actor_rows, self._may_decide)
        self._max_joined = max(MAX_JOINED, args.envs, args.eval_envs)
        # Bytes of one worker's steps that wait while the learner is behind: at least one step of each environment.
        self.max_waiting = max(MAX_WAITING_BYTES, 2 * self.rows.step_bytes(max(args.envs, args.eval_envs, 1)))
        self._context = context
        self._leave = leave
        self._peers: OrderedDict[bytes, _Peer] = OrderedDict()  # the one that was heard of last at the end
        self._held = 0  # streams of all of them; connections that are gone may still have some
        self._blocked: set[bytes] = set()
        self.sender = b""  # of the request that was admitted last
        self.limited = False  # whether that one came with a worker's key, if it was to join
        self._refused = 0
        self._reported = 0
        self._limiter = EventRateLimiter()

    def __call__(self, request: Message) -> None:
        if request.peer in self._blocked:
            raise Refused("too many messages from this worker did not fit the run: stop it and check its first error")
        self.sender, self.limited = request.peer, request.limited
        try:
            self._check(request)
        except NotNow:
            raise
        except DreamfleetError as error:
            self._count(request, error)
            raise

    def joined(self, left: np.ndarray, streams: np.ndarray) -> None:
        """Record that the sender returned the first of these streams and received the others."""
        held = self._peer(self.sender).streams
        before = len(held)
        held.difference_update(left.tolist())
        held.update(streams.tolist())
        self._held += len(held) - before
        while self._held > max(MAX_HELD, len(held)):
            self._forget_oldest()

    def status(self) -> dict[str, int]:
        return {"messages": self._refused, "workers_aside": len(self._blocked)}

    def _check(self, request: Message) -> None:
        method = request.layout.method
        if method in ROWS:
            self.rows(request)
        elif method == "join":
            self._check_introduction(request.peer, request.layout, request)
        elif method == "add":
            _check_metrics(request)

    def _check_introduction(self, peer: bytes, layout: MessageLayout, request: Message) -> None:
        found = {key: (dtype, len(shape)) for key, (dtype, shape) in layout.signature.items()}
        about = found.pop(ABOUT, None)
        if found != INTRODUCTION or about not in (None, (np.dtype(np.uint8), 1)):
            raise ProtocolError(
                f"an introduction has 'env' as int32 numbers, 'stream' as int64 ones, and at most {ABOUT!r} besides"
            )
        arrays = request.arrays()
        most = self._max_joined
        if max(len(arrays["env"]), len(arrays["stream"])) > most:
            raise EnvError(f"a worker joins with at most {most} environments: start several workers")
        read_identity(arrays)
        held = self._peer(peer).streams.difference(arrays["stream"].tolist())
        envs = len(held) + len(arrays["env"])
        if envs > most:
            raise EnvError(
                f"a worker has at most {most} environments, and this one has {len(held)}: start several workers"
            )
        if (step_bytes := self.rows.step_bytes(envs)) > self.max_waiting:
            raise EnvError(
                f"one step of {envs} environments is {step_bytes >> 20} MiB, and {self.max_waiting >> 20} MiB of a "
                "worker may wait: start several workers"
            )
        self._peer(peer).limited = request.limited

    def _may_decide(self, peer: bytes) -> bool:
        """Return whether this peer's rows define the layout of other keys. The fleet's own workers take precedence."""
        return not self._has_own or (peer in self._peers and not self._peers[peer].limited)

    def _count(self, request: Message, error: DreamfleetError) -> None:
        peer = self._peer(request.peer)
        peer.refused += 1
        self._refused += 1
        name, reason = request.peer.hex(), shown_reason(error)
        if peer.refused == 1:
            detail = {"worker": name, "method": request.layout.method, "envs": len(peer.streams), "reason": reason}
            self._event(Event.REFUSED, detail)
            if self._reported < MAX_REPORTED:
                self._reported += 1
                more = "; further workers are only counted" if self._reported == MAX_REPORTED else ""
                self._context.warn(f"a message from worker {name} does not fit the run and is ignored: {reason}{more}")
        if peer.refused > MAX_REFUSED:
            self._block(request.peer, peer)

    def _block(self, name: bytes, peer: _Peer) -> None:
        if len(self._blocked) >= MAX_PEERS:
            self._blocked.pop()
        self._blocked.add(name)
        self._leave(np.array(sorted(peer.streams), np.int64))
        del self._peers[name]
        self._held -= len(peer.streams)
        text = f"a worker after {peer.refused} messages that did not fit the run"
        self._event(Event.SET_ASIDE, {"worker": name.hex(), "refused": peer.refused, "text": text})

    def _event(self, event: Event, detail: Mapping[str, Any]) -> None:
        for name, told in self._limiter.limit(event, detail):
            self._context.report.event(name, told)

    def _peer(self, name: bytes) -> _Peer:
        peer = self._peers.setdefault(name, _Peer())
        self._peers.move_to_end(name)
        if len(self._peers) > MAX_PEERS:
            self._forget_oldest()
        return peer

    def _forget_oldest(self) -> None:
        _, gone = self._peers.popitem(last=False)
        self._held -= len(gone.streams)


class PendingMetrics:
    """Queue of the workers' metrics for the logger. It keeps the newest, up to a limit per worker."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the two fields below: the server's thread adds, whose turn it is takes
        self._kept: deque[tuple[bytes, np.ndarray]] = deque()
        self._bytes: dict[bytes, int] = {}

    def __bool__(self) -> bool:
        return bool(self._kept)

    def add(self, peer: bytes, packed: np.ndarray) -> None:
        with self._lock:
            if self._bytes.get(peer, 0) + packed.nbytes > MAX_PENDING_BYTES:
                return
            self._kept.append((peer, packed.copy()))  # a view would keep its whole message
            self._bytes[peer] = self._bytes.get(peer, 0) + packed.nbytes
            if len(self._kept) > MAX_PENDING_MESSAGES:
                self._pop()

    def take(self) -> np.ndarray | None:
        with self._lock:
            return self._pop() if self._kept else None

    def _pop(self) -> np.ndarray:
        peer, packed = self._kept.popleft()
        left = self._bytes[peer] - packed.nbytes
        if left > 0:
            self._bytes[peer] = left
        else:
            del self._bytes[peer]
        return packed


def _check_metrics(request: Message) -> None:
    if request.nbytes > MAX_METRICS_BYTES:
        raise ProtocolError(f"metrics of {request.nbytes} bytes are too large, at most {MAX_METRICS_BYTES} are allowed")
    if request.layout.signature.keys() != {"json"}:
        raise ProtocolError("metrics must be one array, 'json'")
    check_worker_metrics(unpack_json(request.arrays()["json"]))


def _fits(space: Space, key: str) -> Callable[[np.ndarray], bool]:
    """A function that is true for most values of the space, and for no others."""
    if key == REWARD:
        space = space.finite()
    if space.dtype.kind == "f" and space == Space(space.dtype, space.shape).finite():
        return lambda array: count_nonzero(isfinite(array)) == array.size
    if space.dtype.kind == "f" and space == Space(space.dtype, space.shape):
        return lambda array: not count_nonzero(isnan(array))
    if space.dtype.kind == "V":
        return lambda array: False
    low, high = space.low, space.high - 1 if space.discrete else space.high
    low, high = np.asarray(low, space.dtype), np.asarray(high, space.dtype)
    return lambda array: count_nonzero((array >= low) & (array <= high)) == array.size


def _joined(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ranges of bytes, those that are only parted by padding as one: a sender leaves zeros there."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if found and start - found[-1][1] < ALIGN:
            found[-1] = found[-1][0], end
        else:
            found.append((start, end))
    return found


def _is_whole(space: Space) -> bool:
    """Whether the dtype says all: images are looked at no further."""
    return space.discrete and space == Space(space.dtype, space.shape)


def _words(template: Mapping[str, tuple[Any, ...]]) -> str:
    return ", ".join(f"{key!r}: {dtype}{list(shape)}" for key, (dtype, shape) in sorted(template.items())) or "nothing"
