"""What a snapshot folder says about itself, and whether its files still are what it says."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import zlib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from dreamfleet.checkpoint.arrays import find_non_finite, read_arrays
from dreamfleet.checkpoint.ownership import BEGUN
from dreamfleet.checkpoint.schema import AGENT, AGENT_FILES, CHECKSUM, FORMAT, MAX_COUNT, PARTS, checksum_of, find_error
from dreamfleet.core.errors import CheckpointError, CheckpointMismatch
from dreamfleet.core.files.bounded import MB, read_json
from dreamfleet.core.files.disk import atomic_write, sync

MANIFEST = "manifest.json"
OUTSIDE = "outside.json"  # files that a part needs outside of the snapshot, with their sizes
MAX_BYTES = 4 * MB  # of a manifest
MAX_OUTSIDE_BYTES = 64 * MB
MAX_NAME = 1024  # characters
BLOCK_BYTES = 1 << 22
ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)


class Damage(str):
    """One line on what is wrong with a snapshot.

    `outside`: only files that lie elsewhere. `unread`: it could not be looked at, and may well be sound.
    """

    outside = False
    unread = False


class OutsideDamage(Damage):
    outside = True


class Unread(Damage):
    unread = True


def damage_by(error: BaseException) -> Damage:
    return Unread(error) if may_pass(error) else Damage(error)


def may_pass(error: BaseException | None) -> bool:
    """Whether the system failed to read a file, which says nothing about the file, unless it is not there."""
    while error is not None:
        if isinstance(error, OSError):
            return error.errno not in ABSENT
        error = error.__cause__
    return False


def seal(folder: Path, facts: Mapping[str, Any], parts: Collection[str] | None = None) -> None:
    """Brings every file of a folder to disk and writes the manifest, which lists them with sizes and checksums.

    The `parts` that are to be in the folder must be; if none are named, those are listed whose files are there.
    """
    own = [path for path in sorted(folder.iterdir()) if path.name not in (MANIFEST, BEGUN)]
    files = {path.name: _file_facts(path) for path in own}
    here = {part for part, names in PARTS.items() if any(name in files for name in names)} if parts is None else parts
    listed = {"parts": sorted(here), "elsewhere": sorted(PARTS.keys() - here)}
    write_manifest(folder, {"format": FORMAT, **facts, **listed, "files": files})


def write_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    checked = {**manifest, CHECKSUM: checksum_of(manifest)}
    if problem := find_error(checked):
        raise CheckpointError(f"snapshot {folder.stem} cannot be committed: {problem}")
    atomic_write(folder / MANIFEST, json.dumps(checked, indent=2).encode(), synced=True)


def read_manifest(folder: Path) -> dict[str, Any]:
    """Refuses one of a newer version: what it means is not known here, and must not be lost."""
    try:
        manifest = read_json(folder / MANIFEST, MAX_BYTES)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"cannot read its {MANIFEST}: {error}") from error
    if _is_newer(manifest):
        raise CheckpointMismatch(
            f"snapshot {folder.name} has format {manifest['format']}, this version of dreamfleet reads up to {FORMAT}: "
            "continue the run with the version that wrote it, or choose another --run-dir"
        )
    if problem := find_error(manifest):
        raise CheckpointError(f"cannot use its {MANIFEST}: {problem}")
    return dict(manifest)


def _is_newer(manifest: Any) -> bool:
    """Whether it is whole, as far as a format that is not known here can be, and of a later format."""
    found = manifest.get("format") if isinstance(manifest, dict) else None
    newer = type(found) is int and FORMAT < found <= MAX_COUNT
    return newer and manifest.get(CHECKSUM, checksum_of(manifest)) == checksum_of(manifest)


def find_damage(folder: Path, run_dir: Path, manifest: Mapping[str, Any], contents: bool) -> Damage | None:
    """Looks at the sizes of all files, and if asked at their contents too, which takes as long as reading them."""
    if damage := find_own_damage(folder, manifest, contents):
        return damage
    # What is left of its other files, where a loss of power undid their removal, is of no use to an agent alone.
    needed = {} if manifest.get("agent_only") else outside_files(folder)
    for name, expected in needed.items():
        if (size := _size(run_dir / name)) != expected:
            return OutsideDamage(f"{name} {_words(size, expected)}")
    return None


def find_own_damage(folder: Path, manifest: Mapping[str, Any], contents: bool = True) -> Damage | None:
    """Check the files in the folder: sizes, checksums, and whether all numbers of the agent are finite."""
    files = manifest.get("files", {})
    if unlisted := _unlisted(folder, manifest):
        return Damage(unlisted)
    for name, facts in files.items():
        if (size := _size(folder / name)) != facts["size"]:
            return Damage(f"{name} {_words(size, facts['size'])}")
    for name, facts in files.items() if contents else ():
        if checksum(folder / name) != facts["crc32"]:
            return Damage(f"{name} does not match its checksum")
    with contextlib.suppress(CheckpointError):  # whoever loads it says that it cannot be read
        if contents and (folder / AGENT).exists() and (name := find_non_finite(read_arrays(folder / AGENT))):
            return Damage(f"{AGENT} is not finite in {name}")
    return None


def is_agent_whole(folder: Path, manifest: Mapping[str, Any]) -> bool:
    """Whether the agent can be kept, whatever is wrong with the other files."""
    if not manifest or not (folder / AGENT).exists():
        return False
    return find_own_damage(folder, {**manifest, **_agent_alone(manifest)}) is None


def reduce_to_agent(folder: Path, manifest: Mapping[str, Any]) -> None:
    """The manifest says so before any file goes."""
    if not manifest.get("agent_only"):
        write_manifest(folder, {**manifest, **_agent_alone(manifest)})
    for path in folder.iterdir():
        if path.name not in (*AGENT_FILES, MANIFEST):
            path.unlink()


def _agent_alone(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """What a manifest says once nothing but the agent is left."""
    files = {name: facts for name, facts in manifest.get("files", {}).items() if name in AGENT_FILES}
    return {"agent_only": True, "files": files, "parts": ["agent"], "elsewhere": []}


def outside_files(folder: Path) -> dict[str, int]:
    """By their paths from the run folder, with their sizes."""
    found = _read_outside(folder)
    for name, size in found.items():
        if not _is_file_name(name) or type(size) is not int or not 0 <= size <= MAX_COUNT:
            raise CheckpointError(f"cannot use its {OUTSIDE}: {name[:80]!r} is no path of a file with a size")
    return found


def needed_files(folder: Path) -> list[str]:
    """The names of these files, whatever they are: a snapshot that is not used now may be used by another version."""
    return [name for name in _read_outside(folder) if "\0" not in name]


def add_outside_files(folder: Path, run_dir: Path, files: Mapping[Path, int]) -> None:
    """A replay of the user's own may keep them outside of the run folder: their paths are then absolute."""
    root = run_dir.resolve()
    folders = {parent: parent.resolve() for parent in {path.parent for path in files}}
    named = {_name(folders[path.parent] / path.name, root): size for path, size in files.items()}
    if strange := next((name for name in named if not _is_file_name(name)), None):
        raise CheckpointError(
            f"replay keeps its files under a path that cannot be listed, {strange[:80]!r}: choose one of printable "
            f"characters, at most {MAX_NAME}"
        )
    (folder / OUTSIDE).write_text(json.dumps(named))


