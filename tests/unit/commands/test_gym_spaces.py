"""A policy without Gymnasium makes of observations and actions in all its spaces what the adapter makes of them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces as gym
from gymnasium.vector.utils import batch_space

from dreamfleet.agent.export.policy_file import Policy, PolicyError, build_action
from dreamfleet.commands.evaluate.gym_spaces import describe_action, describe_observation
from dreamfleet.envs.gym.actions import Actions
from dreamfleet.envs.gym.encoders import Encoding
from dreamfleet.envs.gym.observations import Observations
from dreamfleet.envs.options import EnvOptions
from support.gym_fakes import Missions

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
    described = json.loads(json.dumps(describe_observation(space, "env", EnvOptions())))
    seen: list[Any] = []
    policy = make_policy(adapter, *described, seen)
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


CAR = gym.Dict(at=gym.Box(1.0, 5.0, (2,)), kind=gym.Discrete(3), say=Missions())
MIXED = gym.Dict(
    mission=Missions(),
    x=gym.Box(-1.0, 1.0, (2,)),
    n=gym.Discrete(3, start=-1),
    cars=gym.Sequence(CAR),
    stacked=gym.Sequence(gym.Box(-1.0, 1.0, (2,)), stack=True),
    pair=gym.Tuple([gym.Text(9), gym.Box(0, 9, (2,), np.int16), gym.Sequence(gym.Discrete(4, start=2))]),
)
ENCODED = [
    (MIXED, EnvOptions(drop=("pair/0", "cars/kind"), text={"*": 8, "mission": 16}, pad={"*": 3}, clip=True)),
    (MIXED, EnvOptions(drop=("cars", "pair", "stacked", "mission"))),
    (gym.Text(9), EnvOptions(text={"obs": 16})),
    (gym.Sequence(gym.Box(-1.0, 1.0, (2,))), EnvOptions(pad={"obs": 4})),
    (gym.Sequence(gym.Discrete(4), stack=True), EnvOptions(pad={"obs": 4})),
    (gym.Box(np.float32([0, -np.inf]), np.float32([1, 2])), EnvOptions(clip=True)),
    (gym.Box(np.float32([-np.inf, -np.inf]), np.float32([1, 2])), EnvOptions(clip=True)),
    (gym.Box(0, 5, (2,), np.uint8), EnvOptions(clip=True)),
    (gym.Box(0.0, 1.0, (48, 48, 3)), EnvOptions(clip=True)),
]


@pytest.mark.parametrize(("space", "options"), ENCODED)
@pytest.mark.parametrize("rows", [None, 3])
def test_observations_are_encoded_as_by_the_adapter(space, options, rows) -> None:
    encode = Encoding(space, "env", options, rows)
    adapter = Observations(encode.space, "env", EnvOptions(), [], rows)
    seen: list[Any] = []
    described = json.loads(json.dumps(describe_observation(space, "env", options)))
    policy = make_policy(adapter, *described, seen, options.clip)
    batched = batch_space(space, rows or 1)
    batched.seed(1)
    space.seed(1)
    for _ in range(8):
        obs = space.sample() if rows is None else batched.sample()
        if options.clip and isinstance(space, gym.Dict):
            obs = {**obs, "x": obs["x"] * 2, "n": obs["n"] + 1}
        elif options.clip:
            obs = obs * 3
        policy(obs)
        for key, value in adapter(encode(obs)).items():
            expect_equal(seen[-1][key] if rows else seen[-1][key][0], np.asarray(value))


def test_encoded_observations_are_taken_by_their_names_too() -> None:
    options = EnvOptions(text={"mission": 16}, pad={"cars": 2}, drop=("cars/say",))
    space = gym.Dict(mission=Missions(), cars=gym.Sequence(CAR))
    encode = Encoding(space, "env", options)
    adapter = Observations(encode.space, "env", EnvOptions(), [])
    seen: list[Any] = []
    policy = make_policy(adapter, *describe_observation(space, "env", options), seen)
    arrays = adapter(encode({"mission": "get the key", "cars": (CAR.sample(),)}))
    policy(arrays)
    for key, value in arrays.items():
        expect_equal(seen[0][key][0], np.asarray(value))


@pytest.mark.parametrize(
    ("obs", "message"),
    [
        ({"mission": 5, "cars": ()}, "observation 'mission' has shape"),
        ({"mission": "go", "cars": 5}, "observation 'cars.*' is not a sequence as the environment shows it"),
        ({"mission": "go", "cars": ({"at": 1},)}, "observation 'cars.*' is not a sequence as the environment shows it"),
    ],
)
def test_what_cannot_be_encoded_is_refused(obs, message) -> None:
    options = EnvOptions(text={"mission": 16}, pad={"cars": 2}, drop=("cars/say",))
    space = gym.Dict(mission=Missions(), cars=gym.Sequence(CAR))
    adapter = Observations(Encoding(space, "env", options).space, "env", EnvOptions(), [])
    policy = make_policy(adapter, *describe_observation(space, "env", options), [])
    with pytest.raises(PolicyError, match=message):
        policy(obs)


def make_policy(
    adapter: Observations, paths: Any, layouts: Any, encodings: Any, seen: list[Any], clip: bool = False
) -> Policy:
    about = {
        "obs_space": {key: space.to_json() for key, space in adapter.spaces.items()},
        "act_space": {},
        "observation": paths,
        "layouts": layouts,
        "encodings": encodings,
        "clip": clip,
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
