"""Cores, memory, disk and the limits that the system sets."""

from __future__ import annotations

import os
import resource
import shutil
import tempfile
import time
from pathlib import Path

from dreamfleet.commands.doctor.findings import NOTE, OK, PROBLEM, Finding
from dreamfleet.config.schema import JaxGroup
from dreamfleet.core.files.disk import writable_folder
from dreamfleet.supervision.machine import cgroup_cores, memory_bytes, usable_cores

FEW_CORES = 2
LOW_MEMORY, NO_MEMORY = 4e9, 1e9
LOW_DISK, NO_DISK = 10e9, 1e9
SLOW_DISK = 50e6  # bytes a second; a snapshot of a few gigabytes takes a minute then
PIECE, PIECES, WRITE_S = 1 << 22, 16, 2.0  # the disk's speed is tried with 64 MiB, or less where that takes too long
LITTLE_SHM = 64e6
FEW_FILES, MANY_FILES = 256, 1024


def cores() -> list[Finding]:
    usable, there = usable_cores(), os.cpu_count() or 1
    text = f"{usable:g} of {there} usable" if usable < there else f"{there}"
    if cgroup_cores() < there:
        text += " (limit of this container)"
    if usable < FEW_CORES:
        fix = "everything shares one core: use few environments, such as run.envs=2"
        return [Finding("cores", NOTE, text, fix)]
    return [Finding("cores", OK, text)]


def memory() -> list[Finding]:
    return [memory_finding(*memory_bytes())]


def memory_finding(total: float, free: float) -> Finding:
    text = f"{free / 1e9:.1f} of {total / 1e9:.1f} GB free"
    fix = "close other programs, or let replay take less: replay.size_bytes=1e9 or a smaller replay.size"
    if free < LOW_MEMORY:
        return Finding("memory", PROBLEM if free < NO_MEMORY else NOTE, text, fix)
    return Finding("memory", OK, text)


def disk(folder: Path | None = None) -> list[Finding]:
    """Where runs would go: the folder of this name if there is one, else the current one."""
    place = folder or (Path("runs") if Path("runs").is_dir() else Path.cwd())
    try:
        speed = write_speed(place)
    except OSError as error:
        fix = "choose a folder that you can write with --run-dir"
        return [Finding("disk", PROBLEM, f"{place} cannot be written: {error.strerror or error}", fix)]
    return [disk_finding(place, speed, shutil.disk_usage(place).free)]


def disk_finding(place: Path, speed: float, free: float) -> Finding:
    text = f"{free / 1e9:.1f} GB free in {place}, written at {speed / 1e6:,.0f} MB/s"
    if free < LOW_DISK:
        level = PROBLEM if free < NO_DISK else NOTE
        return Finding("disk", level, text, "make room, choose another --run-dir, or set a smaller replay.size")
    if speed < SLOW_DISK:
        fix = "snapshots will be slow: choose a --run-dir on a local disk, or a longer run.save_every"
        return Finding("disk", NOTE, text, fix)
    return Finding("disk", OK, text)


def compiled(folder: str = JaxGroup().cache) -> list[Finding]:
    """Where functions that are compiled are kept for the next start."""
    try:
        place = writable_folder(folder)
    except OSError as error:
        fix = "every start compiles again: set jax.cache to a folder that you can write, or HOME"
        return [Finding("compiled", NOTE, f"{folder} cannot be written: {error}", fix)]
    return [Finding("compiled", OK, f"functions are kept in {place}")]


def write_speed(place: Path) -> float:
    """Bytes a second, all the way to the disk."""
    data = os.urandom(PIECE)  # a file system that compresses would write zeros at no cost
    with tempfile.NamedTemporaryFile(dir=place, prefix=".dreamfleet-") as file:
        start = time.monotonic()
        written = 0
        while written < PIECES * PIECE and time.monotonic() - start < WRITE_S:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            written += PIECE
        return written / max(1e-9, time.monotonic() - start)


def shared_memory(place: Path = Path("/dev/shm")) -> list[Finding]:
    """The fleet itself needs none; libraries of environments and devices do."""
    fix = "libraries that share memory may fail: in a container, start it with --shm-size=1g"
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(b"\0" * 4096)
        usage = shutil.disk_usage(place)
    except OSError as error:
        return [Finding("shared memory", NOTE, f"{place} cannot be used: {error.strerror or error}", fix)]
    text = f"{usage.free / 1e9:.2g} of {usage.total / 1e9:.2g} GB free in {place}"
    if usage.free < LITTLE_SHM:
        return [Finding("shared memory", NOTE, text, fix)]
    return [Finding("shared memory", OK, text)]


def open_files() -> list[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return [open_files_finding(*(10**9 if limit == resource.RLIM_INFINITY else limit for limit in (soft, hard)))]


def open_files_finding(soft: int, hard: int) -> Finding:
    text = "no limit" if soft >= 10**9 else f"up to {soft} in a process"
    if soft < MANY_FILES:
        raised = min(4096, hard)
        fix = f"ulimit -n {raised}" if raised > soft else "ask who runs this machine for a higher limit of open files"
        return Finding("open files", PROBLEM if soft < FEW_FILES else NOTE, f"{text}, few for a large fleet", fix)
    return Finding("open files", OK, text)
