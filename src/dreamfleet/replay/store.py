"""Replay in memory: the steps of many streams, and windows of consecutive steps drawn from them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dreamfleet.core.encoding.packed_json import pack_json, unpack_json
from dreamfleet.core.errors import ReplayError
from dreamfleet.core.interfaces import Arrays
from dreamfleet.replay.columns import Layout, layout_of, step_bytes
from dreamfleet.replay.memory import ChunkMemory, WindowReader, check_update, mark_borders
from dreamfleet.replay.persistence import Extent, Persistence, StoreSave, describe_layout, last_extent, parse_layout
from dreamfleet.replay.priorities import StepPriorities
from dreamfleet.replay.saved_index import Index, Windows
from dreamfleet.replay.selectors import make_selector
from dreamfleet.replay.streams import rounds_of

STREAM, STEPID, PRIORITY = "stream", "stepid", "priority"
EVICT_AT_ONCE = 64
PIN_WAIT_S = 60.0


@dataclass(frozen=True)
class ReplayOptions:
    """`latents` are prefixes of keys that `update` may overwrite and `sample` delivers for `context` steps only."""

    length: int
    capacity: int
    context: int = 0
    size_bytes: int = 0
    chunksize: int = 1024
    online: bool = False
    latents: tuple[str, ...] = ("dyn/",)
    fracs: Mapping[str, float] = field(default_factory=lambda: {"uniform": 1.0})
    recency_exponent: float = 1.0
    priority: Mapping[str, Any] = field(
        default_factory=lambda: {"exponent": 0.8, "maxfrac": 0.5, "initial": float("inf"), "zero_on_sample": True}
    )
    seed: int = 0
    folder: Path | None = None  # where chunks are kept on disk; without one, the replay cannot be saved


class ReplayStore:
    """Steps of many streams, sampled as windows of `length` consecutive steps of one stream.

    A stream is one incarnation of one environment. A window may begin at any of its steps and cross chunks and
    episodes, but never the end of the stream. `capacity` bounds the number of windows and `size_bytes` the memory,
    whichever is reached first; the oldest windows go first and take along the steps that no other window needs.

    With `online`, mode "train" first serves each stream's fresh, non-overlapping windows, each exactly once.

    Any number of threads may insert, sample and update at once. What `update` may change is copied under the lock. All
    the rest never changes once a step counts, so it is written and read without it, in chunks that are pinned
    meanwhile.
    """

    def __init__(self, options: ReplayOptions) -> None:
        if options.length < 1 or options.capacity < 1:
            raise ReplayError(f"replay needs a positive length and capacity, not {options.length}, {options.capacity}")
        self.options = options
        self.length = options.length
        self._inserting = threading.Lock()  # one insert at a time; taken before _lock
        self._lock = threading.Lock()  # guards everything below
        self._unpinned = threading.Condition(self._lock)  # chunks were unpinned
        self._rng = np.random.default_rng(options.seed)
        self._selector, prioritized = make_selector(
            options.fracs, options.capacity, options.recency_exponent, options.priority
        )
        self._prioritized = prioritized
        self._priorities: StepPriorities | None = None
        self._memory: ChunkMemory | None = None  # made for the first step, which tells what a step looks like
        self._begins = np.zeros(options.capacity + 1, np.int64)  # where windows begin, by number modulo its size
        self._first = 0  # number of the oldest window
        self._end = 0
        self._fresh: deque[int] = deque()  # windows of the online queue
        self._counts = dict.fromkeys(("inserts", "samples", "updates", "updates_missed", "chunks_damaged"), 0)
        self._persistence = Persistence(options.folder, self._unpinned) if options.folder else None

    def __len__(self) -> int:
        return self._end - self._first

    def add_batch(self, data: Arrays) -> None:
        streams: list[int] = data[STREAM].tolist()
        rows = {key: value for key, value in data.items() if key != STREAM}
        for key, value in rows.items():
            if len(value) != len(streams):  # one row would go to all streams
                raise ReplayError(f"{key!r} has {len(value)} rows for {len(streams)} streams")
        if not streams:
            return
        with self._inserting:
            if len(set(streams)) == len(streams):
                self._insert(streams, rows)
                return
            for part in rounds_of(streams):  # several steps of one stream go one after the other
                self._insert([streams[row] for row in part], {key: value[part] for key, value in rows.items()})

    def sample(self, n: int, mode: str) -> Arrays:
        with self._lock:
            memory = self._memory
            if memory is None or not len(self):
                raise ReplayError(f"replay holds no window of {self.length} steps yet")
            windows = self._draw(n, mode)
            self._counts["samples"] += n
            reader = WindowReader(memory, self._begins[windows % len(self._begins)], self.length)
            memory.pin(reader.chunks)
            context = reader.addresses[:, : self.options.context]
            latents = {key: memory.columns.arrays[key][context] for key in memory.mutable if self.options.context}
        try:
            batch = {
                key: reader.read(array) for key, array in memory.columns.arrays.items() if key not in memory.mutable
            }
        finally:
            with self._lock:
                memory.unpin(reader.chunks)
                self._unpinned.notify_all()
        mark_borders(batch)
        return {**batch, **latents, STEPID: reader.stepids()}

    def update(self, data: Arrays) -> int:
        """Rows of `data` are runs of consecutive steps of one stream, as `sample` hands them out."""
        stepid = data[STEPID]
        values = {key: value for key, value in data.items() if key not in (STEPID, PRIORITY)}
        with self._lock:
            if self._memory is None:  # it started over after the steps were handed out
                self._counts["updates_missed"] += stepid[..., 0].size
                return int(stepid[..., 0].size)
            check_update(self._memory, stepid, values, data.get(PRIORITY))
            written = 0
            for row in range(stepid.shape[0]):
                written += self._update_row(stepid[row], {key: value[row] for key, value in values.items()})
            if PRIORITY in data and self._priorities is not None:
                self._priorities.write(stepid, data[PRIORITY])
            missing = stepid[..., 0].size - written
            self._counts["updates"] += written
            self._counts["updates_missed"] += missing
        return missing

    def save(self) -> Arrays:
        return self.begin_save().write()

    def begin_save(self) -> StoreSave:
        """Fix what a save holds, at a moment when no insert is under way.

        Chunks that it needs stay in memory until it is written. Inserts, samples and updates go on meanwhile.
        """
        if self._persistence is None:
            raise ReplayError("this replay has no folder: give it one to save it")
        with self._inserting, self._lock:
            memory = self._memory
            index = self._copy_index(memory)
            extents = self._persistence.begin(memory) if memory else []
            priorities = None
            if self._priorities is not None:
                priorities = self._priorities.save([(extent.chunk, extent.length) for extent in extents])
        return StoreSave(self._persistence, memory, index, extents, priorities)

    def committed(self) -> None:
        """What was saved last is safe: files that nothing needs any more are deleted."""
        if self._persistence is not None:
            with self._lock:
                useful = self._persistence.useful()
            self._persistence.committed(useful)

    def saved_files(self) -> dict[Path, int]:
        """What lies on disk of what was saved last, with the sizes."""
        return self._persistence.last_saved() if self._persistence is not None else {}

    def keep_files(self, needed: Iterable[Path]) -> None:
        """Earlier snapshots that are kept need these files: `committed` and `load` leave them where they are."""
        if self._persistence is not None:
            self._persistence.keep_files(needed)

    def put_off_writes(self, when: Callable[[], bool]) -> None:
        """While `when` says so, full chunks wait for the next save."""
        if self._persistence is not None:
            self._persistence.put_off = when

    def load(self, data: Mapping[str, np.ndarray]) -> None:
        """Puts back what a save returned. Chunks that are damaged are reported and left out, with their windows."""
        if self._persistence is None:
            raise ReplayError("this replay has no folder to load from")
        with self._inserting, self._lock:
            meta = unpack_json(data["meta"])
            self._counts.update(meta["counts"])
            self._rng.bit_generator.state = meta["rng"]
            if not meta["layout"]:
                self._persistence.load_nothing()
            else:
                memory = self._make_memory(parse_layout(meta["layout"]), meta["chunksize"])
                chunks = self._persistence.load(memory, data["chunks"])
                self._counts["chunks_damaged"] = chunks.count(None)
                self._restore_priorities(chunks, data)
                self._restore_windows(memory, data, meta["first"])

    def close(self) -> None:
        if self._persistence is not None:
            self._persistence.close()

    def stats(self) -> dict[str, float]:
        with self._lock:
            memory = self._memory
            used = memory.in_use if memory else 0
            disk = self._persistence.stats() if self._persistence else {}
            return {
                **self._counts,
                **disk,
                "items": len(self),
                "streams": len(memory.streams) if memory else 0,
                "chunks": used,
                "ram_gb": used * memory.columns.chunk_bytes / 1e9 if memory else 0.0,
                "step_bytes": step_bytes(memory.columns.layout) if memory else 0,
            }

    def _insert(self, streams: Sequence[int], rows: Mapping[str, np.ndarray]) -> None:
        if len(streams) > self.options.capacity:
            raise ReplayError(
                f"steps of {len(streams)} environments came at once, but replay.size={self.options.capacity}: set a "
                "larger replay.size"
            )
        with self._lock:
            memory = self._memory_for(rows)
            numbers = memory.streams.open(streams)
            memory.streams.touched[numbers] = self._counts["inserts"]
            wanting = memory.streams.full(numbers)
            for chunk in memory.streams.drop_ended(self._counts["inserts"] - self.options.capacity) if wanting else ():
                self._release(memory, chunk)
            for number in wanting:
                memory.streams.extend(number, self._take_chunk(memory, numbers))
            addresses = memory.streams.write_at[numbers]
        memory.columns.write(addresses, rows)  # nobody reads there before the steps count
        with self._lock:
            self._counts["inserts"] += len(streams)
            begins = memory.streams.advance(numbers, self.length)
            if self._persistence is not None:
                for number in memory.streams.full(numbers):
                    self._persistence.filled(memory, last_extent(memory, number))
            if self._priorities is not None:
                self._priorities.begin(addresses)
            self._add_windows(memory, begins)

    def _add_windows(self, memory: ChunkMemory, begins: np.ndarray) -> None:
        over = len(self) + len(begins) - self.options.capacity
        if over > 0:
            self._evict(memory, over)
        windows = self._end + np.arange(len(begins))
        self._begins[windows % len(self._begins)] = begins
        self._end += len(begins)
        if self._priorities is not None:
            self._priorities.add_windows(windows, begins)
        if self.options.online:
            chunks, offsets = begins // memory.chunksize, begins % memory.chunksize
            fresh = (memory.table.start[chunks] + offsets) % self.length == 0
            self._fresh.extend(windows[fresh].tolist())

    def _evict(self, memory: ChunkMemory, count: int) -> None:
        windows = np.arange(self._first, self._first + count)
        for chunk in memory.streams.evict(self._begins[windows % len(self._begins)]):
            self._release(memory, chunk)
        self._first += count
        if self._priorities is not None:
            self._priorities.evict(self._first)
        while self._fresh and self._fresh[0] < self._first:
            self._fresh.popleft()

    def _take_chunk(self, memory: ChunkMemory, batch: np.ndarray) -> int:
        while (chunk := memory.take()) is None:
            if memory.waits_for_pins:  # evicting more would not help
                if not self._unpinned.wait(PIN_WAIT_S):
                    raise ReplayError(
                        f"{len(memory.doomed)} evicted chunks are still being written to {self.options.folder} after "
                        f"{PIN_WAIT_S:g} s: look at that disk"
                    )
                continue
            freed = memory.drop_streams(batch, self.length, self._counts["inserts"], len(self))
            for dropped in freed:
                self._release(memory, dropped)
            if not freed:
                self._evict(memory, min(EVICT_AT_ONCE, len(self)))
        return chunk

    def _release(self, memory: ChunkMemory, chunk: int) -> None:
        if self._persistence is not None:
            self._persistence.retire(chunk)
        memory.release(chunk)

    def _draw(self, n: int, mode: str) -> np.ndarray:
        if self._priorities is not None:
            self._priorities.weigh_added()
        if mode != "train":
            return self._draw_aside(n)
        windows: list[int] = []
        while self._fresh and len(windows) < n:
            window = self._fresh.popleft()
            if window >= self._first:
                windows.append(window)
        drawn = self._selector.draw(self._rng, n - len(windows), self._first, self._end)
        return np.concatenate([np.array(windows, np.int64), drawn])

    def _draw_aside(self, n: int) -> np.ndarray:
        """Moves neither the generator nor priorities: when and how often a run reports changes nothing it trains on."""
        rng = np.random.default_rng([self._rng.bit_generator.state["state"]["state"], self._counts["samples"]])
        return self._selector.draw(rng, n, self._first, self._end, aside=True)

    def _update_row(self, stepid: np.ndarray, values: Arrays) -> int:
        memory = self._memory
        assert memory is not None  # checked before
        number, start, count = memory.streams.number(int(stepid[0, 0])), int(stepid[0, 1]), len(stepid)
        written = 0
        for address, place, size in memory.streams.spans(number, start, count) if number is not None else ():
            if self._persistence is not None:
                self._persistence.before_update(address // memory.chunksize)
            for key, value in values.items():
                memory.columns.arrays[key][address : address + size] = value[place : place + size]
            written += size
        return written

    def _memory_for(self, rows: Mapping[str, np.ndarray]) -> ChunkMemory:
        memory = self._memory
        if memory is None:
            if self._persistence is not None:
                self._persistence.load_nothing()
            memory = self._make_memory(layout_of(rows))
        memory.columns.check(rows)
        return memory

    def _make_memory(self, layout: Layout, chunksize: int = 0) -> ChunkMemory:
        """With chunks as in the snapshot that is loaded, if there is one: it comes back chunk by chunk."""
        options = self.options
        chunksize = chunksize or max(options.chunksize, options.length)
        if chunksize < options.length:  # a window spans two chunks at most
            raise ReplayError(
                f"the snapshot has chunks of {chunksize} steps, too short for windows of {options.length}: "
                "go on with the batch_length and consec it was made with"
            )
        self._memory = ChunkMemory(layout, options.latents, options.capacity, options.size_bytes, chunksize)
        if self._prioritized is not None:
            self._priorities = StepPriorities(self._memory, self._prioritized, self.length, self._begins)
        return self._memory

    def _copy_index(self, memory: ChunkMemory | None) -> Index:
        """Only copies: inserts and samples wait meanwhile."""
        meta = {
            "layout": describe_layout(memory.columns.layout) if memory else {},
            "chunksize": memory.chunksize if memory else 0,
            "counts": self._counts,
            "rng": self._rng.bit_generator.state,
            "first": self._first,  # draws by priority depend on the windows' numbers
        }
        windows = None
        if memory is not None:
            first, end = self._first % len(self._begins), self._end % len(self._begins)
            parts = [self._begins[first:end]] if first <= end else [self._begins[first:], self._begins[:end]]
            ids = memory.streams.ids[memory.table.owner]
            windows = Windows(np.concatenate(parts), ids, memory.table.start.copy(), memory.chunksize)
        return Index(pack_json(meta), self._fresh.copy(), self._first, windows)

    def _restore_priorities(self, chunks: list[Extent | None], data: Mapping[str, np.ndarray]) -> None:
        if self._priorities is None:
            return
        at, saved = 0, data.get("priorities")
        for extent, length in zip(chunks, data["chunks"][:, 2].tolist(), strict=True):
            if extent is not None:
                self._priorities.load(extent.chunk, None if saved is None else saved[at : at + length], length)
            at += length

    def _restore_windows(self, memory: ChunkMemory, data: Mapping[str, np.ndarray], first: int) -> None:
        """In their old order, as far as all of their steps are there: a longer window than before needs more."""
        begins, present = memory.streams.find(data["windows"], self.length)
        kept = np.flatnonzero(present)[-self.options.capacity :]
        windows = first + np.arange(len(kept))
        self._begins[windows % len(self._begins)] = begins[kept]
        self._first, self._end = first, first + len(kept)
        place = np.full(len(present), -1)
        place[kept] = windows
        self._fresh = deque(window for window in place[data["fresh"][data["fresh"] >= 0]].tolist() if window >= 0)
        memory.streams.recount(begins[kept], self.length)
        memory.streams.touched[:] = self._counts["inserts"]
        if self._priorities is not None:
            self._priorities.evict(first)
            self._priorities.add_windows(windows, begins[kept])
