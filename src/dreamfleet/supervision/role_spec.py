"""What a fleet consists of, as data: one spec per role."""

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
    """How a role that died is restarted: at most `max_restarts` times within `window_s`, as `setting` configures.

    The roles in `restart_group` are restarted with it: what they hold must not be newer than what it restores.
    A `stateless` role holds nothing that a snapshot needs. Any other role is given up when the same failure occurs
    right after its restart.
    """

    max_restarts: int
    setting: str
    window_s: float = math.inf
    restart_group: tuple[str, ...] = ()
    stateless: bool = False


@dataclass(frozen=True)
class RoleSpec:
    """One role: what runs, where, and when it is asked to stop.

    `target` runs with its context set (`core.context.current_context`). It reports the state "ready" once it serves,
    and returns, or raises `Stopped`, after its stop switch was set. Returning earlier is a failure unless it reported
    `finish` first. A target is cloudpickled for its process; with `thread` it runs in the supervisor's process
    instead, where it cannot be killed.

    Roles of the lowest `stop_rank` are asked to stop first, those of the next rank once they are gone. `env` holds
    further environment variables of the role's process, set before it imports anything. A role that `saves` writes a
    last snapshot after it was asked to stop, and gets the time for it unless the run has failed.

    `kind` says what the role does. Who looks at its reports goes by that.

    Without a `restart` rule the role's death ends the run. `restart_target` makes the target of a later
    incarnation from how the role is restarted: "alone" or "together" with others. Without it all have the same target.

    A role that does the work of several shows as these: `unfold` turns its status into theirs, by name.
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
            raise BadInput(f"role name {self.name!r} must consist of letters, digits, '_', '-' and '.'")
