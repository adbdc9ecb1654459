"""The suites there are: what each offers, what it needs, and the module that builds it."""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass
from typing import Protocol

from dreamfleet.core.errors import ConfigError
from dreamfleet.envs.options import EnvOptions


class SuiteModule(Protocol):
    """What a module in `envs/suites` offers. It imports the suite's library inside these functions only."""

    def make(self, task: str, options: EnvOptions, seed: int, **kwargs: object) -> object:
        """One environment: an `Env`, a `gymnasium.Env` or a `gymnasium.vector.VectorEnv`.

        The keyword arguments are `env.kwargs`. Raises `ConfigError` for a task it does not have, naming the closest.
        """

    def tasks(self) -> list[str]:
        """All tasks, or an empty list where any name of the library's own may be one."""


@dataclass(frozen=True)
class Suite:
    about: str
    default: str = ""  # the task when only the suite is named
    needs: tuple[str, ...] = ()  # modules that must be importable
    install: str = ""  # what to type to get them
    repeats: bool = False  # applies options.repeat itself

    def missing(self) -> list[str]:
        return [name for name in self.needs if importlib.util.find_spec(name) is None]


SUITES: dict[str, Suite] = {
    "dummy": Suite("test environment with an image, a vector and a count; tasks for every kind of space", "default"),
    "catch": Suite("a ball falls, a paddle catches it: a small image", "default"),
    "bandit": Suite("one step per episode, one arm is best", "default"),
    "memory": Suite("a cue at the start says which action is right at the end", "default"),
    "gym": Suite(
        "any id registered with Gymnasium, or module:id", needs=("gymnasium",), install="pip install gymnasium"
    ),
    "atari": Suite(
        "57 games, 96x96 gray, sticky actions, all 18 actions",
        needs=("ale_py",),
        install="pip install 'dreamfleet[atari]'",
        repeats=True,
    ),
    "atari100k": Suite(
        "26 games, 64x64 colour, minimal actions",
        needs=("ale_py",),
        install="pip install 'dreamfleet[atari]'",
        repeats=True,
    ),
    "crafter": Suite("survival in 2D", "reward", needs=("crafter",), install="pip install 'dreamfleet[crafter]'"),
    "dmc": Suite(
        "DeepMind control suite", needs=("dm_control",), install="pip install 'dreamfleet[dmc]'", repeats=True
    ),
    "minigrid": Suite("grid worlds", needs=("minigrid",), install="pip install 'dreamfleet[minigrid]'"),
    "mujoco": Suite("Gymnasium's MuJoCo tasks", needs=("mujoco",), install="pip install 'dreamfleet[mujoco]'"),
    "procgen": Suite("16 generated games", needs=("procgen",), install="pip install 'dreamfleet[procgen]'"),
    "memory_maze": Suite("mazes to remember", needs=("memory_maze",), install="pip install 'dreamfleet[memory_maze]'"),
    "dmlab": Suite("DeepMind Lab", needs=("deepmind_lab",), install="build deepmind_lab from source", repeats=True),
    "minecraft": Suite(
        "Minecraft diamond", "diamond", needs=("minerl",), install="install minerl 0.4.4 and a Java 8 JDK"
    ),
}


def load_suite(name: str) -> SuiteModule:
    suite = SUITES[name]
    missing = suite.missing()
    if missing:
        raise ConfigError(f"suite {name!r} needs {', '.join(missing)}, not installed here: {suite.install}")
    module = importlib.import_module(f"dreamfleet.envs.suites.{name}")
    return module
