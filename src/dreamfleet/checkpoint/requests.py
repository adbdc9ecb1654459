"""How somebody outside a run asks it for a snapshot: by a file in the run folder, answered by another."""

from __future__ import annotations

import contextlib
import json
import secrets
from pathlib import Path
from typing import Any

from dreamfleet.core.files.bounded import read_json
from dreamfleet.core.files.disk import atomic_write

MAX_BYTES = 1 << 16  # of a request or an answer
REQUEST, ANSWER = "request.json", "answer.json"


class SnapshotRequests:
    """The side of the run looks with `waiting` and answers all who asked until then; the other side writes `ask` and
    looks for an `answered`.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._token = ""  # of the request that is being worked on

    def waiting(self) -> bool:
        """Takes a request, if there is one."""
        path = self._folder / REQUEST
        if not path.exists():
            return False
        try:
            self._token = str(_read(path)["token"])
            path.unlink()
        except (OSError, ValueError, KeyError):  # taken back meanwhile, or nothing that was asked by this code
            return False
        return True

    def answer(self, snapshot: Path | None, error: str = "") -> None:
        """Nothing happens if nobody has asked. If the disk has no room for the answer, the asker gives up by itself."""
        if self._token:
            name = snapshot.name if snapshot else ""
            with contextlib.suppress(OSError):
                _replace(self._folder / ANSWER, {"token": self._token, "snapshot": name, "error": error})
            self._token = ""

    def ask(self) -> str:
        """Returns what the answer will be known by."""
        self._folder.mkdir(parents=True, exist_ok=True)
        token = secrets.token_hex(8)
        _replace(self._folder / REQUEST, {"token": token})
        return token

    def answered(self, token: str) -> dict[str, Any] | None:
        try:
            answer = _read(self._folder / ANSWER)
        except (OSError, ValueError):
            return None
        return answer if answer.get("token") == token else None

    def take_back(self) -> None:
        (self._folder / REQUEST).unlink(missing_ok=True)


def _read(path: Path) -> dict[str, Any]:
    found = read_json(path, MAX_BYTES)
    if not isinstance(found, dict):
        raise ValueError("it is no JSON object")
    return found


def _replace(path: Path, data: dict[str, Any]) -> None:
    atomic_write(path, json.dumps(data).encode(), synced=False)
