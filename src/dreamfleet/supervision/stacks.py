"""The operating system's view of a process's threads, for processes that do not respond."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path


def write_threads(pid: int | None, path: Path, why: str) -> None:
    """Append a line per thread of the process to `path`. None means this process."""
    with contextlib.suppress(OSError), path.open("a") as file:  # the disk may be full
        lines = [f"\n{time.strftime('%Y-%m-%d %H:%M:%S')} {why}", *thread_lines(pid or os.getpid())]
        file.write("\n".join(lines) + "\n")


def thread_lines(pid: int) -> list[str]:
    """Return one line per thread with its state, kernel wait and system call. Empty without /proc."""
    try:
        tasks = sorted(Path(f"/proc/{pid}/task").iterdir(), key=lambda task: int(task.name))
    except OSError:
        return []
    return [line for task in tasks if (line := _thread_line(task))]


def is_stopped(pid: int) -> bool:
    """Return whether SIGSTOP or a debugger has stopped the process."""
    return any(" state T " in line or " state t " in line for line in thread_lines(pid)[:1])


def _thread_line(task: Path) -> str:
    status = dict(line.split(":", 1) for line in _read(task / "status").splitlines() if ":" in line)
    if not status:
        return ""
    words = [status.get("Name", "").strip(), f"state {status.get('State', '').strip()}"]
    words += [
        f"{name} {text}" for name in ("wchan", "syscall") if (text := _read(task / name).strip()) not in ("", "0")
    ]
    return f"thread {task.name} {', '.join(words)}"


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
