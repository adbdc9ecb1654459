"""Arguments and context of roles that a user's script starts, without a supervisor."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dreamfleet.config.args import FleetArgs
from dreamfleet.core.context import RoleContext, SilentReporter, given_context, using_context
from dreamfleet.core.errors import RunFolderError, Stopped
from dreamfleet.core.events import Event
from dreamfleet.core.files.open_files import raise_open_files_limit
from dreamfleet.core.stop import Stop

_pairs: weakref.WeakKeyDictionary[threading.Barrier, Stop] = weakref.WeakKeyDictionary()
_pairs_lock = threading.Lock()


class HandReporter(SilentReporter):
    """Reporter that stops the role at the end of the run and prints warnings, like a supervisor."""

    def __init__(self, stop: Stop) -> None:
        self._stop = stop

    def event(self, event: Event, detail: Mapping[str, Any]) -> None:
        if event == Event.WARNING:
            sys.stderr.write(f"dreamfleet: {detail['text']}\n")

    def finish(self, reason: str) -> None:
        self._stop.set()


@contextmanager
def role(
    name: str, args: Any, stop: Stop | None, *, writes: bool = True, barrier: threading.Barrier | None = None
) -> Iterator[tuple[FleetArgs, RoleContext]]:
    """Yield the arguments and the context for a role that runs in this thread.

    In a process of a launcher, the supervisor provides the context. Otherwise, the role is stopped by `stop` or by
    itself at the end of the run. Actor and learner share a barrier and a stop switch, so they end together. A role that
    `writes` needs a run folder.
    """
    fleet = FleetArgs.coerce(args)
    context = given_context()
    if context is None:
        with _by_hand(name, fleet, writes, barrier) as context, using_context(context):
            _link(stop, context)
            # All environments count as remote, because no supervisor stops them.
            yield fleet.model_copy(update={"remote_envs": True}), context
    else:
        _link(stop, context)
        yield fleet, context


@contextmanager
def _by_hand(name: str, args: FleetArgs, writes: bool, barrier: threading.Barrier | None) -> Iterator[RoleContext]:
    raise_open_files_limit()
    if writes:
        _make_folder(name, args)
    if barrier is not None and barrier.broken:
        raise Stopped(
            f"parallel_{name} cannot start: its barrier belongs to a run that has ended: create a new Barrier "
            "for each run"
        )
    switch = Stop() if barrier is None else _shared_switch(barrier)
    try:
        yield RoleContext(name, switch, HandReporter(switch), by_hand=True)
    except Stopped:
        if not switch.is_set():
            raise
    finally:
        if barrier is not None:
            switch.set()
            barrier.abort()  # the other role may be waiting
            with _pairs_lock:
                _pairs.pop(barrier, None)


def _shared_switch(barrier: threading.Barrier) -> Stop:
    with _pairs_lock:
        return _pairs.setdefault(barrier, Stop())


def _link(stop: Stop | None, context: RoleContext) -> None:
    if stop is not None:
        stop.also_sets(context.stop)


def _make_folder(name: str, args: FleetArgs) -> None:
    if not args.logdir:
        raise RunFolderError(f"parallel_{name} needs a run folder: set args.logdir")
    try:
        Path(args.logdir).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunFolderError(f"cannot create the run folder {args.logdir}: {error.strerror}") from error
