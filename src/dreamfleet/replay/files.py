"""Chunks on disk: one file for what never changes, one for the latents, each complete and checked or not there."""

from __future__ import annotations

import re
import sys
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from dreamfleet.core.encoding.bfloat16 import contiguous_bits
from dreamfleet.core.errors import ReplayError
from dreamfleet.core.files.disk import atomic_file, make_synced, sync

SUFFIX = ".safetensors"


class DamagedChunk(ReplayError):
    """A chunk file is missing, cut short or does not match its checksum."""


@dataclass(frozen=True, order=True)
class ChunkName:
    """Names a file: the stream, its index of the chunk's first step, and how many steps or which version it holds.

    Streams that damage has cut off from another one have negative numbers.
    """

    stream: int
    start: int
    kind: str  # "steps" or "latents"
    number: int

    def file(self) -> str:
        return f"{self.stream}-{self.start}-{self.kind}-{self.number}{SUFFIX}"

    @classmethod
    def parse(cls, file: str) -> ChunkName | None:
        """Of a file's name; None for one that is no chunk's."""
        found = re.fullmatch(rf"(-?\d+)-(\d+)-(steps|latents)-(\d+){re.escape(SUFFIX)}", file)
        return cls(int(found[1]), int(found[2]), found[3], int(found[4])) if found else None


class ChunkFiles:
    """A folder of chunk files.

    Files that the last committed snapshot names, or an earlier one that is kept, stay even when their chunk is evicted:
    a run that is killed finds its snapshots whole. All others go as soon as they are of no use, so that the folder is
    bounded as memory is. Belongs to one thread at a time.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        make_synced(folder)
        self._present: dict[ChunkName, int] = {}  # with their sizes
        self._kept: set[ChunkName] = set()  # by committed snapshots
        self._next: set[ChunkName] = set()  # by the one that was saved last
        self._saving: set[ChunkName] = set()  # by the one that is being written
        self._foreign: set[ChunkName] = set()  # of snapshots that were passed over: other steps may have these names
        self._synced: set[ChunkName] = set()  # those that the disk is known to have
        self.nbytes = 0

    def holds(self, name: ChunkName) -> bool:
        """Whether the file is there with the steps of this replay, which never change: it is not to be written again.

        A snapshot may need it, and what takes its place may be lost with the power.
        """
        return name in self._present and name not in self._foreign

    def write(self, name: ChunkName, arrays: Mapping[str, np.ndarray]) -> None:
        plain = {key: contiguous_bits(value) for key, value in arrays.items()}
        try:
            with atomic_file(self.folder / name.file(), synced=False) as temporary:
                save_file(plain, temporary, metadata={"crc32": str(_checksum(plain))})
        except (OSError, SafetensorError) as error:
            raise ReplayError(
                f"cannot write replay to {self.folder}: {error}: free space there, or lower replay.size"
            ) from error
        self._synced.discard(name)
        self._foreign.discard(name)
        self._count(name)

    def sync(self, names: Iterable[ChunkName]) -> None:
        """Waits until the disk has these files: a snapshot that names them may be committed then."""
        for name in names:
            if name not in self._synced:
                sync(self.folder / name.file())
                self._synced.add(name)

    def read(self, name: ChunkName, into: Mapping[str, np.ndarray]) -> None:
        """Copies a file's arrays into memory, which must have their shapes."""
        path = self.folder / name.file()
        try:
            with safe_open(path, framework="numpy") as file:
                expected = int(file.metadata()["crc32"])
                checksum = 0
                for key in sorted(into):
                    values = file.get_tensor(key)
                    checksum = zlib.crc32(_bytes(values), checksum)
                    into[key][...] = values.view(into[key].dtype)
        except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
            raise DamagedChunk(f"replay chunk {path.name} cannot be read and is left out: {error}") from error
        if checksum != expected:
            raise DamagedChunk(f"replay chunk {path.name} does not match its checksum and is left out")
        self._count(name)

    def retire(self, names: set[ChunkName]) -> None:
        """These files are of no use any more, unless a snapshot needs them."""
        self._delete(names - self._kept - self._next - self._saving)

    def saving(self, names: set[ChunkName]) -> None:
        """A snapshot that names these files is about to be written: they stay, even if their chunks are evicted."""
        self._saving = names

    def saved(self) -> None:
        """That snapshot is complete."""
        sync(self.folder)
        self._next, self._saving = self._saving, set()

    def last_saved(self) -> dict[Path, int]:
        """The files of that snapshot with their sizes."""
        return {self.folder / name.file(): self._present[name] for name in self._next if name in self._present}

    def committed(self, useful: set[ChunkName], others: set[ChunkName]) -> None:
        """That snapshot counts from now on; files that neither it, nor `others` that are kept, nor memory needs go."""
        self._kept = self._next | others
        self._delete(self._present.keys() - self._kept - self._saving - useful)

    def adopt(self, names: set[ChunkName], others: set[ChunkName]) -> None:
        """A snapshot with these files was loaded: everything in the folder that is neither its own nor needed by
        `others` is newer or left over, and goes.
        """
        self._kept, self._next, self._foreign = names | others, names, others - names
        self._delete(self._present.keys() - self._kept)
        files = {name.file() for name in self._kept}
        for path in self.folder.iterdir():
            if path.is_file() and path.name not in files:
                path.unlink()
        for name in others - self._present.keys():
            if (self.folder / name.file()).exists():
                self._count(name)

    def _count(self, name: ChunkName) -> None:
        self.nbytes -= self._present.get(name, 0)
        self._present[name] = (self.folder / name.file()).stat().st_size
        self.nbytes += self._present[name]

    def _delete(self, names: set[ChunkName]) -> None:
        for name in names & self._present.keys():
            try:
                (self.folder / name.file()).unlink(missing_ok=True)
            except OSError as error:  # still counted, and tried again with the next snapshot
                sys.stderr.write(f"cannot delete a replay chunk that is not needed any more: {error}\n")
            else:
                self.nbytes -= self._present.pop(name)
                self._synced.discard(name)


def _checksum(arrays: Mapping[str, np.ndarray]) -> int:
    checksum = 0
    for key in sorted(arrays):
        checksum = zlib.crc32(_bytes(arrays[key]), checksum)
    return checksum


def _bytes(array: np.ndarray) -> memoryview:
    return memoryview(array.reshape(-1).view(np.uint8).data) if array.size else memoryview(b"")
