"""A policy without Gymnasium makes of observations and actions in all its spaces what the adapter makes of them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces as gym

from dreamfleet.agent.policy_file import Policy, PolicyError, build_action
from dreamfleet.envs.gym_actions import Actions
from dreamfleet.envs.gym_spaces import Observations
from dreamfleet.envs.options import EnvOptions
from dreamfleet.launch.gym_description import describe_action, describe_observation

ACTIONS = [
    gym.Discrete(4, start=-1),
    gym.MultiDiscrete([3, 2], start=[1, 5]),
    gym.MultiBinary(3),
    gym.Box(-2.0, 3.0, (2,), np.float64),
    gym.Box(np.float32([-np.inf, 0.0]), np.float32([np.inf, np.inf])),
    gym.Box(-3, 5, (2,), np.int8),
    gym.Dict(arm=gym.Tuple([gym.Discrete(2), gym.Box(-1.0, 5.0, (1,))]), grip=gym.Discrete(3)),
]
OBSERVATIONS = [
    gym.Box(-1.0, 1.0, (3,)),
    gym.Discrete(7),
    gym.Box(0, 255, (64, 64, 3), np.uint8),
    gym.Box(0, 255, (3, 64, 64), np.uint8),
    gym.Box(0, 255, (64, 64), np.uint8),
    gym.Box(0, 255, (4, 64, 64, 3), np.uint8),
    gym.Box(0.0, 1.0, (3, 64, 64)),
    gym.Box(0, 255, (64, 64, 3), np.int32),
    gym.Box(0, 9, (4, 6), np.uint8),
    gym.Discrete(10**6),
    gym.Dict(inner=gym.Dict(a=gym.Box(0.0, 1.0, (2,))), reward=gym.Discrete(3), pair=gym.Tuple([gym.MultiBinary(2)])),
]


@pytest.mark.parametrize("space", ACTIONS, ids=str)
def test_actions_are_those_of_the_adapter(space) -> None:
    adapter = Actions(space, "env")
    tree = json.loads(json.dumps(describe_action(space, "env")))
    rng = np.random.default_rng(0)
    for _ in range(5):
        chosen = {
            key: 1.5 * inner.sample(rng) if inner.dtype.kind == "f" else inner.sample(rng)
            for key, inner in adapter.spaces.items()
        }
        expect_equal(build_action(tree, chosen), adapter(chosen))


@pytest.mark.parametrize("space", OBSERVATIONS, ids=str)
@pytest.mark.parametrize("rows", [None, 3])
def test_observations_are_those_of_the_adapter(space, rows) -> None:
    adapter = Observations(space, "env", EnvOptions(), [], rows)
    paths, layouts = json.loads(json.dumps(describe_observation(space, "env", EnvOptions())))
    seen: list[Any] = []
    policy = make_policy(adapter, paths, layouts, seen)
    space.seed(0)
    samples = [space.sample() for _ in range(rows or 1)]
    obs = samples[0] if rows is None else stack(samples)
    policy(obs)
    for key, value in adapter(obs).items():
        found = seen[0][key] if rows else seen[0][key][0]
        expect_equal(found, np.asarray(value))


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float64])
@pytest.mark.parametrize("shape", [(48, 48), (48, 48, 3)])
def test_what_the_run_reads_as_an_image_is_scaled_as_by_the_adapter(dtype, shape) -> None:
    space, options = gym.Box(2, 17, shape, dtype), EnvOptions(read={"obs": "image"})
    adapter = Observations(space, "env", options, [])
    seen: list[Any] = []
    policy = make_policy(adapter, *json.loads(json.dumps(describe_observation(space, "env", options))), seen)
    obs = space.sample()
    policy(obs)
    expect_equal(seen[0]["obs"][0], adapter(obs)["obs"])
    with pytest.raises(PolicyError, match="outside of 2 to 17"):
        policy(np.zeros_like(obs))


def test_an_image_of_another_size_is_refused() -> None:
    space = gym.Box(0, 255, (64, 64, 3), np.uint8)
    adapter = Observations(space, "env", EnvOptions(), [])
    policy = make_policy(adapter, *describe_observation(space, "env", EnvOptions()), [])
    with pytest.raises(PolicyError, match=r"'image' has shape \(96, 96, 3\), the policy takes \(64, 64, 3\)"):
        policy(np.zeros((96, 96, 3), np.uint8))


def make_policy(adapter: Observations, paths: Any, layouts: Any, seen: list[Any]) -> Policy:
    about = {
        "obs_space": {key: space.to_json() for key, space in adapter.spaces.items()},
        "act_space": {},
        "observation": paths,
        "layouts": layouts,
        "action": None,
        "seed": 0,
        "calls": 0,
        "key_words": 2,
    }

    def step(carry: Any, obs: Any, seeds: Any) -> Any:
        seen.append(obs)
        return carry, {}

    return Policy(about, lambda rows: None, step)


def stack(samples: list[Any]) -> Any:
    first = samples[0]
    if isinstance(first, dict):
        return {key: stack([one[key] for one in samples]) for key in first}
    if isinstance(first, tuple):
        return tuple(stack([one[part] for one in samples]) for part in range(len(first)))
    return np.stack(samples)


def expect_equal(found: Any, wanted: Any) -> None:
    assert type(found) is type(wanted) or not isinstance(wanted, dict | tuple)
    if isinstance(wanted, dict):
        assert found.keys() == wanted.keys()
        for key in wanted:
            expect_equal(found[key], wanted[key])
    elif isinstance(wanted, tuple):
        for one, other in zip(found, wanted, strict=True):
            expect_equal(one, other)
    else:
        assert np.asarray(found).dtype == np.asarray(wanted).dtype
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
