"""Snapshots of a replay: which steps belong to one, written while the replay goes on, and put back from disk."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dreamfleet.core.encoding.bfloat16 import BFLOAT16
from dreamfleet.core.errors import ReplayError
from dreamfleet.core.interfaces import Arrays
from dreamfleet.replay.columns import Column, Layout
from dreamfleet.replay.files import ChunkFiles, ChunkName, DamagedChunk
from dreamfleet.replay.memory import ChunkMemory
from dreamfleet.replay.saved_index import Index
from dreamfleet.replay.streams import NONE
from dreamfleet.replay.writer import Writer

STEPS, LATENTS = "steps", "latents"
MAX_BACKLOG = 16  # jobs of the writer


@dataclass(frozen=True)
class Extent:
    """A chunk and how many of its steps a snapshot holds."""

    chunk: int
    stream: int
    start: int
    length: int
    version: int = 0  # of the latents on disk; 0 if they have to be written

    @property
    def steps(self) -> ChunkName:
        return ChunkName(self.stream, self.start, STEPS, self.length)

    @property
    def latents(self) -> ChunkName:
        return ChunkName(self.stream, self.start, LATENTS, self.version)


class LatentCopies:
    """The latents as they were when a save began, chunk by chunk, while updates go on.

    A chunk is copied when the save comes to it, or just before its first update, whichever is earlier. Guarded by the
    store's lock.
    """

    def __init__(self, memory: ChunkMemory, chunks: set[int]) -> None:
        self.changed: set[int] = set()  # since the save began
        self._memory = memory
        self._waiting = chunks
        self._copies: dict[int, Arrays] = {}

    def before_update(self, chunk: int) -> None:
        self.changed.add(chunk)
        if chunk in self._waiting:
            self._copies[chunk] = self.take(chunk)

    def take(self, chunk: int) -> Arrays:
        if chunk in self._copies:
            return self._copies.pop(chunk)
        self._waiting.discard(chunk)
        views = self._memory.columns.chunk(chunk, self._memory.chunksize)
        return {key: views[key].copy() for key in self._memory.mutable}


class Persistence:
    """The disk side of a store. Called under the store's lock, but for `write` and `end`, which take it.

    Full chunks are written as they fill up. `begin` fixes what a snapshot holds, `write` brings the rest to disk, and
    `end` lets go of the chunks again.
    """

    def __init__(self, folder: Path, lock: threading.Condition) -> None:
        self._lock = lock  # the store's; notified when chunks are unpinned
        self._files = ChunkFiles(folder)
        self._files_lock = threading.Lock()  # guards the files; may be taken under the store's lock, not around it
        self._writer = Writer()
        self._names: dict[int, set[ChunkName]] = {}  # of chunks in memory
        self._latents: dict[int, tuple[int, int]] = {}  # version and length of the latents on disk, if still right
        self._version = 0
        self._others: set[ChunkName] = set()  # files that earlier snapshots need
        self._copies: LatentCopies | None = None
        self.put_off: Callable[[], bool] = lambda: False  # whether full chunks may wait for the next snapshot

    def stats(self) -> dict[str, float]:
        return {"disk_gb": self._files.nbytes / 1e9, "write_errors": self._writer.errors}

    def filled(self, memory: ChunkMemory, extent: Extent) -> None:
        """A chunk is full and will not change any more, apart from its latents: write it soon.

        A disk that cannot keep up must not hold chunks back from being used again: what is too much for it now is left
        to the next snapshot.
        """
        if self._writer.backlog >= MAX_BACKLOG or self.put_off():
            return
        pinned = np.array([extent.chunk])
        memory.pin(pinned)

        def write() -> None:
            try:
                if extent.chunk not in memory.doomed:  # a disk that is behind need not write what is evicted already
                    self._write_steps(memory, extent)
            finally:
                with self._lock:
                    memory.unpin(pinned)
                    self._lock.notify_all()

        self._writer.submit(write)

    def before_update(self, chunk: int) -> None:
        """The latents of a chunk are about to change."""
        self._latents.pop(chunk, None)
        if self._copies is not None:
            self._copies.before_update(chunk)

    def retire(self, chunk: int) -> None:
        """A chunk leaves memory: its files go as well, unless a snapshot needs them."""
        self._latents.pop(chunk, None)
        names = self._names.pop(chunk, set())
        self._writer.submit(lambda: self._retire(names))

    def begin(self, memory: ChunkMemory) -> list[Extent]:
        found = [self._with_version(extent) for extent in extents(memory)]
        memory.pin(np.array([extent.chunk for extent in found], np.int64))
        self._copies = LatentCopies(memory, {extent.chunk for extent in found if not extent.version})
        self._version += 1
        self._files.saving({name for extent in found for name in self._names_of(memory, self._dated(extent))})
        return found

    def write(self, memory: ChunkMemory, found: list[Extent]) -> np.ndarray:
        """Brings a snapshot to disk and returns its chunks: stream, first index, length, version of the latents."""
        written = []
        while found:
            extent = found[-1]
            self._write_steps(memory, extent)
            written.append(self._write_latents(memory, extent) if memory.mutable else extent)
            with self._files_lock:
                self._files.sync(self._names_of(memory, written[-1]))
            self._unpin(memory, [found.pop()])
        written.reverse()
        with self._files_lock:
            self._files.saved()
        return np.array([(e.stream, e.start, e.length, e.version) for e in written], np.int64).reshape(-1, 4)

    def end(self, memory: ChunkMemory, found: list[Extent]) -> None:
        """Also after a failure, which leaves some of `found` unwritten."""
        with self._lock:
            self._copies = None
        self._unpin(memory, found)

    def useful(self) -> set[ChunkName]:
        """The files of chunks in memory."""
        return {name for names in self._names.values() for name in names}

    def committed(self, useful: set[ChunkName]) -> None:
        """Without the store's lock: deleting takes time, and the files may be in use by the writer."""
        with self._files_lock:
            self._files.committed(useful, self._others)

    def last_saved(self) -> dict[Path, int]:
        with self._files_lock:
            return self._files.last_saved()

    def keep_files(self, needed: Iterable[Path]) -> None:
        """From the next commit or load on."""
        needed, own = list(needed), self._files.folder.resolve()
        mine = {parent for parent in {path.parent for path in needed} if parent.resolve() == own}
        names = {ChunkName.parse(path.name) for path in needed if path.parent in mine}
        self._others = {name for name in names if name is not None}

    def load(self, memory: ChunkMemory, chunks: np.ndarray) -> list[Extent | None]:
        """Reads a snapshot's chunks into memory; one that is damaged is reported and left out."""
        loaded = [self._load_chunk(memory, Extent(NONE, *row)) for row in chunks.tolist()]
        found = [(e.stream, e.start, e.chunk, e.start + e.length) for e in loaded if e is not None]
        lowest = min([NONE, *chunks[:, 0].tolist(), *(name.stream for name in self._others)])
        memory.streams.restore([(stream, chunk, start, end) for stream, start, chunk, end in sorted(found)], lowest)
        self._version = max([int(chunks[:, 3].max(initial=0)), *(name.number for name in self._others)])
        # Damaged ones stay as long as the snapshot counts: what kept them from being read may pass.
        named = [Extent(NONE, *row) for row in chunks.tolist()]
        with self._files_lock:
            self._files.adopt({name for extent in named for name in self._names_of(memory, extent)}, self._others)
        return loaded

    def load_nothing(self) -> None:
        """The replay begins empty: whatever is in the folder is left over from a run that saved nothing."""
        with self._files_lock:
            self._files.adopt(set(), self._others)

    def close(self) -> None:
        self._writer.close()

    def _load_chunk(self, memory: ChunkMemory, extent: Extent) -> Extent | None:
        chunk = memory.take()
        if chunk is None:
            raise ReplayError("the snapshot holds more steps than replay.size or replay.size_bytes allow: raise them")
        views = memory.columns.chunk(chunk, extent.length)
        try:
            with self._files_lock:
                self._files.read(extent.steps, {k: v for k, v in views.items() if k not in memory.mutable})
                if memory.mutable:
                    self._files.read(extent.latents, {key: views[key] for key in memory.mutable})
        except DamagedChunk as error:
            sys.stderr.write(f"{error}\n")
            memory.release(chunk)
            return None
        extent = replace(extent, chunk=chunk)
        self._names[chunk] = set(self._names_of(memory, extent))
        self._latents[chunk] = extent.version, extent.length
        return extent

    def _unpin(self, memory: ChunkMemory, found: list[Extent]) -> None:
        with self._lock:
            memory.unpin(np.array([extent.chunk for extent in found], np.int64))
            self._lock.notify_all()

    def _with_version(self, extent: Extent) -> Extent:
        """With the version of the latents on disk, if that file is this chunk's and still right."""
        version, length = self._latents.get(extent.chunk, (0, 0))
        dated = replace(extent, version=version)
        right = length == extent.length and dated.latents in self._names.get(extent.chunk, ())
        return dated if right else extent

    def _dated(self, extent: Extent) -> Extent:
        """With the version that the latents get, or have already, in the snapshot that was begun last."""
        return extent if extent.version else replace(extent, version=self._version)

    def _names_of(self, memory: ChunkMemory, extent: Extent) -> list[ChunkName]:
        return [extent.steps, extent.latents] if memory.mutable else [extent.steps]

    def _write_steps(self, memory: ChunkMemory, extent: Extent) -> None:
        views = memory.columns.chunk(extent.chunk, extent.length)
        with self._files_lock:
            if not self._files.holds(extent.steps):
                self._files.write(extent.steps, {k: v for k, v in views.items() if k not in memory.mutable})
        self._note(memory, extent, extent.steps)

    def _write_latents(self, memory: ChunkMemory, extent: Extent) -> Extent:
        if extent.version:
            return extent
        extent = self._dated(extent)
        with self._lock:
            assert self._copies is not None
            latents = self._copies.take(extent.chunk)
        with self._files_lock:
            self._files.write(extent.latents, {key: value[: extent.length] for key, value in latents.items()})
        held = self._note(memory, extent, extent.latents)
        with self._lock:
            if held and extent.chunk not in self._copies.changed:
                self._latents[extent.chunk] = extent.version, extent.length
        return extent

    def _note(self, memory: ChunkMemory, extent: Extent, name: ChunkName) -> bool:
        """A file belongs to its chunk while the chunk is in memory; it may have left while the file was written."""
        with self._lock:
            chunk = extent.chunk
            held = chunk not in memory.doomed and memory.streams.holds(extent.stream, chunk)
            outdated = {name}
            if held:
                names = self._names.setdefault(chunk, set())
                outdated = {other for other in names if other.kind == name.kind and other != name}
                self._names[chunk] = (names - outdated) | {name}
        self._retire(outdated)
        return held

    def _retire(self, names: set[ChunkName]) -> None:
        with self._files_lock:
            self._files.retire(names)


