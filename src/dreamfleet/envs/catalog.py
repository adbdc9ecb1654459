"""The suites there are: what each offers, what it needs, and the module that builds it."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from dreamfleet.core.errors import ConfigError
from dreamfleet.core.text.suggestions import closest_names, did_you_mean
from dreamfleet.envs.options import EnvOptions


class SuiteModule(Protocol):
    """What a module in `envs/suites` offers. It imports the suite's library inside these functions only."""

    def make(self, task: str, options: EnvOptions, seed: int, **kwargs: object) -> object:
        """One environment: an `Env`, a `gymnasium.Env` or a `gymnasium.vector.VectorEnv`.

        The keyword arguments are `env.kwargs`. Raises `ConfigError` for a task it does not have, naming the closest.
        """

    def tasks(self) -> list[str]:
        """The tasks to show. `make` may take further ones, such as any other id of the library."""


ALL = ("",)


@dataclass(frozen=True)
class Suite:
    about: str
    default: str = ""  # the task when only the suite is named
    needs: tuple[str, ...] = ()  # modules that must be importable
    install: str = ""  # what to type to get them
    repeats: bool = False  # applies options.repeat itself
    gym_ids: tuple[str, ...] = ()  # how the ids begin that Gymnasium knows its tasks by
    quick: tuple[str, ...] = ()  # how the names of tasks begin whose steps take microseconds

    def missing(self) -> list[str]:
        return [name for name in self.needs if importlib.util.find_spec(name) is None]


SUITES: dict[str, Suite] = {
    "dummy": Suite(
        "test environments: an image, a vector and a count; or any other kind of space", "default", quick=ALL
    ),
    "catch": Suite(
        "a ball falls and a paddle catches it: a 48x48 image, or the board as a vector", "default", quick=ALL
    ),
    "bandit": Suite("one step per episode: one arm is best, always or depending on a context", "default", quick=ALL),
    "memory": Suite("a cue at the start says which action is right at the end", "default", quick=ALL),
    "blocks": Suite(
        "blocks fall onto a board and full rows disappear: a board of Gymnasium, read as env.read says",
        "default",
        quick=ALL,
    ),
    "gym": Suite(
        "any id registered with Gymnasium, or module:id",
        needs=("gymnasium",),
        install="pip install gymnasium",
        quick=("CartPole", "MountainCar", "Pendulum", "Acrobot", "FrozenLake", "Taxi", "CliffWalking", "Blackjack"),
    ),
    "atari": Suite(
        "57 games (and ale-py's others): 96x96 gray, action repeat 4, sticky actions, all 18 actions",
        needs=("ale_py",),
        install="pip install 'dreamfleet[atari]'",
        repeats=True,
    ),
    "atari100k": Suite(
        "26 games (and ale-py's others): 64x64 colour, action repeat 4, the actions each game needs",
        needs=("ale_py",),
        install="pip install 'dreamfleet[atari]'",
        repeats=True,
    ),
    "crafter": Suite(
        "survival in 2D: 64x64 colour, with or without the game's reward",
        "reward",
        needs=("crafter",),
        install="pip install 'dreamfleet[crafter]'",
    ),
    "dmc": Suite(
        "DeepMind control suite: states, 64x64 images (env.kwargs.image, env.kwargs.proprio), continuous actions",
        needs=("dm_control",),
        install="pip install 'dreamfleet[dmc]'",
        repeats=True,
    ),
    "minigrid": Suite(
        "grid worlds of Minigrid and BabyAI: 64x64 pixels of the agent's view, or symbols (env.kwargs.view)",
        needs=("minigrid",),
        install="pip install 'dreamfleet[minigrid]'",
        gym_ids=("MiniGrid-", "BabyAI-"),
    ),
    "mujoco": Suite(
        "Gymnasium's MuJoCo tasks: states, continuous actions",
        needs=("mujoco",),
        install="pip install 'dreamfleet[mujoco]'",
    ),
    "procgen": Suite(
        "16 games with generated levels: 96x96 colour, 15 actions",
        needs=("procgen",),
        install="pip install 'dreamfleet[procgen]', in an environment of its own, as it needs NumPy 1",
    ),
    "memory_maze": Suite(
        "mazes to remember: 64x64 colour, 6 actions",
        needs=("memory_maze",),
        install="pip install 'dreamfleet[memory-maze]'",
        repeats=True,
    ),
    "dmlab": Suite(
        "30 levels of DeepMind Lab: 64x64 colour, action repeat 4, 15 actions",
        needs=("deepmind_lab",),
        install="build its Python package from https://github.com/google-deepmind/lab",
        repeats=True,
    ),
    "minecraft": Suite(
        "Minecraft from wood to a diamond: 64x64 colour, inventory, 25 actions",
        "diamond",
        needs=("minerl",),
        install="install a Java 8 JDK and MineRL 0.4.4, patched to set the break speed unless env.kwargs.break_speed=1",
    ),
}


def is_quick(name: str) -> bool:
    """Whether a step of this environment is known to take microseconds. Nothing is known of a user's own."""
    suite, _, task = name.partition(":")
    return suite in SUITES and task.startswith(SUITES[suite].quick)


def task_of_gym(name: str) -> str | None:
    """The task of another suite that is what `gym:ID` names, or None if there is none."""
    suite, _, identifier = name.partition(":")
    identifier = identifier.rpartition(":")[2]
    found = (other for other, about in SUITES.items() if about.gym_ids and identifier.startswith(about.gym_ids))
    return next((f"{other}:{identifier}" for other in found), None) if suite == "gym" else None


def load_suite(name: str) -> SuiteModule:
    suite = SUITES[name]
    missing = suite.missing()
    if missing:
        raise ConfigError(f"suite {name!r} needs {', '.join(missing)}, not installed here: {suite.install}")
    module = importlib.import_module(f"dreamfleet.envs.suites.{name}")
    return module


def unknown_task(suite: str, task: str, known: Iterable[str]) -> ConfigError:
    """The error for a task that the suite does not have, with the closest one that it has."""
    names = list(known)
    listed = f"there are {', '.join(names)}" if len(names) <= 12 else "`dreamfleet envs` lists them"
    hint = did_you_mean(closest_names(task, names, ignore_case=True), listed, lambda name: f"{suite}:{name}")
    return ConfigError(f"suite {suite!r} has no task {task!r}: {hint}")
