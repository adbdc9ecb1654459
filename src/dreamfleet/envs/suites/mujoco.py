"""Gymnasium's MuJoCo tasks: `half_cheetah` for the newest version, or an id such as `HalfCheetah-v5`."""

from __future__ import annotations

import logging
import re
from typing import Any

import gymnasium

from dreamfleet.envs.catalog import unknown_task
from dreamfleet.envs.options import EnvOptions

LIBRARY = "gymnasium.envs.mujoco"


def make(task: str, options: EnvOptions, seed: int, /, **kwargs: Any) -> gymnasium.Env[Any, Any]:
    """Keyword arguments go to `gymnasium.make`. Cutting episodes at their usual length is a truncation."""
    newest = _newest()
    name = newest.get(task, task)
    if name not in _ids():
        raise unknown_task("mujoco", task, [*newest, *_ids()])
    _log_warnings()
    return gymnasium.make(name, disable_env_checker=True, **kwargs)


def tasks() -> list[str]:
    return sorted(_newest())


def _log_warnings() -> None:
    """By itself MuJoCo writes them into a file in the current folder."""
    import mujoco

    mujoco.set_mju_user_warning(logging.getLogger(__name__).warning)


def _ids() -> list[str]:
    """Versions 2 and 3 need another library, mujoco_py."""
    found = [spec for spec in gymnasium.registry.values() if str(spec.entry_point).startswith(LIBRARY)]
    return [spec.id for spec in found if (spec.version or 0) >= 4]


def _newest() -> dict[str, str]:
    """Task name to id. Ids are registered in the order of their versions."""
    return {_snake(name.partition("-")[0]): name for name in sorted(_ids(), key=lambda name: name.partition("-v")[2])}


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
