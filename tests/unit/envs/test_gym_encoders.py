"""Parts of Gymnasium's observations that are left out, texts as bits, padded sequences, values in their bounds."""

from __future__ import annotations

import zlib
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from dreamfleet.core.errors import ConfigError, EnvError, SpaceMismatch
from dreamfleet.core.interfaces import EnvBatch
from dreamfleet.core.spaces import Space
from dreamfleet.envs.checks import CheckBatch, CheckSpaces
from dreamfleet.envs.gym.encoders import Encoding
from dreamfleet.envs.gym.env import FLAG_SPACES
from dreamfleet.envs.gym.text import hashed_words
from dreamfleet.envs.options import EnvOptions
from dreamfleet.envs.registry import Made
from support.gym_fakes import Missions, Recorder

ACT = {"action": np.int32(0), "reset": np.False_}
IMAGE = spaces.Box(0, 255, (64, 64, 3), np.uint8)


class Shows(Recorder):
    """Shows these observations, one after the other, and the last one from then on."""

    def __init__(self, space: Any, *observations: Any, rewards: Any = (1.0,)) -> None:
        super().__init__(space, lengths=(3,))
        self._observations = list(observations)
        self._rewards = list(rewards)

    def _draw(self) -> Any:
        return self._observations.pop(0) if len(self._observations) > 1 else self._observations[0]

    def step(self, action: Any) -> Any:
        obs, _, *others = super().step(action)
        return obs, self._rewards.pop(0) if len(self._rewards) > 1 else self._rewards[0], *others


def make(env: Any, seed: int = 3, **options: Any) -> Any:
    adapted = Made(env, "mine", EnvOptions(**options), seed).adapted()
    return CheckBatch(adapted, "mine") if isinstance(adapted, EnvBatch) else CheckSpaces(adapted, "mine")


def seen(env: Any) -> dict[str, Space]:
    return {key: space for key, space in env.obs_space.items() if key not in FLAG_SPACES}


def first(env: Any) -> dict[str, Any]:
    return {key: value for key, value in env.step({**ACT, "reset": np.True_}).items() if key not in FLAG_SPACES}


NESTED = spaces.Dict(
    {
        "arm": spaces.Tuple((spaces.Discrete(3), spaces.Dict({"grip": spaces.MultiBinary(2), "say": spaces.Text(9)}))),
        "reward": spaces.Box(-1, 1, (2,), np.float32),
        "mission": Missions(),
    }
)


@pytest.mark.parametrize(
    ("drop", "left"),
    [
        (["mission", "arm/1/say"], ["arm/0", "arm/1/grip", "obs/reward"]),
        (["mission", "*/say"], ["arm/0", "arm/1/grip", "obs/reward"]),
        (["m*", "arm/1"], ["arm/0", "obs/reward"]),
        (["mission", "arm"], ["obs/reward"]),
        (["mission", "arm/[01]", "nothing", "reward"][:2], ["obs/reward"]),
        (["mission", "obs/reward", "arm/0", "arm/1/say"], ["arm/1/grip"]),
    ],
)
def test_observations_are_dropped_by_name_group_and_glob_and_the_others_keep_theirs(drop: Any, left: Any) -> None:
    env = make(Recorder(NESTED), drop=tuple(drop))
    assert sorted(seen(env)) == left
    for _ in range(8):
        assert sorted(env.step(ACT).keys() - FLAG_SPACES) == left


def test_what_is_left_has_the_values_that_it_has_without_drops() -> None:
    space = spaces.Dict({"a": spaces.Tuple((spaces.Discrete(5), spaces.Box(-1, 1, (3,)))), "image": IMAGE})
    plain, dropped = make(Recorder(space)), make(Recorder(space), drop=("a/0",))
    for _ in range(5):
        expected, found = plain.step(ACT), dropped.step(ACT)
        assert found.keys() == expected.keys() - {"a/0"}
        for key, value in found.items():
            if key != "reward":
                np.testing.assert_array_equal(value, expected[key])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"drop": ("misson",)}, "env.drop: 'misson' matches no observation of mine: did you mean 'mission'"),
        (
            {"drop": ("xyz*",)},
            "env.drop: 'xyz*' matches no observation of mine: there are arm/0, arm/1/grip, arm/1/say, mission, obs/rew",
        ),
        ({"drop": ("*",)}, r"env.drop=['*'] leaves no observation of mine: keep one of them"),
        ({"text": {"obs/reward": 8}}, "env.text: 'obs/reward' matches no text of mine: there are arm/1/say, mission"),
        ({"pad": {"mission": 8}}, "env.pad: 'mission' matches no Sequence space of mine: there are none"),
    ],
)
def test_a_pattern_that_matches_nothing_is_refused_with_what_there_is(options: Any, message: str) -> None:
    env = Recorder(NESTED)
    with pytest.raises(ConfigError) as raised:
        make(env, **options)
    assert message in str(raised.value)
    assert env.closed


