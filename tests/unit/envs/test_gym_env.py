"""Gymnasium environments one at a time: spaces, actions, flags, infos, and what is said of those that do it wrong."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from dreamfleet.core.errors import DreamfleetError, EnvError, SpaceMismatch
from dreamfleet.core.spaces import Space
from dreamfleet.envs.checks import CheckSpaces
from dreamfleet.envs.gym.env import GymnasiumEnv
from dreamfleet.envs.options import EnvOptions
from support import gym_fakes
from support.gym_fakes import NO_OPTIONS, SPACES, Recorder, action_of

FLAGS = {"reward", "is_first", "is_last", "is_terminal"}
BEGIN = {"reset": np.True_}


def wrap(env: Any, options: EnvOptions = NO_OPTIONS, seed: int = 0) -> GymnasiumEnv:
    return GymnasiumEnv(env, "mine", options, seed, [])


def parts(space: Any, value: Any, path: str = "") -> dict[str, Any]:
    """The arrays inside a nested value, by path."""
    if isinstance(space, spaces.Dict):
        inner = [(key, space[key], value[key]) for key in space]
    elif isinstance(space, spaces.Tuple):
        inner = [(str(i), part, value[i]) for i, part in enumerate(space)]
    else:
        return {path: value}
    return {k: v for key, part, item in inner for k, v in parts(part, item, f"{path}/{key}").items()}


@pytest.mark.parametrize("kind", SPACES)
def test_every_action_that_arrives_belongs_to_the_action_space(kind: str) -> None:
    inner = Recorder(action_space=SPACES[kind])
    env = wrap(inner)
    rng = np.random.default_rng(0)
    env.step(BEGIN)
    for _ in range(30):
        env.step(action_of(env.act_space, rng))
    for action in inner.received:
        assert inner.action_space.contains(action)
        template = parts(inner.action_space, inner.action_space.sample())
        for path, value in parts(inner.action_space, action).items():
            assert type(value) is type(template[path])
            assert value.dtype == template[path].dtype


@pytest.mark.parametrize("kind", SPACES)
def test_every_value_of_the_observation_arrives_under_its_path(kind: str) -> None:
    inner = Recorder(observation_space=SPACES[kind])
    env = CheckSpaces(wrap(inner), "mine")
    inner.observation_space.seed(1)
    obs: Any = env.step(BEGIN)
    for _ in range(10):
        expected = parts(inner.observation_space, inner.returned[-1])
        found = {key: value for key, value in obs.items() if key not in FLAGS}
        assert found.keys() == {path[1:] or "obs" for path in expected}
        for path, value in expected.items():
            np.testing.assert_array_equal(found[path[1:] or "obs"], np.asarray(value, np.float32))
        obs = env.step({"action": np.int32(1), "reset": np.False_})


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (spaces.Discrete(4), Space(np.int32, (), 0, 4)),
        (spaces.Discrete(4, start=-2), Space(np.int32, (), -2, 2)),
        (spaces.MultiDiscrete([2, 5], start=[-1, 10]), Space(np.int32, (2,), [-1, 10], [1, 15])),
        (spaces.MultiBinary([2, 3]), Space(bool, (2, 3))),
        (spaces.Box(0, 255, (4,), np.uint8), Space(np.int32, (4,), 0, 256)),
        (spaces.Box(-1000, 1000, (4,), np.int64), Space(np.float32, (4,), -1000, 1000)),
        (spaces.Box(-2, 2, (2, 3), np.float64), Space(np.float32, (2, 3), -2, 2)),
        (spaces.Box(-1e300, 5.0, (2,), np.float64), Space(np.float32, (2,), -np.inf, 5)),
        (spaces.Box(0, 1, (2,), np.bool_), Space(bool, (2,))),
    ],
)
def test_the_agent_sees_the_observation_space_as(space: Any, expected: Space) -> None:
    assert wrap(Recorder(observation_space=space)).obs_space["obs"] == expected


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (spaces.Discrete(4, start=-2), Space(np.int32, (), 0, 4)),
        (spaces.MultiDiscrete([2, 5], start=[-1, 10]), Space(np.int32, (2,), 0, [2, 5])),
        (spaces.MultiBinary(3), Space(bool, (3,))),
        (spaces.Box(np.array([-2, 5]), np.array([3, 9]), dtype=np.int64), Space(np.int32, (2,), 0, [6, 5])),
        (spaces.Box(-7, 3, (2,), np.float64), Space(np.float32, (2,), -1, 1)),
        (spaces.Box(-np.inf, np.inf, (2,)), Space(np.float32, (2,))),
        (
            spaces.Box(np.array([0.0, -np.inf, -1.0]), np.array([np.inf, 1.0, 3.0]), dtype=np.float64),
            Space(np.float32, (3,), [0, -np.inf, -1], [np.inf, 1, 1]),
        ),
    ],
)
def test_the_agent_sees_the_action_space_as(space: Any, expected: Space) -> None:
    env = wrap(Recorder(action_space=space))
    assert env.act_space == {"action": expected, "reset": Space(bool)}


def test_bounded_actions_are_scaled_and_clipped_and_open_ones_pass() -> None:
    bounds = np.array([[-3.0, 1.0], [0.0, np.inf], [-np.inf, 2.0], [-np.inf, np.inf]])
    inner = Recorder(action_space=spaces.Box(bounds[:, 0], bounds[:, 1], dtype=np.float64))
    env = wrap(inner)
    env.step(BEGIN)
    for action in ([0, 3, 1, 9], [-1, -4, 5, -9], [2, 0, 0, 0], [0.5, 0, 0, 0]):
        env.step({"action": np.array(action, np.float32), "reset": np.False_})
    expected = [[-1, 3, 1, 9], [-3, 0, 2, -9], [1, 0, 0, 0], [0, 0, 0, 0]]
    np.testing.assert_array_equal(inner.received, expected)


def test_integers_are_counted_from_the_start_of_their_space() -> None:
    inner = Recorder(action_space=spaces.Dict({"a": SPACES["discrete_start"], "b": SPACES["box_integers"]}))
    env = wrap(inner)
    env.step(BEGIN)
    env.step({"action/a": np.int32(3), "action/b": np.array([0, 4], np.int32), "reset": np.False_})
    assert inner.received[0]["a"] == 1
    assert inner.received[0]["b"].tolist() == [-2, 9]


def test_keys_that_the_fleet_needs_move_out_of_the_way() -> None:
    names = ["reward", "reset", "stepid", "is_first", "log/x", "dyn/deter", "action", "action_mask", "free"]
    env = wrap(Recorder(observation_space=spaces.Dict({name: spaces.Discrete(2) for name in names})))
    moved = {f"obs/{name}" for name in names[:-1]} | {"free"}
    assert env.obs_space.keys() - FLAGS == moved
    assert env.step(BEGIN).keys() - FLAGS == moved


@pytest.mark.parametrize("which", ["observation_space", "action_space"])
@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.Text(5), "is Text, which an agent cannot use: .*encode it"),
        (spaces.Sequence(spaces.Discrete(2)), "is Sequence, .*pad it"),
        (spaces.Graph(spaces.Discrete(2), None), "is Graph, .*pad nodes"),
        (spaces.OneOf([spaces.Discrete(2), spaces.Discrete(3)]), "is OneOf"),
        (spaces.Box(0, 1, (2, 0)), r"has shape \(2, 0\), which holds nothing"),
        (spaces.Dict({}), "is an empty Dict"),
        (spaces.Dict({"a": spaces.Tuple((spaces.Discrete(2), spaces.Text(3)))}), "at 'a/1' is Text"),
        (spaces.Dict({"a/b": spaces.Discrete(2), "a": spaces.Dict({"b": spaces.Discrete(2)})}), "two parts .*'.*a/b'"),
        (object(), "is a builtins.object: use a space of gymnasium.spaces"),
    ],
)
def test_spaces_that_no_agent_can_use_are_refused_with_the_reason(which: str, space: Any, message: str) -> None:
    env = Recorder()
    setattr(env, which, space)
    with pytest.raises(EnvError, match=rf"mine.*{message}"):
        wrap(env)


def test_an_action_with_more_values_than_int32_holds_is_refused() -> None:
    with pytest.raises(EnvError, match=r"mine is Discrete\(1099511627776\), which has more values than"):
        wrap(Recorder(action_space=spaces.Discrete(2**40)))


def test_flags_follow_termination_and_truncation() -> None:
    env = wrap(Recorder(lengths=(2, 3), truncates=True))
    act = {"action": np.int32(0), "reset": np.False_}
    steps: list[Any] = [env.step(act) for _ in range(8)]
    flags = [(bool(s["is_first"]), bool(s["is_last"]), bool(s["is_terminal"])) for s in steps]
    first, middle, terminated, truncated = (True, False, False), (False,) * 3, (False, True, True), (False, True, False)
    assert flags == [first, middle, terminated, first, middle, middle, truncated, first]
    assert [s["reward"] == 0 for s in steps] == [flag[0] for flag in flags]


def test_a_reset_in_mid_episode_begins_another() -> None:
    inner = Recorder(lengths=(10,))
    env = wrap(inner)
    env.step(BEGIN)
    env.step({"action": np.int32(0), "reset": np.False_})
    assert env.step({"action": np.int32(3), "reset": np.True_})["is_first"]
    assert len(inner.received) == 1


def test_only_the_first_episode_is_seeded() -> None:
    inner = Recorder(lengths=(1,))
    env = wrap(inner, seed=7)
    for _ in range(6):
        env.step({"action": np.int32(0), "reset": np.False_})
    assert inner.seeds == [7, None, None]


def test_numbers_in_info_are_logged_on_the_steps_that_have_them() -> None:
    env = CheckSpaces(wrap(Recorder(infos=True)), "mine")
    act = {"action": np.int32(0), "reset": np.False_}
    logs = [{k: v for k, v in env.step(act).items() if k.startswith("log/")} for _ in range(3)]
    assert logs[0] == {"log/episode_number": 0.0}
    assert logs[1] == {"log/count": 1.0, "log/nested/flag": 0.0, "log/odd": 0.5}
    assert logs[2] == {"log/count": 2.0, "log/nested/flag": 0.0}
    assert not any(key.startswith("log/") for key in env.obs_space)


def test_repeats_sum_rewards_and_numbers_and_stop_at_the_end() -> None:
    plain, inner = Recorder(lengths=(5,), infos=True), Recorder(lengths=(5,), infos=True)
    env, reference = wrap(inner, EnvOptions(repeat=3)), wrap(plain)
    act = {"action": np.int32(0), "reset": np.False_}
    steps = [reference.step(act) for _ in range(6)]
    env.step(act)
    first, second = env.step(act), env.step(act)
    assert first["reward"] == pytest.approx(sum(s["reward"] for s in steps[1:4]))
    assert second["reward"] == pytest.approx(sum(s["reward"] for s in steps[4:6]))
    assert (first["log/count"], second["log/count"]) == (1 + 2 + 3, 4 + 5)
    assert second["is_last"]
    np.testing.assert_array_equal(second["obs"], steps[5]["obs"])
    assert len(inner.received) == 5


def test_closing_closes_the_environment() -> None:
    inner = Recorder()
    wrap(inner).close()
    assert inner.closed


class Late(Recorder):
    """Turns bad at its 700th step."""

    def __init__(self, space: Any, bad: Any) -> None:
        super().__init__(space, lengths=(10**6,))
        self.bad = bad

    def _draw(self) -> Any:
        return self.bad if self.count == 700 else super()._draw()


VECTOR, IMAGE = spaces.Box(-1, 1, (3,), np.float32), spaces.Box(0, 255, (64, 64, 3), np.uint8)


@pytest.mark.parametrize(
    ("space", "bad", "message"),
    [
        (VECTOR, np.zeros(4, np.float32), r"observation 'obs' has shape \(4,\) instead of \(3,\)"),
        (VECTOR, np.float32(0), r"observation 'obs' has shape \(\) instead of \(3,\)"),
        (VECTOR, np.zeros((1, 3), np.float32), r"observation 'obs' has shape \(1, 3\) instead of \(3,\)"),
        (VECTOR, np.array([0, 0, 1.5]), r"observation 'obs' has value 1.5 at \[2\] above 1.0: .*or declare"),
        (VECTOR, [0, 0, 1.5], r"observation 'obs' has value 1.5 at \[2\] above 1.0"),
        (VECTOR, np.array([0, np.nan, 0]), "observation 'obs' has NaN"),
        (VECTOR, None, "observation 'obs' has dtype object.*Box.*or declare"),
        (VECTOR, [[0], [0, 1]], "observation 'obs' has dtype object"),
        (IMAGE, np.zeros((64, 9, 3), np.uint8), r"observation 'image' has shape \(64, 9, 3\) instead of \(64, 64, 3\)"),
        (IMAGE, np.zeros((64, 64, 3)), "observation 'image' has dtype float64.*Box"),
        (IMAGE, np.full((64, 64, 3), 300), "observation 'image' has value 300, which is not a value"),
        (spaces.Discrete(3), 3, "observation 'obs' has value 3 above 2"),
        (spaces.Discrete(3), np.array([1]), r"observation 'obs' has shape \(1,\) instead of \(\)"),
        (spaces.Discrete(3), 1.0, "observation 'obs' has dtype float64"),
        (spaces.Discrete(3), 2**32, "observation 'obs' has value 4294967296"),
        (spaces.MultiBinary(2), np.array([0, 2]), "observation 'obs' has value 2"),
        (spaces.Dict({"a": VECTOR}), {"b": 1}, r"observation and its Dict space differ in the keys \['a', 'b'\]"),
        (spaces.Dict({"a": VECTOR}), np.zeros(3), "observation is a ndarray of 3 instead of a dict of 1"),
        (spaces.Dict({"a": spaces.Tuple((VECTOR,))}), {"a": ()}, "observation at 'a' is a tuple of 0 instead of a tup"),
        (spaces.Dict({"a": VECTOR}), {"a": np.zeros(2)}, r"observation 'a' has shape \(2,\) instead of \(3,\)"),
    ],
)
def test_a_bad_observation_late_in_an_episode_is_named(space: Any, bad: Any, message: str) -> None:
    env = CheckSpaces(wrap(Late(space, bad)), "mine")
    action = {"action": np.int32(0), "reset": np.False_}
    for _ in range(700):
        env.step(action)
    with pytest.raises(SpaceMismatch, match=rf"mine.*{message}") as caught:
        env.step(action)
    assert "\n" not in str(caught.value)


def test_a_reward_that_is_no_number_is_named() -> None:
    class NoReward(Recorder):
        def step(self, action: Any) -> Any:
            return (*super().step(action)[:1], float("nan"), *super().step(action)[2:])

    env = CheckSpaces(wrap(NoReward()), "mine")
    env.step(BEGIN)
    with pytest.raises(SpaceMismatch, match="observation 'reward' has NaN"):
        env.step({"action": np.int32(0), "reset": np.False_})


class Result(NamedTuple):
    obs: Any
    reward: Any
    terminated: bool
    truncated: bool
    info: Any


class Old(Recorder):
    """Follows the interface of old gym."""

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, terminated or truncated, info


def test_a_step_of_the_old_interface_is_explained() -> None:
    env = wrap(Old())
    env.step(BEGIN)
    with pytest.raises(EnvError, match=r"mine: step\(\) returned a tuple of 4 .*old gym.*terminated, truncated, info"):
        env.step({"action": np.int32(0), "reset": np.False_})


def test_a_step_may_be_a_named_tuple() -> None:
    class Named(Recorder):
        def step(self, action: Any) -> Any:
            return Result(*super().step(action))

    env = wrap(Named())
    env.step(BEGIN)
    assert not env.step({"action": np.int32(0), "reset": np.False_})["is_first"]


@pytest.mark.parametrize("result", [np.zeros(3), (np.zeros(3),), (np.zeros(3), None), None])
def test_a_reset_that_returns_something_else_is_explained(result: Any) -> None:
    env = wrap(Recorder())
    env._env.reset = lambda seed=None: result
    with pytest.raises(EnvError, match=r"mine: reset\(\) returned .*: return \(observation, info\)"):
        env.step(BEGIN)


def test_a_reset_without_a_seed_is_explained() -> None:
    env = wrap(Recorder())
    env._env.reset = lambda: (np.zeros(3), {})
    with pytest.raises(EnvError, match=r"mine: .*'seed': give it the signature reset\(self, \*, seed=None"):
        env.step(BEGIN)


def test_an_error_inside_reset_passes_through() -> None:
    env = wrap(Recorder())
    env._env.reset = gym_fakes.fail
    with pytest.raises(TypeError, match="the simulator is broken"):
        env.step(BEGIN)


class Odd(gymnasium.Env[Any, Any]):
    """Steps that a wrapper of an older kind might return."""

    observation_space = spaces.Box(-1, 1, (2,))
    action_space = spaces.Discrete(2)

    def __init__(self, info: Any, short_after: int = 99) -> None:
        self._info = info
        self._left = short_after

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self._left -= 1
        result = (np.zeros(2, np.float32), 1.0, False, False, self._info)
        return result if self._left >= 0 else result[:4]


@pytest.mark.parametrize("repeat", [1, 3])
def test_numbers_that_no_float_holds_and_no_info_at_all_do_not_end_an_episode(repeat: int) -> None:
    for info in ({"large": 10**400, "fine": 2}, None):
        env = GymnasiumEnv(Odd(info), "odd", EnvOptions(repeat=repeat), 0, [])
        env.step({"reset": True, "action": 0})
        obs = env.step({"reset": False, "action": 0})
        assert obs["reward"] == repeat
        if info:
            assert obs["log/fine"] == 2 * repeat
            assert math.isnan(obs["log/large"])


@pytest.mark.parametrize(
    ("reward", "message"), [([1.0, 2.0], r"the reward has shape \(2,\)"), (None, "returned None as the reward")]
)
def test_a_reward_that_is_no_number_is_named_before_rewards_of_an_action_are_added(reward: Any, message: str) -> None:
    class Wrong(Odd):
        def step(self, action: Any) -> Any:
            obs, _, *rest = super().step(action)
            return obs, reward, *rest

    env = GymnasiumEnv(Wrong({}), "wrong", EnvOptions(repeat=2), 0, [])
    env.step({"reset": True, "action": 0})
    with pytest.raises(DreamfleetError, match=message):
        env.step({"reset": False, "action": 0})


def test_a_wrong_step_in_the_middle_of_an_action_is_explained() -> None:
    env = GymnasiumEnv(Odd({}, short_after=1), "odd", EnvOptions(repeat=3), 0, [])
    env.step({"reset": True, "action": 0})
    with pytest.raises(EnvError, match="returned a tuple of 4"):
        env.step({"reset": False, "action": 0})
