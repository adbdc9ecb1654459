"""How environments are found and built by name."""

from __future__ import annotations

import numpy as np
import pytest

from dreamfleet.core.errors import ConfigError
from dreamfleet.envs.dummy import Dummy
from dreamfleet.envs.registry import find_factory, make_env

START = {"action": np.int32(0), "reset": True}


def first_image(index: int, seed: int = 0, mode: str = "train") -> bytes:
    image: np.ndarray = make_env("dummy", index, seed, {"size": 8}, mode).step(START)["image"]
    return image.tobytes()


def test_arguments_reach_the_constructor() -> None:
    env = make_env("dummy", 0, 0, {"length": 7, "size": 8})
    assert env.obs_space["count"].high == 8
    assert env.obs_space["image"].shape == (8, 8, 3)


def test_every_environment_of_a_run_has_a_seed_of_its_own_and_keeps_it() -> None:
    keys = [(index, seed, mode) for index in (0, 1) for seed in (0, 1) for mode in ("train", "eval")]
    images = [first_image(*key) for key in keys]
    assert len(set(images)) == len(keys)
    assert images == [first_image(*key) for key in keys]


def test_a_seed_that_the_user_sets_is_taken() -> None:
    images = [make_env("dummy", index, 0, {"size": 8, "seed": 5}).step(START)["image"] for index in (0, 1)]
    assert (images[0] == images[1]).all()


def test_a_users_own_factory_gets_its_arguments_and_nothing_else() -> None:
    env = make_env("dreamfleet.envs.dummy:Dummy", 3, 0, {"length": 2})
    assert env.obs_space["count"].high == 3
    assert find_factory("dreamfleet.envs.dummy:Dummy") is Dummy


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("dumy", "unknown environment 'dumy': did you mean 'dummy'"),
        ("xyz", "unknown environment 'xyz': known are dummy.*package.module:factory"),
        ("no.such.module:Env", "cannot import 'no.such.module'"),
        ("dreamfleet.envs.dummy:Nothing", "'dreamfleet.envs.dummy' has no callable 'Nothing'"),
        ("dreamfleet.envs.dummy:ACTIONS", "has no callable 'ACTIONS'"),
        ("dreamfleet.envs.dummy:", "has no callable ''"),
    ],
)
def test_a_name_that_leads_nowhere_is_explained(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        find_factory(name)


def test_arguments_that_the_constructor_does_not_take_are_named() -> None:
    with pytest.raises(ConfigError, match=r"'dummy' does not take env.kwargs .*'wrong': 1"):
        make_env("dummy", 0, 0, {"wrong": 1})


def test_an_error_inside_the_constructor_is_not_taken_for_a_wrong_argument() -> None:
    with pytest.raises(TypeError, match="NoneType"):
        make_env("dummy", 0, 0, {"length": None})