def test_an_undeclared_key_is_still_an_error_beside_a_dropped_one() -> None:
    space = spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Text(3)})
    env = make(Shows(space, {"a": 1, "b": "x", "c": 2}), drop=("b",))
    with pytest.raises(SpaceMismatch, match=r"differ in the keys \['c'\]"):
        first(env)
    with pytest.raises(SpaceMismatch, match=r"differ in the keys \['a'\]"):
        first(make(Shows(space, {"b": "x"}), drop=("b",)))


def bits(width: int, *parts: str) -> list[int]:
    return sorted({zlib.crc32(part.encode()) % width for part in parts})


def test_a_text_becomes_its_words_and_their_neighbours() -> None:
    found = hashed_words("Go to the RED ball!", 1000)
    parts = ["go", "to", "the", "red", "ball", "go to", "to the", "the red", "red ball"]
    assert np.flatnonzero(found).tolist() == bits(1000, *parts)
    assert found.shape == (1000,)
    assert found.dtype == bool
    assert not hashed_words("", 16).any()
    assert hashed_words("\ud800 \u00e9", 16).any()
    assert (hashed_words("red ball, blue key", 512) != hashed_words("blue ball, red key", 512)).any()


@pytest.mark.parametrize("space", [spaces.Text(40), Missions()])
def test_texts_arrive_as_bits_of_a_fixed_number(space: Any) -> None:
    nested = spaces.Dict({"task": spaces.Dict({"say": space}), "size": spaces.Discrete(3)})
    env = make(Shows(nested, {"task": {"say": "get the key"}, "size": 2}), text={"task/say": 64})
    assert seen(env) == {"task/say": Space(bool, (64,)), "size": Space(np.int32, (), 0, 3)}
    expected = bits(64, "get", "the", "key", "get the", "the key")
    assert np.flatnonzero(first(env)["task/say"]).tolist() == expected


def test_a_text_alone_is_an_observation_too() -> None:
    env = make(Shows(spaces.Text(9), "a b"), text={"obs": 32})
    assert np.flatnonzero(first(env)["obs"]).tolist() == bits(32, "a", "b", "a b")


def test_the_last_pattern_for_a_text_counts() -> None:
    space = spaces.Dict({"a": spaces.Text(3), "b": spaces.Text(3)})
    env = make(Recorder(space), text={"*": 8, "b": 16})
    assert seen(env) == {"a": Space(bool, (8,)), "b": Space(bool, (16,))}


def test_what_is_no_text_is_named() -> None:
    env = make(Shows(spaces.Dict({"a": spaces.Text(3)}), {"a": 5}), text={"a": 8})
    with pytest.raises(SpaceMismatch, match="mine: observation 'a' is a int: return text"):
        first(env)


CARS = spaces.Sequence(
    spaces.Dict({"at": spaces.Box(1.0, 5.0, (2,), np.float32), "kind": spaces.Discrete(3, start=4), "say": Missions()})
)


def car(x: float, kind: int, say: str = "") -> dict[str, Any]:
    return {"at": np.array([x, x + 1], np.float32), "kind": kind, "say": say}


def test_a_sequence_is_padded_to_its_length_with_a_mask() -> None:
    space = spaces.Dict({"cars": CARS, "n": spaces.Discrete(2)})
    shown = [(car(1, 4), car(2, 6, "stop")), (), tuple(car(k, 5) for k in (1, 2, 3, 4))]
    env = make(
        Shows(space, *({"cars": cars, "n": 1} for cars in shown)), pad={"cars": 3}, text={"cars/say": 16}, time_limit=9
    )
    assert seen(env) == {
        "cars/at": Space(np.float32, (3, 2), 1, 5),
        "cars/kind": Space(np.int32, (3,), 4, 7),
        "cars/say": Space(np.int32, (3, 16), 0, 2),
        "cars/mask": Space(bool, (3,)),
        "n": Space(np.int32, (), 0, 2),
    }
    two, none, four = (dict(env.step(ACT)) for _ in range(3))
    assert two["cars/mask"].tolist() == [True, True, False]
    assert two["cars/at"].tolist() == [[1, 2], [2, 3], [1, 1]]  # zero is out of bounds: the closest to it
    assert two["cars/kind"].tolist() == [4, 6, 4]
    assert np.flatnonzero(two["cars/say"]).tolist() == [16 + bit for bit in bits(16, "stop")]
    assert none["cars/mask"].tolist() == [False] * 3
    assert four["cars/mask"].tolist() == [True] * 3
    assert four["cars/at"][:, 0].tolist() == [1, 2, 3]


