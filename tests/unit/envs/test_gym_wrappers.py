"""Gymnasium wrappers that a configuration names, around single and vectorised environments."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

from dreamfleet.core.errors import ConfigError, EnvError
from dreamfleet.core.spaces import Space
from dreamfleet.envs.options import EnvOptions
from dreamfleet.envs.registry import make_env, make_unadapted
from support import gym_fakes, wrapping_fakes

SCALE, QUIET = "support.wrapping_fakes:Scale", "support.wrapping_fakes:Quiet"
STACK = "gymnasium.wrappers:FrameStackObservation"
made: list[Any] = []


def recorder() -> Any:
    made.append(gym_fakes.Recorder())
    return made[-1]


def says() -> Any:
    return gym_fakes.Recorder(wrapping_fakes.SAYS)


def several(num_envs: int) -> Any:
    return gymnasium.vector.SyncVectorEnv([gym_fakes.Recorder] * num_envs)


def make(name: str, *wrappers: Any, room: int = 1, **options: Any) -> Any:
    return make_env(f"{__name__}:{name}", 0, 0, {}, options=EnvOptions(wrappers=wrappers, **options), room=room)


def test_wrappers_are_applied_from_the_inside_out_with_their_arguments() -> None:
    env = make("recorder", {SCALE: {"by": 2.0, "plus": 1.0}}, {SCALE: {"by": 10.0}}, {STACK: {"stack_size": 3}})
    assert env.obs_space["obs"] == Space(np.float32, (3, 3), -10, 30)
    found = env.step({"action": np.int32(0), "reset": np.True_})["obs"]
    np.testing.assert_allclose(found[-1], (made[-1].returned[-1] * 2 + 1) * 10, rtol=1e-6)


def test_a_wrapper_may_do_away_with_what_an_agent_cannot_use() -> None:
    with pytest.raises(EnvError, match="'mission' is Text"):
        make("says")
    assert sorted(make("says", QUIET).obs_space) == ["is_first", "is_last", "is_terminal", "reward", "x"]


def test_other_options_are_about_what_comes_out_of_the_wrappers() -> None:
    with pytest.raises(ConfigError, match="'mission' matches no observation"):
        make("says", QUIET, drop=("mission",))


def test_wrappers_of_registered_ids_and_suites_are_applied_too() -> None:
    env = make_env("gym:CartPole-v1", 0, 0, {}, options=EnvOptions(wrappers=({STACK: {"stack_size": 2}},)))
    assert env.obs_space["obs"].shape == (2, 4)
    env.close()


def test_vectorised_environments_take_vector_wrappers() -> None:
    vector = "gymnasium.wrappers.vector"
    env = make("several", {f"{vector}:ReshapeObservation": {"shape": [3, 1]}}, room=2)
    assert env.num_envs == 2
    assert env.obs_space["obs"] == Space(np.float32, (3, 1), -1, 1)
    env.close()
    options = EnvOptions(vector=True, wrappers=(f"{vector}:RecordEpisodeStatistics",))
    env = make_env("gym:CartPole-v1", 0, 0, {}, options=options, room=3)
    assert env.num_envs == 3
    env.close()


@pytest.mark.parametrize(
    ("wrapper", "kind", "message"),
    [
        (
            "gymnasium.wrappers:FrameStackObservations",
            ConfigError,
            "env.wrappers: 'gymnasium.wrappers:FrameStackObservations': 'gymnasium.wrappers' has no callable "
            "'FrameStackObservations': did you mean 'FrameStackObservation'?",
        ),
        ("nowhere:Wrapper", ConfigError, "env.wrappers: 'nowhere:Wrapper': cannot import 'nowhere': No module named"),
        (
            {SCALE: {"buy": 2}},
            ConfigError,
            f"env.wrappers: {SCALE}: missing a required argument: 'by': it takes by, plus",
        ),
        (
            {SCALE: {"by": 2, "plush": 1}},
            ConfigError,
            f"env.wrappers: {SCALE}: got an unexpected keyword argument 'plush': it takes by, plus",
        ),
        (
            "support.wrapping_fakes:fails",
            EnvError,
            "env.wrappers: support.wrapping_fakes:fails failed: RuntimeError: no such level (",
        ),
        (
            "support.wrapping_fakes:forgets",
            EnvError,
            "env.wrappers: support.wrapping_fakes:forgets returned a NoneType: return an env",
        ),
    ],
)
def test_a_wrapper_that_cannot_be_used_is_named(wrapper: Any, kind: Any, message: str) -> None:
    with pytest.raises(kind) as raised:
        make("recorder", wrapper)
    assert message in str(raised.value)
    assert made[-1].closed


def test_the_line_that_failed_is_named() -> None:
    with pytest.raises(EnvError, match=r"wrapping_fakes\.py, line \d+\)$"):
        make("recorder", "support.wrapping_fakes:fails")


def test_a_wrapper_of_single_environments_around_a_vectorised_one_is_named() -> None:
    with pytest.raises(
        EnvError, match=r"Scale failed: .*: the environment is vectorised, .* gymnasium.wrappers.vector"
    ):
        make("several", {SCALE: {"by": 2.0}}, room=2)


def test_an_environment_of_our_own_interface_takes_no_wrappers() -> None:
    with pytest.raises(ConfigError, match=r"env\.wrappers is for environments of Gymnasium, and dummy has Dreamf"):
        make_env("dummy", 0, 0, {}, options=EnvOptions(wrappers=(QUIET,)))


def test_what_draws_is_still_the_wrapped_environment() -> None:
    options = EnvOptions(wrappers=(QUIET,), clip=True)
    inside = make_unadapted(f"{__name__}:says", 0, 0, {}, options=options).made
    assert isinstance(inside, wrapping_fakes.Quiet)
