"""Roles that do nothing but behave in one way, for tests of the supervisor. Imports little: each runs in a process."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
from typing import Any

from dreamfleet.core.context import RoleContext, current_context
from dreamfleet.core.errors import AddressError, Disconnected, EnvError, Stopped


def _ready() -> RoleContext:
    context = current_context()
    context.report.state("ready")
    return context


def idle() -> None:
    _ready().stop.wait()


def finishes() -> None:
    context = _ready()
    context.report.finish("goal reached")
    context.stop.wait()


def stopped_in_a_wait() -> None:
    context = _ready()
    context.stop.wait()
    context.stop.check()


def raises_stopped_unasked() -> None:
    _ready()
    raise Stopped("nobody asked")


def raises() -> None:
    _ready()
    raise ValueError("the role broke")


def raises_expected() -> None:
    _ready()
    raise EnvError("the environment\nbroke its contract")


def raises_bad_input() -> None:
    raise AddressError("address tcp://127.0.0.1:1 is in use")


def raises_when_asked_to_stop() -> None:
    _ready().stop.wait()
    raise RuntimeError("the last save failed")


def stops_slowly(seconds: float) -> None:
    _ready().stop.wait()
    threading.Event().wait(seconds)


def disconnected_then_cause(path: str, cause: bool) -> None:
    """Two roles over one pipe in the file system: the consequence is reported first, the cause is reported after it."""
    context = _ready()
    if cause:
        with open(path) as pipe:  # noqa: PTH123 - opens when the other role has opened it, too
            pipe.read()
        context.stop.wait()  # the supervisor acts on the consequence already
        raise ValueError("the cause")
    with open(path, "w"):  # noqa: PTH123
        pass
    raise Disconnected("the consequence")


def exits_with(code: int) -> None:
    _ready()
    sys.exit(code)


def returns() -> None:
    _ready()


def never_ready() -> None:
    current_context().stop.wait()


def deaf() -> None:
    """Blocks in native code, whatever is asked of it."""
    _ready()
    threading.Event().wait()


class IgnoresStop:
    """A role for a thread of the test itself, which lets it go in the end."""

    def __init__(self) -> None:
        self._released = threading.Event()
        self._thread: threading.Thread | None = None

    def __call__(self) -> None:
        self._thread = threading.current_thread()
        _ready()
        self._released.wait()

    def release(self) -> None:
        assert self._thread is not None
        self._released.set()
        self._thread.join(10)


def spins() -> None:
    _ready()
    while True:
        pass


def hangs_at_exit() -> None:
    """Ends as asked, but leaves a thread behind that the interpreter waits for."""
    context = _ready()
    threading.Thread(target=threading.Event().wait).start()
    context.stop.wait()


def locks_up() -> None:
    """Sleeps in native code without letting go of the interpreter: no other thread of the process moves any more."""
    _ready()
    ctypes.PyDLL(None).sleep(100)


def leaves_without_a_word(code: int) -> None:
    _ready()
    print("last words")
    os._exit(code)


def dies_by(number: int) -> None:
    _ready()
    print("last words", flush=True)
    os.kill(os.getpid(), number)
    signal.pause()


def dies_when_asked_to_stop() -> None:
    _ready().stop.wait()
    os.kill(os.getpid(), signal.SIGABRT)
    signal.pause()


def reads_address_zero() -> None:
    _ready()
    ctypes.string_at(0)


def starts_a_process() -> None:
    child = subprocess.Popen(["sleep", "1000"])
    current_context().report.event("grandchild", {"pid": child.pid})
    _ready().stop.wait()


def floods_reports(count: int) -> None:
    context = _ready()
    for index in range(count):
        context.report.event("flood", {"index": index})
        context.report.status({"index": index})
    context.report.finish("flooded")
    context.stop.wait()


def tells(names: list[str]) -> None:
    """Reports what its process looks like."""
    context = current_context()
    context.report.event(
        "told",
        {
            "env": {name: os.environ.get(name) for name in names},
            "path": sys.path,
            "modules": sorted(sys.modules),
            "inherited": [fd for fd in range(3, 64) if _is_inheritable(fd)],
            "main_thread": threading.current_thread() is threading.main_thread(),
            "name": context.name,
        },
    )
    finishes()


def kills(events: str, role: str) -> None:
    """Kills another role of its fleet, once that is ready."""
    context = _ready()
    pids = [row["detail"]["pid"] for row in _await_event(context, events, role, "ready") if row["event"] == "start"]
    if pids:
        os.kill(pids[-1], signal.SIGKILL)
    context.stop.wait()


def finishes_after(events: str, role: str, event: str) -> None:
    """Reaches its goal once something has happened to another role."""
    context = _ready()
    _await_event(context, events, role, event)
    context.report.finish("goal reached")
    context.stop.wait()


def _await_event(context: RoleContext, events: str, role: str, event: str, times: int = 1) -> list[dict[str, Any]]:
    """The role's events so far, once there is the one so many times; none if the run ends before."""
    while not context.stop.wait(0.02):
        with open(events) as file:  # noqa: PTH123
            rows = [json.loads(line) for line in file if line.endswith("\n")]
        if sum(row["role"] == role and row["event"] == event for row in rows) >= times:
            return [row for row in rows if row["role"] == role]
    return []


def lives(path: str, fates: list[str], how: str = "") -> None:
    """Meets another fate in every life; the file counts them, and keeps how each was begun."""
    with open(path, "a+") as file:  # noqa: PTH123
        file.seek(0)
        life = len(file.readlines())
        file.write(f"{how}\n")
    fate = fates[life]
    if fate == "killed":
        dies_by(signal.SIGKILL)
    elif fate == "killed before it is ready":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fate == "hangs":
        threading.Thread(target=threading.Event().wait).start()
        raises()
    else:
        {"idle": idle, "finishes": finishes, "raises": raises, "bad input": raises_bad_input}[fate]()


def _is_inheritable(fd: int) -> bool:
    try:
        return os.get_inheritable(fd)
    except OSError:
        return False


def says_whether_the_run_ends() -> None:
    context = _ready()
    context.stop.wait()
    context.report.event("stopped", {"run_ends": context.run_ends.is_set()})


def finishes_after_asking_to_leave(events: str, role: str) -> None:
    """Sends another role the signal that asks it to end, and reaches its goal once that is ready again."""
    context = _ready()
    pids = [row["detail"]["pid"] for row in _await_event(context, events, role, "ready") if row["event"] == "start"]
    if pids:
        os.kill(pids[-1], signal.SIGTERM)
        _await_event(context, events, role, "ready", times=2)
    context.report.finish("goal reached")
    context.stop.wait()