def _name(path: Path, root: Path) -> str:
    return str(path.relative_to(root) if path.is_relative_to(root) else path)


def _is_file_name(name: str) -> bool:
    """A path in its normal form. Nothing is read of these files but their sizes."""
    usual = 0 < len(name) <= MAX_NAME and name.isprintable() and os.path.normpath(name) == name
    return usual and name.split("/")[-1] not in ("", ".", "..")


def _read_outside(folder: Path) -> dict[str, Any]:
    try:
        found = read_json(folder / OUTSIDE, MAX_OUTSIDE_BYTES)
    except (FileNotFoundError, NotADirectoryError):  # no part needs any, or it is of format 1
        return {}
    except (OSError, ValueError) as error:
        raise CheckpointError(f"cannot read its {OUTSIDE}: {error}") from error
    if not isinstance(found, dict):
        raise CheckpointError(f"cannot read its {OUTSIDE}: it is no JSON object")
    return found


def _unlisted(folder: Path, manifest: Mapping[str, Any]) -> str | None:
    """What is wrong with the list of files, as far as the folder shows it. Files of the user's own do not count."""
    known = [name for names in PARTS.values() for name in names]
    if not any((folder / name).exists() for name in known):
        return "it has none of the parts of a snapshot"
    if manifest["format"] == 1 or manifest.get("agent_only"):  # which may lie beside files that are about to go
        return None
    found = [name for name in (*known, OUTSIDE) if name not in manifest["files"] and (folder / name).exists()]
    return f"{found[0]} is not listed in its {MANIFEST}" if found else None


def spaces(agent: Any) -> dict[str, dict[str, Any]]:
    """What an agent sees and does, if it tells."""
    found = {"observations": getattr(agent, "obs_space", None), "actions": getattr(agent, "act_space", None)}
    return {
        kind: {key: [str(space.dtype), list(space.shape)] for key, space in described.items()}
        for kind, described in found.items()
        if isinstance(described, Mapping)
    }


def checksum(path: Path) -> int:
    found = 0
    for block in _blocks(path):
        found = zlib.crc32(block, found)
    return found


def _file_facts(path: Path) -> dict[str, int]:
    facts = {"size": path.stat().st_size, "crc32": checksum(path)}
    sync(path)
    return facts


def _blocks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            yield block


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError as error:
        if may_pass(error):
            raise
        return None


def _words(size: int | None, expected: int) -> str:
    return "is missing" if size is None else f"has {size} bytes instead of {expected}"
