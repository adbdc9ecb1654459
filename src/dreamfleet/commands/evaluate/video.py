"""A video of one episode: the image that the agent sees, or what the environment draws for people."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dreamfleet.config.schema import Config
from dreamfleet.core.error_origin import headline
from dreamfleet.core.errors import BadInput, ConfigError
from dreamfleet.core.import_path import import_factory
from dreamfleet.core.spaces import Space, is_image
from dreamfleet.envs.render.backend import hint
from dreamfleet.metrics.video import FPS, write_mp4

DRAWN = "rgb_array"  # Gymnasium's name for images without a window


def check_target(path: Path) -> None:
    """Before episodes are played for it."""
    if path.suffix != ".mp4":
        raise BadInput(f"--video {path}: videos are written as .mp4")
    if not path.absolute().parent.is_dir():
        raise BadInput(f"--video {path}: there is no folder {path.parent}")


def image_key(obs_space: Mapping[str, Space]) -> str | None:
    keys = [key for key, space in obs_space.items() if is_image(space)]
    return "image" if "image" in keys else next(iter(keys), None)


def drawing_config(config: Config) -> Config:
    """Gymnasium environments draw only if they are told so when they are made."""
    name = config.env.name
    if "render_mode" in config.env.kwargs or not _takes_render_mode(name):
        return config
    env = config.env.model_copy(update={"kwargs": {**config.env.kwargs, "render_mode": DRAWN}})
    return config.model_copy(update={"env": env})


def _takes_render_mode(name: str) -> bool:
    suite = name.partition(":")[0]
    if suite == "gym":
        return True
    from dreamfleet.envs.catalog import SUITES

    if suite in SUITES or ":" not in name:
        return False
    try:
        return "render_mode" in inspect.signature(import_factory("environment", name)).parameters
    except (TypeError, ValueError):
        return False


class Recorder:
    """`add` takes the observations of one episode; frames come from them, or from the environment's `render`."""

    def __init__(self, path: Path, obs_space: Mapping[str, Space], made: Any, name: str) -> None:
        self._path = path
        self._key = image_key(obs_space)
        self._made = made
        self._name = name
        self._frames: list[np.ndarray] = []
        if self._key is None and not callable(getattr(made, "render", None)):
            raise ConfigError(
                f"--video: environment {name!r} has no image among its observations and no render(): leave --video out"
            )

    def add(self, obs: Mapping[str, np.ndarray]) -> None:
        frame = obs[self._key] if self._key else self._drawn()
        self._frames.append(np.array(frame, np.uint8))

    def write(self) -> Path:
        rate = (getattr(self._made, "metadata", None) or {}).get("render_fps")
        drawn = self._key is None and isinstance(rate, int | float) and rate > 0
        write_mp4(self._path, np.stack(self._frames), round(rate) if drawn else FPS)  # type: ignore[arg-type]
        return self._path

    def _drawn(self) -> np.ndarray:
        try:
            frame = self._made.render()
        except Exception as error:
            reason = f"{error}{hint(headline(error))}"
            raise ConfigError(f"--video: environment {self._name!r} cannot draw: {reason}") from error
        if not isinstance(frame, np.ndarray) or frame.ndim != 3:
            raise ConfigError(
                f"--video: environment {self._name!r} draws nothing: its render() returned {type(frame).__name__}; "
                "give its factory a parameter render_mode that it hands on"
            )
        return frame