class StoreSave:
    """The replay as it was when the save began. `write` may run in another thread than `begin_save`."""

    def __init__(
        self,
        persistence: Persistence,
        memory: ChunkMemory | None,
        index: Index,
        extents: list[Extent],
        priorities: np.ndarray | None,
    ) -> None:
        self._persistence = persistence
        self._memory = memory
        self._index = index
        self._extents = extents  # those not written yet
        self._priorities = priorities

    def write(self) -> Arrays:
        """Writes what disk lacks and returns what, with those files, makes up the replay as it was."""
        state = self._index.arrays()
        if self._priorities is not None:
            state["priorities"] = self._priorities
        if self._memory is not None:
            try:
                state["chunks"] = self._persistence.write(self._memory, self._extents)
            finally:
                self._persistence.end(self._memory, self._extents)
        return state


def extents(memory: ChunkMemory) -> list[Extent]:
    """Every chunk that holds steps, with what it holds now."""
    found = []
    for number, chunks in memory.streams.chunks.items():
        stream, end = int(memory.streams.ids[number]), int(memory.streams.end[number])
        for chunk in chunks:
            start = int(memory.table.start[chunk])
            length = min(memory.chunksize, end - start)
            if length > 0:
                found.append(Extent(chunk, stream, start, length))
    return found


def last_extent(memory: ChunkMemory, number: int) -> Extent:
    """The newest chunk of a stream."""
    chunk = memory.streams.chunks[number][-1]
    start = int(memory.table.start[chunk])
    return Extent(chunk, int(memory.streams.ids[number]), start, int(memory.streams.end[number]) - start)


def describe_layout(layout: Layout) -> dict[str, list[object]]:
    return {key: [column.dtype.name, list(column.shape)] for key, column in layout.items()}


def parse_layout(described: Mapping[str, Any]) -> Layout:
    return {key: Column(_dtype(name), tuple(shape)) for key, (name, shape) in described.items()}


def _dtype(name: str) -> np.dtype[Any]:
    return BFLOAT16 if name == BFLOAT16.name else np.dtype(name)
