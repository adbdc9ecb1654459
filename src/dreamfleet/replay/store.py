"""Replay in memory: columns of steps per stream, and uniform windows over them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Mapping

import numpy as np

from dreamfleet.core.errors import ReplayError
from dreamfleet.core.interfaces import Arrays

STREAM = "stream"
STEPID = "stepid"


class ReplayStore:
    """Steps of many streams, sampled as windows of `length` consecutive steps of one stream.

    A stream is one incarnation of one environment. Its steps lie in chunks, one array per key. An item is the start of
    a window; there is one for every step from which the stream holds `length` steps, and a window may cross chunks and
    episodes but never the end of a stream. `capacity` bounds the items; the oldest go first and take their chunks
    along.

    With `online`, mode "train" first serves each stream's fresh, non-overlapping windows, each exactly once.

    A step is named by `stepid`: the stream and the step's index in it.
    """

    def __init__(self, length: int, capacity: int, chunksize: int = 1024, online: bool = False, seed: int = 0) -> None:
        if length < 1 or capacity < 1:
            raise ReplayError(f"replay needs a positive length and capacity, not {length} and {capacity}")
        self.length = length
        self.capacity = capacity
        self.chunksize = chunksize
        self.online = online
        self._lock = threading.Lock()  # guards everything below
        self._rng = np.random.default_rng(seed)
        self._layout: dict[str, tuple[np.dtype, tuple[int, ...]]] = {}
        self._streams: dict[int, _StreamSteps] = {}
        self._ended: dict[int, int] = {}  # where removed streams ended: should one go on, no step's name is used twice
        self._items = np.zeros((1024, 2), np.int64)  # (stream, start), oldest first, at positions head to tail
        self._head = 0
        self._tail = 0
        self._fresh: deque[tuple[int, int]] = deque()
        self._updates = 0

    def __len__(self) -> int:
        return self._tail - self._head

    def add_batch(self, data: Arrays) -> None:
        streams = data[STREAM]
        columns = {key: value for key, value in data.items() if key != STREAM}
        with self._lock:
            self._check_layout(columns)
            for row, stream_id in enumerate(streams.tolist()):
                stream = self._streams.get(stream_id)
                if stream is None:
                    first = self._ended.pop(stream_id, 0)
                    stream = self._streams[stream_id] = _StreamSteps(self.chunksize, self._layout, first)
                stream.append(columns, row)
                self._add_item(stream_id, stream)

    def sample(self, n: int, mode: str) -> Arrays:
        with self._lock:
            if not len(self):
                raise ReplayError(f"replay holds no window of {self.length} steps yet")
            starts = [self._draw(mode) for _ in range(n)]
            batch = {key: np.empty((n, self.length, *shape), dtype) for key, (dtype, shape) in self._layout.items()}
            for row, (stream_id, start) in enumerate(starts):
                self._streams[stream_id].read(start, self.length, batch, row)
        batch[STEPID] = self._stepids(starts)
        _mark_borders(batch)
        return batch

    def update(self, data: Arrays) -> int:
        """Rows of `data` are runs of consecutive steps of one stream, as `sample` hands them out."""
        stepid = data[STEPID]
        values = {key: value for key, value in data.items() if key != STEPID}
        missing = 0
        with self._lock:
            self._check_update(stepid, values)
            for row in range(stepid.shape[0]):
                stream = self._streams.get(int(stepid[row, 0, 0]))
                start = int(stepid[row, 0, 1])
                count = stepid.shape[1]
                written = stream.write(start, count, values, row) if stream else 0
                missing += count - written
            self._updates += stepid.shape[0] * stepid.shape[1] - missing
        return missing

    def stats(self) -> dict[str, float]:
        with self._lock:
            return {
                "items": len(self),
                "streams": len(self._streams),
                "chunks": sum(len(stream.chunks) for stream in self._streams.values()),
                "ram_gb": sum(stream.nbytes for stream in self._streams.values()) / 1e9,
                "updates": self._updates,
            }

    def save(self) -> Arrays:
        data: Arrays = {}
        with self._lock:
            for stream_id, stream in self._streams.items():
                data[f"{stream_id}/first"] = np.array(stream.first, np.int64)
                for key, (dtype, shape) in self._layout.items():
                    column = np.empty((1, stream.end - stream.first, *shape), dtype)
                    stream.read(stream.first, stream.end - stream.first, {key: column}, 0)
                    data[f"{stream_id}/steps/{key}"] = column[0]
            data["items"] = self._items[self._head : self._tail].copy()
            data["fresh"] = np.array(self._fresh, np.int64).reshape(-1, 2)
        return data

    def load(self, data: Mapping[str, np.ndarray]) -> None:
        columns: dict[int, dict[str, np.ndarray]] = {}
        for name, value in data.items():
            owner, _, key = name.partition("/steps/")
            if key:
                columns.setdefault(int(owner), {})[key] = value
        with self._lock:
            for stream_id, steps in columns.items():
                self._check_layout(steps)
                stream = _StreamSteps(self.chunksize, self._layout, int(data[f"{stream_id}/first"]))
                for row in range(len(next(iter(steps.values())))):
                    stream.append(steps, row)
                self._streams[stream_id] = stream
            self._fresh = deque((item[0], item[1]) for item in data["fresh"].tolist())
            for item in data["items"].tolist():
                self._push_item(*item)

    def _add_item(self, stream_id: int, stream: _StreamSteps) -> None:
        start = stream.end - self.length
        if start < stream.first:
            return
        self._push_item(stream_id, start)
        if self.online and start % self.length == 0:
            self._fresh.append((stream_id, start))
        while len(self) > self.capacity:
            old_id, old_start = self._items[self._head].tolist()
            self._head += 1
            old = self._streams[old_id]
            old.drop_before(old_start + 1)
            if old.end - old.first < self.length and old is not stream:
                # Its last window went, and a stream that fell this far behind has ended.
                self._ended[old_id] = self._streams.pop(old_id).end

    def _push_item(self, stream_id: int, start: int) -> None:
        if self._tail == len(self._items):
            live = self._items[self._head : self._tail]
            self._items = np.concatenate([live, np.zeros((max(1024, len(live)), 2), np.int64)])
            self._head, self._tail = 0, len(live)
        self._items[self._tail] = stream_id, start
        self._tail += 1

    def _draw(self, mode: str) -> tuple[int, int]:
        while mode == "train" and self._fresh:
            stream_id, start = self._fresh.popleft()
            stream = self._streams.get(stream_id)
            if stream is not None and start >= stream.first:
                return stream_id, start
        stream_id, start = self._items[self._rng.integers(self._head, self._tail)].tolist()
        return stream_id, start

    def _stepids(self, starts: list[tuple[int, int]]) -> np.ndarray:
        stepid = np.empty((len(starts), self.length, 2), np.int64)
        pairs = np.array(starts, np.int64)
        stepid[:, :, 0] = pairs[:, :1]
        stepid[:, :, 1] = pairs[:, 1:] + np.arange(self.length)
        return stepid

    def _check_layout(self, columns: Mapping[str, np.ndarray]) -> None:
        layout = {key: (value.dtype, value.shape[1:]) for key, value in columns.items()}
        if not self._layout:
            self._layout = layout
        elif layout != self._layout:
            wrong = sorted(set(layout.items()) ^ set(self._layout.items()), key=str)
            raise ReplayError(f"a step's keys, shapes or dtypes differ from the first step's: {wrong}")

    def _check_update(self, stepid: np.ndarray, values: Arrays) -> None:
        if stepid.ndim != 3 or stepid.shape[2] != 2 or (np.diff(stepid, axis=1) != (0, 1)).any():
            raise ReplayError(
                "update needs stepid of shape (rows, steps, 2) with consecutive steps of one stream per row"
            )
        for key, value in values.items():
            if self._layout and (value.dtype, value.shape[2:]) != self._layout.get(key):
                raise ReplayError(f"update of {key!r} does not match what is stored: {value.dtype} {value.shape}")


class _StreamSteps:
    """The steps `first` to `end` of one stream, in chunks of equal size."""

    def __init__(self, chunksize: int, layout: Mapping[str, tuple[np.dtype, tuple[int, ...]]], first: int = 0) -> None:
        self.chunksize = chunksize
        self.layout = layout
        self.first = first
        self.end = first
        self.chunks: deque[Arrays] = deque()
        self._base = first  # index of the first chunk's first step

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for chunk in self.chunks for array in chunk.values())

    def append(self, columns: Mapping[str, np.ndarray], row: int) -> None:
        number, offset = divmod(self.end - self._base, self.chunksize)
        if number == len(self.chunks):
            self.chunks.append(
                {key: np.empty((self.chunksize, *shape), dtype) for key, (dtype, shape) in self.layout.items()}
            )
        chunk = self.chunks[number]
        for key, value in columns.items():
            chunk[key][offset] = value[row]
        self.end += 1

    def read(self, start: int, count: int, out: Arrays, row: int) -> None:
        for chunk, inside, outside in self._spans(start, count):
            for key, target in out.items():
                target[row, outside] = chunk[key][inside]

    def write(self, start: int, count: int, values: Arrays, row: int) -> int:
        """Overwrites the steps still held and returns how many those were."""
        skip = max(0, self.first - start)
        held = max(0, min(start + count, self.end) - start - skip)
        for chunk, inside, outside in self._spans(start + skip, held):
            source = slice(outside.start + skip, outside.stop + skip)
            for key, value in values.items():
                chunk[key][inside] = value[row, source]
        return held

    def drop_before(self, index: int) -> None:
        self.first = max(self.first, index)
        while self.chunks and self._base + self.chunksize <= self.first:
            self.chunks.popleft()
            self._base += self.chunksize

    def _spans(self, start: int, count: int) -> Iterator[tuple[Arrays, slice, slice]]:
        done = 0
        while done < count:
            number, offset = divmod(start + done - self._base, self.chunksize)
            size = min(count - done, self.chunksize - offset)
            yield self.chunks[number], slice(offset, offset + size), slice(done, done + size)
            done += size


def _mark_borders(batch: Arrays) -> None:
    """A window begins like an episode, and a step whose successor begins one was its episode's last."""
    is_first, is_last = batch["is_first"], batch["is_last"]
    is_first[:, 0] = True
    is_last[:, :-1] |= is_first[:, 1:]
