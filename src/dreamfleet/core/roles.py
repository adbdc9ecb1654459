"""The kinds of roles that a run consists of."""

from __future__ import annotations

from enum import StrEnum


class RoleKind(StrEnum):
    """What a role does. Its name tells it apart from other roles of the same kind."""

    AGENT = "agent"
    REPLAY = "replay"
    LOGGER = "logger"
    ENV = "env"
    EVAL_ENV = "eval_env"
    SINGLE = "single"  # all of them in one process
    OTHER = "other"  # of somebody who runs a list of roles of their own

    @property
    def is_worker(self) -> bool:
        """Whether the role steps environments."""
        return self in WORKERS

    @classmethod
    def of_mode(cls, mode: str) -> RoleKind:
        """Return the kind of env worker whose environments train or evaluate."""
        return cls.ENV if mode == "train" else cls.EVAL_ENV


WORKERS = (RoleKind.ENV, RoleKind.EVAL_ENV)