@pytest.mark.parametrize("stack", [False, True])
@pytest.mark.parametrize(
    "feature",
    [
        spaces.Box(-1, 1, (3,), np.float32),
        spaces.Box(-3, 3, (), np.int64),
        spaces.Discrete(4),
        spaces.MultiDiscrete([2, 3]),
        spaces.MultiBinary(2),
        spaces.Tuple((spaces.Discrete(2), spaces.Box(0, 1, (2, 2)))),
    ],
    ids=str,
)
def test_every_kind_of_sequence_is_padded(feature: Any, stack: bool) -> None:
    space = spaces.Sequence(feature, stack=stack)
    inner = Recorder(space)
    env = make(inner, pad={"obs": 4})
    inner.observation_space.seed(5)
    for _ in range(12):
        step = env.step(ACT)
        shown = inner.returned[-1]
        sample = shown[0] if stack and isinstance(feature, spaces.Tuple) else shown
        assert step["obs/mask"].tolist() == [place < len(sample) for place in range(4)]
        if isinstance(feature, spaces.Box | spaces.Discrete):
            kept = np.asarray(shown)[:4]
            np.testing.assert_array_equal(step["obs"][: len(kept)], kept)
            assert not step["obs"][len(kept) :].any()


def test_a_part_of_a_sequence_can_be_dropped() -> None:
    env = make(Recorder(spaces.Dict({"cars": CARS})), pad={"cars": 2}, drop=("cars/say",))
    assert sorted(seen(env)) == ["cars/at", "cars/kind", "cars/mask"]
    env.step(ACT)


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.Dict({"a": spaces.Sequence(spaces.Text(3))}), "at 'a' is Text.*env.text={a: 128}"),
        (spaces.Dict({"a": spaces.Sequence(spaces.Sequence(spaces.Discrete(2)))}), "'a' is a Sequence of Sequences"),
        (spaces.Dict({"a": spaces.Sequence(spaces.Discrete(2)), "a/mask": spaces.Discrete(2)}), "'a/mask' is there tw"),
    ],
)
def test_sequences_that_cannot_be_padded_are_refused(space: Any, message: str) -> None:
    with pytest.raises((EnvError, ConfigError), match=message):
        make(Recorder(space), pad={"a": 2})


@pytest.mark.parametrize("value", [5, (np.zeros(3),), {"a": 1}, np.zeros((2, 3))])
def test_a_value_that_is_no_sequence_of_its_space_is_named(value: Any) -> None:
    space = spaces.Sequence(spaces.Box(-1, 1, (2,), np.float32))
    with pytest.raises(SpaceMismatch, match=r"mine: observation 'obs' is not a value of its space: .*: return what"):
        first(make(Shows(space, value), pad={"obs": 4}))


BOUNDED = spaces.Dict(
    {
        "x": spaces.Box(np.float32([0, -np.inf]), np.float32([1, 2])),
        "bytes": spaces.Box(0, 5, (2,), np.uint8),
        "n": spaces.Discrete(3, start=-1),
        "pair": spaces.Tuple((spaces.MultiDiscrete([2, 3]), spaces.MultiBinary(2))),
    }
)
OUTSIDE = {
    "x": np.float32([1.0000001, 9]),
    "bytes": np.uint8([5, 200]),
    "n": 7,
    "pair": (np.array([-4, 2]), np.array([0, 3], np.int8)),
}


def test_values_are_clipped_into_their_bounds() -> None:
    found = first(make(Shows(BOUNDED, OUTSIDE), clip=True))
    assert found["x"].tolist() == [1, 2]
    assert found["bytes"].tolist() == [5, 5]
    assert found["n"] == 1
    assert found["pair/0"].tolist() == [0, 2]
    assert found["pair/1"].tolist() == [False, True]


@pytest.mark.parametrize(("key", "value"), [("x", 1.0000001), ("bytes", 200), ("n", 7)])
def test_a_value_out_of_bounds_is_an_error_that_names_the_way_out(key: str, value: float) -> None:
    space = spaces.Dict({key: BOUNDED[key]})
    with pytest.raises(SpaceMismatch, match=rf"'{key}' has value {value}.* above .*, or set env\.clip=true to clip it"):
        first(make(Shows(space, {key: OUTSIDE[key]})))


