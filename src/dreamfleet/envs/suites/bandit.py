"""The built-in bandits as a suite: `default` has one best arm, `contextual` one for each context."""

from __future__ import annotations

from dreamfleet.core.errors import ConfigError
from dreamfleet.envs.builtin.bandit import Bandit
from dreamfleet.envs.catalog import unknown_task
from dreamfleet.envs.options import EnvOptions


def make(task: str, options: EnvOptions, seed: int, arms: int = 5) -> Bandit:
    if task not in tasks():
        raise unknown_task("bandit", task, tasks())
    try:
        return Bandit(seed, contextual=task == "contextual", arms=arms)
    except ValueError as error:
        raise ConfigError(f"bandit:{task}: {error}: set env.kwargs.arms to 2 or more") from error


def tasks() -> list[str]:
    return ["default", "contextual"]
