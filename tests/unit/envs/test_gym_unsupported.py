"""The message about an observation that no agent can use names it and all that a user can do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

from dreamfleet.core.errors import EnvError
from dreamfleet.envs.options import EnvOptions
from dreamfleet.envs.registry import Made
from support.gym_fakes import Missions, Recorder

CHANGE = "change it with env.wrappers=[module:Class]"


def refusal(space: Any, name: str = "mine", rows: int = 0) -> str:
    make = lambda: Recorder(space)  # noqa: E731
    env = SyncVectorEnv([make] * rows) if rows else make()
    with pytest.raises(EnvError) as raised:
        Made(env, name, EnvOptions(), 0).adapted()
    return str(raised.value)


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (
            spaces.Text(3),
            "is Text, which an agent cannot use: text has no fixed number of values: encode it with env.text={a/b: "
            f"128}}, leave it out with env.drop=[a/b], or {CHANGE}",
        ),
        (
            Missions(),
            f"is text ({Missions.__module__}.Missions), which an agent cannot use: text has no fixed number of values: "
            f"encode it with env.text={{a/b: 128}}, leave it out with env.drop=[a/b], or {CHANGE}",
        ),
        (
            spaces.Sequence(spaces.Discrete(2)),
            "is Sequence, which an agent cannot use: its length changes from step to step: pad it with env.pad={a/b: "
            f"16}}, leave it out with env.drop=[a/b], or {CHANGE}",
        ),
        (
            spaces.Graph(spaces.Discrete(2), None),
            "is Graph, which an agent cannot use: its size changes from step to step: pad nodes and edges to fixed "
            "shapes with env.wrappers=[module:Class], or leave it out with env.drop=[a/b]",
        ),
        (
            spaces.OneOf([spaces.Discrete(2), spaces.Discrete(3)]),
            "is OneOf, which an agent cannot use: which space holds changes from step to step: use a Dict of all of "
            "them with env.wrappers=[module:Class], or leave it out with env.drop=[a/b]",
        ),
        (
            spaces.Box(0, 1, (2, 0)),
            f"has shape (2, 0), which holds nothing: remove it, leave it out with env.drop=[a/b], or {CHANGE}",
        ),
        (
            spaces.Space(),
            "is a gymnasium.spaces.space.Space: use a space of gymnasium.spaces (Box, Discrete, MultiDiscrete, ...), "
            f"leave it out with env.drop=[a/b], or {CHANGE}",
        ),
    ],
)
def test_an_observation_comes_with_its_key_and_every_way_out(space: Any, message: str) -> None:
    nested = spaces.Dict({"a": spaces.Dict({"b": space}), "c": spaces.Discrete(2)})
    assert refusal(nested) == f"mine: observation_space at 'a/b' {message}"


def test_rows_of_a_vectorised_environment_get_the_same_message() -> None:
    space = spaces.Dict({"say": spaces.Text(3), "c": spaces.Discrete(2)})
    assert refusal(space, rows=2) == refusal(space)


def test_a_key_that_the_fleet_needs_itself_is_named_as_it_must_be_written() -> None:
    space = spaces.Dict({"reward": spaces.Text(3), "c": spaces.Discrete(2)})
    assert "env.drop=[obs/reward]" in refusal(space)
    env = Made(Recorder(space), "mine", EnvOptions(drop=("obs/reward",)), 0).adapted()
    assert "obs/reward" not in env.obs_space


def test_a_single_observation_cannot_be_left_out() -> None:
    message = refusal(spaces.Text(3))
    assert "encode it with env.text={obs: 128}, or change it" in message
    assert "env.drop" not in message


@pytest.mark.parametrize(
    ("name", "task"),
    [
        ("gym:MiniGrid-Empty-5x5-v0", "minigrid:MiniGrid-Empty-5x5-v0"),
        ("gym:minigrid:BabyAI-GoToObj-v0", "minigrid:BabyAI-GoToObj-v0"),
    ],
)
def test_the_suite_that_has_the_task_is_named(name: str, task: str) -> None:
    space = spaces.Dict({"mission": Missions(), "direction": spaces.Discrete(4)})
    assert refusal(space, name).endswith(f"{CHANGE}, or take {task}, the same task as an agent can use it")
    assert "the same task" not in refusal(space, "gym:Vizdoom-v0")
    assert "the same task" not in refusal(space, "my_package:MiniGrid-Empty")


def test_an_action_can_only_be_changed_by_a_wrapper() -> None:
    env = Recorder(action_space=spaces.Dict({"say": spaces.Text(3)}))
    with pytest.raises(EnvError) as raised:
        Made(env, "mine", EnvOptions(), 0).adapted()
    assert str(raised.value) == (
        "mine: action_space at 'say' is Text, which an agent cannot use: text has no fixed number of values: encode it "
        "as numbers of a fixed shape with env.wrappers=[module:Class]"
    )


def test_what_is_dropped_need_not_be_usable() -> None:
    space = spaces.Dict({"a": spaces.Graph(spaces.Discrete(2), None), "b": spaces.Space(), "c": spaces.Dict({}),
                         "d": spaces.Box(0, 1, (0,)), "e": spaces.Discrete(2)})  # fmt: skip
    shown = {"a": None, "b": object(), "c": {}, "d": np.zeros(0, np.float32), "e": 1}
    env = Made(Recorder(space), "mine", EnvOptions(drop=("[a-d]",)), 0).prepared().made
    env._env._draw = lambda: shown  # type: ignore[method-assign]
    assert env.reset()[0] == {"e": 1}