def test_a_value_of_a_scaled_image_out_of_bounds_names_the_way_out_too() -> None:
    space, value = spaces.Box(0, 1, (64, 64), np.float32), np.full((64, 64), 1.5, np.float32)
    with pytest.raises(
        SpaceMismatch, match=r"'image' has value 1.5 at \[0, 0\] above 1.0: .*, or set env\.clip=true to clip it"
    ):
        first(make(Shows(space, value)))
    assert first(make(Shows(space, value), clip=True))["image"].min() == 255


def test_nan_and_wrong_shapes_stay_errors() -> None:
    space = spaces.Box(0, 1, (2,), np.float32)
    with pytest.raises(SpaceMismatch, match=r"'obs' has NaN at \[0\]: look for what divides by zero"):
        first(make(Shows(space, np.float32([np.nan, 3])), clip=True))
    with pytest.raises(SpaceMismatch, match=r"shape \(3,\) instead of \(2,\)"):
        first(make(Shows(space, np.float32([1, 2, 3])), clip=True))


MIXED = spaces.Dict(
    {
        "say": Missions(),
        "cars": CARS,
        "x": spaces.Box(0, 1, (2,), np.float32),
        "pair": spaces.Tuple((spaces.Text(9), spaces.Discrete(4), spaces.Sequence(spaces.Discrete(3)))),
    }
)
OPTIONS = {
    "drop": ("pair/0",),
    "text": {"say": 16, "cars/say": 8},
    "pad": {"cars": 2, "pair/2": 3},
    "clip": True,
}


class Leaving(Recorder):
    def _draw(self) -> Any:
        obs = super()._draw()
        return {**obs, "x": obs["x"] * 2}


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_rows_of_a_vectorised_environment_are_encoded_as_alone(mode: AutoresetMode) -> None:
    lengths = [(2, 3), (3,)]
    vector = SyncVectorEnv([partial(Leaving, MIXED, lengths=row) for row in lengths], autoreset_mode=mode)
    env = make(vector, **OPTIONS)
    alone = [make(Leaving(MIXED, lengths=row), 3 + number, **OPTIONS) for number, row in enumerate(lengths)]
    rows: list[list[Any]] = [[], []]
    reset = np.ones(2, bool)
    while min(map(len, rows)) < 12:
        step = env.step({"action": np.zeros(2, np.int32), "reset": reset})
        begun = env.begun().copy()
        for row, found in enumerate(rows):
            found.append({key: value[row] for key, value in step.items()})
        reset = step["is_last"] & ~begun
        if begun.any():
            beginning = env.first()
            for row in np.flatnonzero(begun):
                rows[row].append({key: value[row] for key, value in beginning.items()})
    for row, (found, single) in enumerate(zip(rows, alone, strict=True)):
        for number in range(12):
            expected = single.step(ACT)
            assert found[number].keys() == expected.keys()
            for key, value in expected.items():
                if key != "reward":
                    np.testing.assert_array_equal(found[number][key], value, f"row {row}, step {number}, {key}")
    env.close()


def test_an_environment_of_other_kinds_of_rows_says_which_observation() -> None:
    class Short(SyncVectorEnv):
        def reset(self, **kwargs: Any) -> Any:
            obs, info = super().reset(**kwargs)
            return {**obs, "say": obs["say"][:1]}, info

    space = spaces.Dict({"say": spaces.Text(3)})
    env = make(Short([partial(Recorder, space)] * 2), text={"say": 8})
    with pytest.raises(SpaceMismatch, match="'say' is not a value of its space: 1 rows instead of 2"):
        env.step({"action": np.zeros(2, np.int32), "reset": np.ones(2, bool)})


def test_everything_else_of_the_environment_is_still_there() -> None:
    inner = gymnasium.make("CartPole-v1")
    made = Made(inner, "mine", EnvOptions(clip=True), 3).prepared()
    assert made.made.spec.id == "CartPole-v1"
    assert made.made.unwrapped is inner.unwrapped
    assert made.options == EnvOptions()
    assert made.prepared().made is made.made
    made.made.close()


def test_a_key_with_characters_of_a_glob_is_found_by_its_own_name() -> None:
    space = spaces.Dict({"a[0]": spaces.Text(4), "b": spaces.Box(0, 1, (2,), np.float32)})
    assert list(Encoding(space, "mine", EnvOptions(drop=("a[0]",))).space.spaces) == ["b"]
