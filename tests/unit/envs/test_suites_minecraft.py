"""Minecraft against a stand-in of MineRL."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dreamfleet.core.errors import ConfigError
from dreamfleet.envs.options import EnvOptions
from dreamfleet.envs.suites import minecraft
from support.fake_suites import ITEMS, MineWorld, install_minerl


@pytest.fixture(autouse=True)
def library(monkeypatch: pytest.MonkeyPatch) -> None:
    install_minerl(monkeypatch)


def begin(**kwargs: Any) -> tuple[minecraft.Minecraft, MineWorld]:
    env = minecraft.make("diamond", EnvOptions(), 0, **kwargs)
    assert act(env, "noop")["is_first"]
    return env, env._env


def act(env: minecraft.Minecraft, name: str) -> dict[str, Any]:
    action = list(minecraft.ACTIONS).index(name)
    obs = env.step({"action": np.int32(action), "reset": np.bool_(False)})
    assert {key: space.violation(obs[key]) for key, space in env.obs_space.items()} == dict.fromkeys(obs)
    return obs


def test_observations_tell_inventory_equipment_and_condition() -> None:
    env, world = begin()
    world.inventory = {"air": 30, "dirt": 5, "log": 2, "log2": 1}
    world.equipped = "wooden_pickaxe"
    act(env, "noop")
    world.inventory, world.life = {"dirt": 3}, 15
    obs = act(env, "noop")
    held, most = (dict(zip(ITEMS, obs[key].tolist(), strict=True)) for key in ("inventory", "inventory_max"))
    assert {item: count for item, count in held.items() if count} == {"dirt": 3}
    assert {item: count for item, count in most.items() if count} == {"dirt": 5, "log": 3}
    assert obs["equipped"].argmax() == ITEMS.index("wooden_pickaxe")
    assert (obs["health"], obs["hunger"], obs["breath"]) == (0.75, 0.5, 1)
    assert obs["image"].shape == (64, 64, 3)
    world.equipped = "trophy"
    assert act(env, "noop")["equipped"][-1] == 1


def test_each_milestone_is_rewarded_once_per_episode_and_health_counts() -> None:
    env, world = begin(logs=True)
    world.inventory = {"log": 1}
    obs = act(env, "noop")
    assert (obs["reward"], obs["log/achievement/log"], obs["log/achievement/planks"]) == (1, 1, 0)
    world.inventory = {"log": 5, "planks": 4, "diamond": 1, "dirt": 9}
    assert act(env, "noop")["reward"] == 2
    world.inventory, world.life = {"log": 6}, 18
    obs = act(env, "noop")
    assert obs["reward"] == pytest.approx(-0.001)  # a tenth of the health
    assert obs["log/achievement/log"] == 0
    world.over = True
    assert act(env, "noop")["is_terminal"]
    act(env, "noop")
    world.inventory = {"log": 1}
    assert act(env, "noop")["reward"] == 1


def test_dying_terminates_and_the_length_truncates() -> None:
    env, world = begin(length=3)
    flags = [(bool(obs["is_last"]), bool(obs["is_terminal"])) for obs in (act(env, "noop") for _ in range(3))]
    assert flags == [(False, False), (False, False), (True, False)]
    assert act(env, "noop")["is_first"]
    world.over = True
    obs = act(env, "noop")
    assert (obs["is_last"], obs["is_terminal"]) == (True, True)
    assert len(set(world.seeds)) == 2


def test_the_view_stays_between_limits() -> None:
    env, world = begin()
    for _ in range(6):
        act(env, "turn_up")
    act(env, "turn_left")
    cameras = [tuple(action["camera"].tolist()) for action in world.actions]
    assert cameras == [(-15, 0)] * 4 + [(0, 0)] * 2 + [(0, -15)]


def test_a_jump_goes_on_moving_forward() -> None:
    env, world = begin()
    act(env, "jump")
    for _ in range(11):
        act(env, "place_dirt")
    assert [(action["jump"], action["forward"]) for action in world.actions] == [(1, 1)] * 10 + [(0, 0)] * 2
    assert {action["place"] for action in world.actions[1:]} == {"dirt"}


@pytest.mark.parametrize(("break_speed", "held"), [(100.0, 1), (1.0, 30)])
def test_attacks_are_held_only_at_normal_break_speed(break_speed: float, held: int) -> None:
    env, world = begin(break_speed=break_speed)
    act(env, "attack")
    for _ in range(35):
        act(env, "noop")
    assert sum(action["attack"] for action in world.actions) == held


def test_the_world_that_mine_rl_is_asked_for() -> None:
    parts = begin()[1].spec.parts
    (speed,) = parts["agent_start"]
    assert speed.multiplier == 100
    assert speed.xml_template() == "<BreakSpeedMultiplier>{{multiplier}}</BreakSpeedMultiplier>"
    assert begin(break_speed=1)[1].spec.parts["agent_start"] == []
    names = [type(handler).__name__ for handler in parts["actionables"]]
    assert names.count("KeybasedCommandAction") == 8
    place = parts["actionables"][names.index("PlaceBlock")]
    assert (place.args, place.kwargs) == ((["none", *ITEMS],), {"_other": "none", "_default": "none"})


def test_commands_have_every_key_of_mine_rl_and_tasks_are_known() -> None:
    env, world = begin()
    for name in minecraft.ACTIONS:
        act(env, name)
    assert all(action.keys() == minecraft.NOTHING.keys() for action in world.actions)
    assert len(minecraft.ACTIONS) == 25
    with pytest.raises(ConfigError, match="suite 'minecraft' has no task 'diamonds': did you mean minecraft:diamond"):
        minecraft.make("diamonds", EnvOptions(), 0)
