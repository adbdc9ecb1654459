"""What a factory may return, and which wrappers it gets."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from dreamfleet.core.errors import ConfigError, EnvError
from dreamfleet.core.interfaces import Env, EnvBatch
from dreamfleet.core.spaces import Space
from dreamfleet.envs.adapter import adapt
from dreamfleet.envs.builtin.dummy import Dummy
from dreamfleet.envs.options import EnvOptions
from dreamfleet.envs.registry import make_env
from support.gym_fakes import Recorder

GO = {"action": np.int32(0), "reset": np.False_}


def take(made: Any, **options: Any) -> Any:
    return adapt(made, "mine", EnvOptions(**options), 0, [])


def test_an_environment_of_ours_that_needs_nothing_is_returned_as_it_is() -> None:
    env = Dummy(size=4)
    assert take(env) is env


def test_a_gymnasium_environment_becomes_ours() -> None:
    env = take(Recorder())
    assert isinstance(env, Env)
    assert env.step(GO)["is_first"]


def test_an_object_with_the_interface_of_gymnasium_counts_as_one() -> None:
    class Duck:
        observation_space = spaces.Discrete(3)
        action_space = spaces.Discrete(2)

        def reset(self, seed: int | None = None) -> Any:
            return 2, {}

        def step(self, action: Any) -> Any:
            return 1, 1.0, False, False, {}

        def close(self) -> None:
            pass

    env = take(Duck())
    assert [env.step(GO)["obs"], env.step(GO)["obs"]] == [2, 1]


def test_a_vectorised_environment_becomes_a_batch() -> None:
    env = take(gymnasium.vector.SyncVectorEnv([Recorder, Recorder]))
    assert isinstance(env, EnvBatch)
    assert env.num_envs == 2
    env.close()


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (None, "returned None"),
        (3, "returned a int"),
        (Recorder, "returned the class Recorder, not an instance"),
        (Dummy, "returned the class Dummy"),
        (object(), "returned a object"),
    ],
)
def test_anything_else_is_refused(made: Any, message: str) -> None:
    with pytest.raises(EnvError, match=f"the factory mine {message}.*: return a gymnasium.Env, a gymnasium.vector"):
        take(made)


@pytest.mark.parametrize("make", [Recorder, Dummy])
def test_options_work_for_every_kind_of_environment(make: Any) -> None:
    env = take(make(), time_limit=2, repeat=2)
    lasts = [bool(env.step(GO)["is_last"]) for _ in range(6)]
    assert lasts == [False, False, True, False, False, True]


def test_images_of_our_own_environments_keep_their_size_unless_one_is_set() -> None:
    assert take(Dummy(size=8)).obs_space["image"].shape == (8, 8, 3)
    env = take(Dummy(size=8), size=(64, 48))
    assert env.obs_space["image"] == Space(np.uint8, (64, 48, 3))
    assert env.step(GO)["image"].shape == (64, 48, 3)
    with pytest.raises(ConfigError, match="multiples of 16"):
        take(Dummy(size=8), size=(8, 8))


def test_our_own_environments_act_in_one_range_and_have_the_usual_dtypes() -> None:
    class Wide(Dummy):
        def __init__(self) -> None:
            super().__init__(size=4)
            self.obs_space["vector"] = Space(np.float64, (5,))
            self.act_space["action"] = Space(np.float64, (2,), 0, 4)
            self.got: Any = None

        def step(self, action: Any) -> Any:
            self.got = action["action"]
            obs = super().step({"action": 0, "reset": action["reset"]})
            return {**obs, "vector": obs["vector"].astype(np.float64)}

    inner = Wide()
    env = take(inner)
    assert env.act_space["action"] == Space(np.float32, (2,), -1, 1)
    obs = env.step({"action": np.array([0.0, 2.0], np.float32), "reset": np.False_})
    assert obs["vector"].dtype == env.obs_space["vector"].dtype == np.float32
    assert inner.got.tolist() == [2, 4]


class Batch:
    """The attributes of an `EnvBatch`."""

    num_envs = 2

    def __init__(self) -> None:
        self.obs_space: dict[str, Space] = {}
        self.act_space: dict[str, Space] = {}

    def step(self, actions: Any) -> Any: ...
    def begun(self) -> Any: ...
    def first(self) -> Any: ...
    def close(self) -> None: ...


def test_a_batch_of_ours_takes_no_options() -> None:
    batch = Batch()
    assert take(batch) is batch
    for option in ({"repeat": 2}, {"time_limit": 5}, {"size": (64, 64)}):
        with pytest.raises(EnvError, match=f"env.{next(iter(option))} does not work with mine"):
            take(batch, **option)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"repeat": 2}, "env.repeat=2 does not work with a vectorised environment.*env.vector=false"),
        ({"time_limit": 9}, "env.time_limit=9 does not work.*env.kwargs.max_episode_steps=9"),
    ],
)
def test_options_that_a_vectorised_environment_cannot_follow_are_refused(options: Any, message: str) -> None:
    vector = gymnasium.vector.SyncVectorEnv([Recorder])
    with pytest.raises(EnvError, match=message):
        take(vector, **options)
    vector.close()


def test_gymnasium_is_not_imported_for_our_own_environments() -> None:
    code = "import sys; from dreamfleet.envs.registry import make_env; make_env('dummy', 0, 0, {}); "
    code += "sys.exit('gymnasium' in sys.modules or 'PIL' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("name", "kwargs", "message"),
    [
        ("gym:CartPol-v1", {}, "no environment 'CartPol-v1': did you mean 'CartPole-v1'"),
        ("gym:CartPole-v9", {}, "no environment 'CartPole-v9': did you mean 'CartPole-v"),
        ("gym:Qqqqqqq", {}, "no environment 'Qqqqqqq'.*gym:PACKAGE:Qqqqqqq"),
        ("gym:no_such_module:X-v0", {}, "cannot import 'no_such_module'"),
        ("gym:CartPole-v1", {"wrong": 1}, "does not take these env.kwargs: .*'wrong'"),
    ],
)
def test_an_id_or_argument_that_gymnasium_does_not_know_is_explained(name: str, kwargs: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_env(name, 0, 0, kwargs)


def test_arguments_reach_the_environment_that_gymnasium_makes() -> None:
    env: Any = make_env("gym:CartPole-v1", 0, 0, {"max_episode_steps": 3})
    assert [bool(env.step(GO)["is_last"]) for _ in range(4)] == [False, False, False, True]


def test_a_module_is_imported_for_the_ids_that_it_registers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gymnasium.envs.registration, "registry", dict(gymnasium.registry))
    monkeypatch.setattr(gymnasium, "registry", gymnasium.envs.registration.registry)
    env: Any = make_env("gym:support.registers_an_id:Registered-v0", 0, 0, {"lengths": (2,)})
    assert [bool(env.step(GO)["is_last"]) for _ in range(3)] == [False, False, True]


@pytest.mark.parametrize("mode", ["sync", "vector_entry_point", None])
def test_gymnasium_makes_vectorised_environments_that_fill_the_room(mode: str | None) -> None:
    kwargs = {} if mode is None else {"vectorization_mode": mode}
    env: Any = make_env("gym:CartPole-v1", 0, 0, kwargs, options=EnvOptions(vector=True), room=3)
    assert env.num_envs == 3
    step = env.step({"action": np.zeros(3, np.int32), "reset": np.ones(3, bool)})
    assert step["obs"].shape == (3, 4)
    env.close()
