"""The roles of a fleet as data: one spec per role."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dreamfleet.core.errors import BadInput
from dreamfleet.core.roles import RoleKind

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


@dataclass(frozen=True)
class RestartRule:
    """Rule for restarting a role: at most `max_restarts` times within `window_s`.

    The key `setting` configures that number. The roles in `restart_group` are restarted with it, because their state
    must not be newer than the restored snapshot. Unless the role is `stateless`, a failure that repeats right after a
    restart ends the run.
    """

    max_restarts: int
    setting: str
    window_s: float = math.inf
    restart_group: tuple[str, ...] = ()
    stateless: bool = False


@dataclass(frozen=True)
class RoleSpec:
    """One role: what runs, where, and in which order it stops.

    `target` runs with its context set (`core.context.current_context`). It reports the state "ready" once it serves,
    and returns or raises `Stopped` after its stop switch was set. Returning earlier is a failure unless it reported
    `finish` first. The target is cloudpickled for its process. With `thread` it runs in the supervisor's process
    instead, where it cannot be killed.

    Roles with the lowest `stop_rank` are stopped first, and the next rank once they have ended. `env` contains
    additional environment variables, which are set before the process imports anything. A role that `saves` writes a
    final snapshot when it is stopped, and has time for it unless the run failed.

    `kind` says what the role does. It determines how its reports are read.

    Without a `restart` rule, the end of the role ends the run. `restart_target` returns the target of a restarted role,
    given how it is restarted: "alone" or "together" with others. Without it, the target stays the same.

    A role that combines several others is shown as these: `unfold` splits its status into theirs, by name.
    """

    name: str
    target: Callable[[], object]
    stop_rank: int = 0
    thread: bool = False
    env: Mapping[str, str] = field(default_factory=dict)
    saves: bool = False
    restart: RestartRule | None = None
    restart_target: Callable[[str], Callable[[], object]] | None = None
    kind: RoleKind = RoleKind.OTHER
    unfold: Callable[[Mapping[str, Any]], dict[str, dict[str, Any]]] | None = None

    def __post_init__(self) -> None:
        # The name is also a file name: <run>/logs/<name>.log.
        if not _NAME.fullmatch(self.name):
            raise BadInput(f"role name {self.name!r} is invalid: use letters, digits, '_', '-' and '.'")
