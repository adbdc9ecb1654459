"""Where the threads of a role stand: told by its process, and by the system where the process cannot answer."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import time
from pathlib import Path

from dreamfleet.launch.signals import STACKS_SIGNAL


def dump_stacks(pid: int | None, path: Path, why: str) -> None:
    """Appends to `path` what the system knows of each thread, and has the process add its Python stacks.

    It does that from native code, whatever holds the interpreter; one that is stopped does it once it goes on. Without
    a process the role is a thread of this one.
    """
    with contextlib.suppress(OSError), path.open("a") as file:  # the disk may be full, the process gone
        file.write(f"\n{time.strftime('%Y-%m-%d %H:%M:%S')} {why}\n")
        for line in thread_lines(pid or os.getpid()):
            file.write(f"{line}\n")
        file.flush()
        if pid is None:
            faulthandler.dump_traceback(file)
        else:
            os.kill(pid, STACKS_SIGNAL)


def thread_lines(pid: int) -> list[str]:
    """One line per thread: its state, where it waits in the kernel, and its system call. Empty without /proc."""
    try:
        tasks = sorted(Path(f"/proc/{pid}/task").iterdir(), key=lambda task: int(task.name))
    except OSError:
        return []
    return [line for task in tasks if (line := _thread_line(task))]


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
