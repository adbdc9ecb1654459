"""What a snapshot folder says about itself, and whether its files still are what it says."""

from __future__ import annotations

import contextlib
import json
import os
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dreamfleet.checkpoint.arrays import find_non_finite, read_arrays
from dreamfleet.core.disk import sync
from dreamfleet.core.errors import CheckpointError, CheckpointMismatch

FORMAT = 2  # 1 has neither checksums nor a list of its files
MANIFEST = "manifest.json"
AGENT = "agent.safetensors"
OUTSIDE = "outside.json"  # files that a part needs elsewhere in the run folder, with their sizes
BLOCK_BYTES = 1 << 22


class Damage(str):
    """One line on what is wrong with a snapshot. `outside`: only with files that lie elsewhere in the run folder."""

    outside = False


class OutsideDamage(Damage):
    outside = True


def seal(folder: Path, facts: Mapping[str, Any]) -> None:
    """Brings every file of a folder to disk and writes the manifest, which lists them with sizes and checksums."""
    files = {path.name: _file_facts(path) for path in sorted(folder.iterdir()) if path.name != MANIFEST}
    write_manifest(folder, {"format": FORMAT, **facts, "files": files})


def write_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    aside = folder / f"{MANIFEST}.tmp"
    aside.write_text(json.dumps(manifest, indent=2))
    sync(aside)
    aside.replace(folder / MANIFEST)
    sync(folder)


def read_manifest(folder: Path) -> dict[str, Any]:
    """Refuses one of a newer version: what it means is not known here, and must not be lost."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        found = manifest["format"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"cannot read its {MANIFEST}: {error}") from error
    if not isinstance(found, int) or not 1 <= found <= FORMAT:
        raise CheckpointMismatch(
            f"snapshot {folder.name} has format {found}, this version of dreamfleet reads up to {FORMAT}: "
            "continue the run with the version that wrote it, or choose another --run-dir"
        )
    return dict(manifest)


def find_damage(folder: Path, run_folder: Path, manifest: Mapping[str, Any], contents: bool) -> Damage | None:
    """Looks at the sizes of all files, and if asked at their contents too, which takes as long as reading them."""
    if damage := find_own_damage(folder, manifest, contents):
        return damage
    for name, expected in outside_files(folder).items():
        if (size := _size(run_folder / name)) != expected:
            return OutsideDamage(f"{name} {_words(size, expected)}")
    return None


def find_own_damage(folder: Path, manifest: Mapping[str, Any], contents: bool = True) -> Damage | None:
    """Check the files in the folder: sizes, checksums, and whether all numbers of the agent are finite."""
    files = manifest.get("files", {})
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


def outside_files(folder: Path) -> dict[str, int]:
    """By their paths in the run folder."""
    try:
        return dict(json.loads((folder / OUTSIDE).read_text()))
    except FileNotFoundError:  # no part needs any, or it is of format 1
        return {}
    except (OSError, ValueError) as error:
        raise CheckpointError(f"cannot read its {OUTSIDE}: {error}") from error


def add_outside_files(folder: Path, run_folder: Path, files: Mapping[Path, int]) -> None:
    named = {os.path.relpath(path, run_folder): size for path, size in files.items()}
    (folder / OUTSIDE).write_text(json.dumps(named))


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
    except OSError:
        return None


def _words(size: int | None, expected: int) -> str:
    return "is missing" if size is None else f"has {size} bytes instead of {expected}"
