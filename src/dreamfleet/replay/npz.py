"""Arrays out of an `.npz` file of unknown origin: no pickles, and nothing decompressed whose size was not looked at."""

from __future__ import annotations

import math
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from dreamfleet.core.interfaces import Arrays
from dreamfleet.core.text.formatting import size_text

SUFFIX = ".npy"
MAX_MEMBERS = 10_000


class NpzFile:
    """Knows every array's shape and type from the header in front of it. Raises ValueError for what it cannot read."""

    def __init__(self, path: Path) -> None:
        with _damage_as_value_error():
            self._zip = zipfile.ZipFile(path)
        try:
            self.headers = self._read_headers()
        except BaseException:
            self._zip.close()
            raise

    def __enter__(self) -> NpzFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._zip.close()

    def read(self, keys: Iterable[str], most_bytes: int) -> Arrays:
        """These arrays, which together may have `most_bytes`."""
        keys = list(keys)
        if (size := sum(nbytes(*self.headers[key]) for key in keys)) > most_bytes:
            raise ValueError(f"its arrays have {size_text(size)}, more than the {size_text(most_bytes)} that are read")
        return {key: self._read(key) for key in keys}

    def _read(self, key: str) -> np.ndarray:
        with _damage_as_value_error(), self._zip.open(key + SUFFIX) as member:
            return np.lib.format.read_array(member, allow_pickle=False)  # as much as its header says, and no more

    def _read_headers(self) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
        names = self._zip.namelist()
        if len(names) > MAX_MEMBERS:
            raise ValueError(f"it has {len(names)} arrays, more than the {MAX_MEMBERS} that are read")
        if len(set(names)) < len(names):
            raise ValueError("it has an array twice")
        return {self._key(name): self._read_header(name) for name in names}

    def _read_header(self, name: str) -> tuple[tuple[int, ...], np.dtype]:
        with _damage_as_value_error(), self._zip.open(name) as member:
            version = np.lib.format.read_magic(member)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, _, dtype = read(member)
        if dtype.hasobject:
            raise ValueError(f"Object arrays are not read: {name!r} is one")
        return shape, dtype

    def _key(self, name: str) -> str:
        if not name.endswith(SUFFIX):
            raise ValueError(f"{name[:80]!r} is no array")
        return name.removesuffix(SUFFIX)


def nbytes(shape: tuple[int, ...], dtype: np.dtype) -> int:
    return math.prod(shape) * dtype.itemsize


def is_array(path: Path) -> bool:
    """Whether the file is a single array, as np.save writes it."""
    with path.open("rb") as file:
        return file.read(6) == np.lib.format.MAGIC_PREFIX


@contextmanager
def _damage_as_value_error() -> Iterator[None]:
    """The many ways in which zip and array files fail."""
    try:
        yield
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, NotImplementedError, RuntimeError) as error:
        raise ValueError(str(error)) from error
    except (SyntaxError, TypeError, OverflowError, struct.error, tokenize.TokenError) as error:
        raise ValueError(f"the header of an array cannot be read: {error}") from error
