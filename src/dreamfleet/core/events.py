"""The events of a run, as `events.jsonl` names them."""

from __future__ import annotations

from enum import StrEnum


class Event(StrEnum):
    """What happened. A line of `events.jsonl` adds when, to which role, and details that depend on the event."""

    # The life of a role.
    START = "start"
    READY = "ready"
    EXIT = "exit"
    RESTART = "restart"
    KILL = "kill"
    FAILURE = "failure"
    COMPILE = "compile"
    STATUS_FAILED = "status_failed"
    # The life of a run.
    STOP = "stop"
    DONE = "done"
    FAILED = "failed"
    STALL = "stall"
    RECOVERED = "recovered"
    DISK_LOW = "disk_low"
    DISK_FREE = "disk_free"
    WARNING = "warning"  # its `text` is also printed on the terminal
    NOTE = "note"
    # Environments and their workers.
    ENV_RESTART = "env_restart"
    ENV_CLOSE_FAILED = "env_close_failed"
    DISCONNECT = "disconnect"
    JOINED = "joined"
    WORKER_LOST = "worker_lost"
    WORKER_LEFT = "worker_left"
    RUN_LOST = "run_lost"
    RUN_ENDED = "run_ended"
    REFUSED = "refused"
    SET_ASIDE = "set_aside"
    EVENTS_LEFT_OUT = "events_left_out"
    # Data.
    STEPS_LOST = "steps_lost"
    MESSAGES_LOST = "messages_lost"
    METRICS_REFUSED = "figures_refused"
    LINES_ASIDE = "lines_aside"
    SNAPSHOT = "snapshot"
    SAVE_FAILED = "save_failed"
    RESTORE = "restore"
    FROM_CHECKPOINT = "from_checkpoint"
    DAMAGED = "damaged"
