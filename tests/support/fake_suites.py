"""Small stand-ins for libraries that cannot be installed beside ours, with the interface that the suites use."""

from __future__ import annotations

import abc
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import pytest


def install(monkeypatch: pytest.MonkeyPatch, **modules: dict[str, Any]) -> None:
    """Makes modules importable; a dot in a name is written as two underscores."""
    for name, content in modules.items():
        dotted = name.replace("__", ".")
        module = ModuleType(dotted)
        module.__spec__ = ModuleSpec(dotted, None)
        module.__path__ = []
        module.__dict__.update(content)
        monkeypatch.setitem(sys.modules, dotted, module)
        parent, _, child = dotted.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)


class ProcgenGym3Env:
    """As `procgen.ProcgenGym3Env`: one level follows the other by itself, and -1 begins the next at once.

    A level ends after `length` steps, complete on action 7, with a reward of 10. The colour is 10 per step in it.
    """

    length = 5

    def __init__(
        self, num: int, env_name: str, rand_seed: int, num_threads: int, render_mode: str | None, **kwargs: Any
    ) -> None:
        assert (num, num_threads) == (1, 0)
        assert 0 <= rand_seed < 2**31
        assert render_mode in (None, "rgb_array")
        self.kwargs = kwargs
        self._large = render_mode == "rgb_array"
        self._time, self._reward, self._first, self._complete = 0, 0.0, True, False

    def observe(self) -> tuple[np.ndarray, dict[str, np.ndarray], np.ndarray]:
        image = np.full((1, 64, 64, 3), 10 * self._time, np.uint8)
        return np.array([self._reward], np.float32), {"rgb": image}, np.array([self._first])

    def act(self, action: np.ndarray) -> None:
        assert action.shape == (1,)
        assert -1 <= action[0] < 15
        self._time += 1
        self._complete = bool(action[0] == 7)
        self._reward = 10.0 * self._complete
        self._first = bool(self._complete or action[0] == -1 or self._time >= self.length)
        if self._first:
            self._time = 0

    def get_info(self) -> list[dict[str, Any]]:
        large = {"rgb": np.full((512, 512, 3), 10 * self._time, np.uint8)} if self._large else {}
        return [{"prev_level_complete": np.uint8(self._complete), **large}]

    def close(self) -> None:
        pass


class Lab:
    """As `deepmind_lab.Lab`. A level runs for 10 frames and pays 1 for each frame of moving forward."""

    made: ClassVar[list[Lab]] = []

    def __init__(self, level: str, observations: list[str], config: dict[str, str], renderer: str = "software") -> None:
        assert all(isinstance(value, str) for value in config.values())
        self.level, self.config, self._names = level, config, observations
        self.seeds: list[int | None] = []
        self.actions: list[tuple[list[int], int]] = []
        self._frame: int | None = None
        Lab.made.append(self)

    def reset(self, episode: int = -1, seed: int | None = None) -> None:
        self.seeds.append(seed)
        self._frame = 0

    def is_running(self) -> bool:
        return self._frame is not None and self._frame < 10

    def step(self, action: np.ndarray, num_steps: int = 1) -> float:
        assert action.shape == (7,)
        assert action.dtype == np.intc
        assert self.is_running() and self._frame is not None
        self.actions.append((action.tolist(), num_steps))
        frames = min(num_steps, 10 - self._frame)
        self._frame += frames
        return float(frames * max(action[3], 0))

    def observations(self) -> dict[str, Any]:
        if not self.is_running():
            raise RuntimeError("Environment in wrong status for call to observations()")
        height, width = int(self.config["height"]), int(self.config["width"])
        shown = {"RGB_INTERLEAVED": np.full((height, width, 3), self._frame, np.uint8), "INSTR": "Pick the red ball"}
        return {name: shown[name] for name in self._names}

    def close(self) -> None:
        self._frame = None


ITEMS = ["air", "dirt", "log", "log2", "planks", "wooden_pickaxe", "diamond"]


class Handler:
    """As those of `minerl.herobraine`: keeps what it was made with."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.args, self.kwargs = args, kwargs


PARTS = """
observables actionables rewardables agent_handlers monitors server_initial_conditions server_world_generators
server_decorators server_quit_producers agent_start
"""


class EnvSpec(abc.ABC):
    """As `minerl.herobraine.env_spec.EnvSpec` of MineRL 0.4: calls what a subclass must define, then makes it."""

    def __init__(self, name: str) -> None:
        self.parts: dict[str, list[Any]] = {part: getattr(self, f"create_{part}")() for part in PARTS.split()}

    @abc.abstractmethod
    def is_from_folder(self, folder: str) -> bool: ...

    @abc.abstractmethod
    def determine_success_from_rewards(self, rewards: list[float]) -> bool: ...

    @abc.abstractmethod
    def get_docstring(self) -> str: ...

    def make(self) -> MineWorld:
        return MineWorld(self)


class MineWorld:
    """As MineRL's environments, with the old gym interface. Tests set what it shows next."""

    def __init__(self, spec: EnvSpec) -> None:
        self.spec = spec
        self.width, self.height = spec.parts["observables"][0].args[0]
        self.seeds: list[int] = []
        self.actions: list[dict[str, Any]] = []
        self.inventory: dict[str, int] = {}
        self.life, self.equipped, self.over = 20.0, "air", False
        self._ended = True

    def seed(self, seed: int) -> None:
        self.seeds.append(seed)

    def reset(self) -> dict[str, Any]:
        self.inventory, self.life, self.equipped, self.over = {}, 20.0, "air", False
        self._ended = False
        return self._observe()

    def step(self, action: dict[str, Any]) -> tuple[dict[str, Any], float, bool, dict[str, Any]]:
        assert not self._ended
        self.actions.append(action)
        self._ended = self.over
        return self._observe(), 0.0, self.over, {}

    def close(self) -> None:
        pass

    def _observe(self) -> dict[str, Any]:
        return {
            "pov": np.zeros((self.height, self.width, 3), np.uint8),
            "inventory": {item: np.array(self.inventory.get(item, 0)) for item in ITEMS},
            "equipped_items": {"mainhand": {"type": self.equipped}},
            "life_stats": {"life": np.array(self.life), "food": np.array(10.0), "air": np.array(300.0)},
        }


HANDLERS = """
POVObservation FlatInventoryObservation EquippedItemObservation ObservationFromLifeStats KeybasedCommandAction
CameraAction PlaceBlock EquipAction CraftAction CraftNearbyAction SmeltItemNearby DefaultWorldGenerator
ServerQuitWhenAnyAgentFinishes TimeInitialCondition SpawningInitialCondition
"""


def install_minerl(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = ("forward", "back", "left", "right", "jump", "sneak", "sprint", "attack", "use")
    install(
        monkeypatch,
        minerl={},
        minerl__herobraine={},
        minerl__herobraine__env_spec={"EnvSpec": EnvSpec},
        minerl__herobraine__hero={},
        minerl__herobraine__hero__handler={"Handler": Handler},
        minerl__herobraine__hero__handlers={name: type(name, (Handler,), {}) for name in HANDLERS.split()},
        minerl__herobraine__hero__mc={"ALL_ITEMS": ITEMS, "INVERSE_KEYMAP": {key: key for key in keys}},
    )
