"""An environment whose package draws by OpenGL: importing this imports one of that name."""

from __future__ import annotations

import os
from typing import Any

import pyglet  # a stand-in, which the test puts on the path

from support import faulty_envs


class Draws(faulty_envs.Correct):
    """Fails where nobody has chosen how to draw before its package was imported."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = {key: value for key, value in pyglet.SEEN.items() if key.startswith(("MUJOCO", "DREAMFLEET"))}
        if not self.seen:
            raise RuntimeError("no display")


class CannotDraw(Draws):
    def step(self, action: Any) -> Any:
        raise RuntimeError(f"EGL cannot be initialised, MUJOCO_GL={os.environ.get('MUJOCO_GL')}")
