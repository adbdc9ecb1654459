"""An environment, an agent, a replay and a record of metrics that raise an error once, when a file asks them to; the
first two on the command line as `support.raising:NAME`.

The files lie in the folder that the variable RAISING_FOLDER names. Whoever finds the one of its kind removes it and
raises an error with the words in it, so that every file is followed by one error, in whatever process.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dreamfleet.core.interfaces import Arrays
from dreamfleet.replay.store import ReplayStore
from support.surviving import Checking, Living

VARIABLE = "RAISING_FOLDER"
TRAIN, POLICY, REPORT, SAVE, STEP, SAMPLE, INSERT, SINK = (
    "train", "policy", "report", "save", "step", "sample", "insert", "sink",
)  # fmt: skip


class Asked(RuntimeError):
    """An ordinary error, which nobody raises on purpose."""


def ask(folder: Path, kind: str, words: str) -> Callable[[], bool]:
    """Has one part of this kind raise an error; the answer says whether one has."""
    part = folder / f"{kind}.part"
    part.write_text(words)
    part.rename(folder / kind)
    return lambda: not (folder / kind).exists()


def raise_if_asked(kind: str) -> None:
    path = os.path.join(os.environ[VARIABLE], kind)  # noqa: PTH118 - for every step
    if not os.path.exists(path):  # noqa: PTH110
        return
    taken = f"{path}.{os.getpid()}"
    try:
        os.rename(path, taken)  # noqa: PTH104 - only one of several succeeds
    except FileNotFoundError:
        return
    words = Path(taken).read_text()
    Path(taken).unlink()
    raise Asked(words)


class Agent(Checking):
    def policy(self, carry: Any, obs: Arrays, mode: str) -> Any:
        raise_if_asked(POLICY)
        return super().policy(carry, obs, mode)

    def train(self, carry: Any, batch: Any) -> Any:
        raise_if_asked(TRAIN)
        return super().train(carry, batch)

    def report(self, carry: Any, batch: Any) -> Any:
        raise_if_asked(REPORT)
        return super().report(carry, batch)

    def save(self) -> Any:
        raise_if_asked(SAVE)
        return super().save()


class Env(Living):
    def step(self, action: Mapping[str, Any]) -> dict[str, Any]:
        raise_if_asked(STEP)
        return super().step(action)


class Replay(ReplayStore):
    def sample(self, n: int, mode: str) -> Any:
        raise_if_asked(SAMPLE)
        return super().sample(n, mode)

    def add_batch(self, data: Arrays) -> Any:
        raise_if_asked(INSERT)
        return super().add_batch(data)


class Sink:
    """Beside the files that are the record of a run, and as important."""

    def write(self, row: Mapping[str, Any]) -> None:
        raise_if_asked(SINK)

    def close(self) -> None:
        pass
