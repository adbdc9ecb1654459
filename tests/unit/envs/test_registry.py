"""How environments are found and built by name."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec

from dreamfleet.core.errors import ConfigError
from dreamfleet.envs import registry
from dreamfleet.envs.builtin.dummy import Dummy
from dreamfleet.envs.catalog import SUITES
from dreamfleet.envs.options import EnvOptions
from dreamfleet.envs.registry import find_env, make_env

START = {"action": np.int32(0), "reset": True}


def first_image(index: int, seed: int = 0, mode: str = "train", restart: int = 0, life: int = 0) -> bytes:
    env = make_env("dummy", index, seed, {"size": 8}, mode, restart=restart, life=life)
    image: np.ndarray = env.step(START)["image"]
    return image.tobytes()


class Remembers(Dummy):
    """Keeps what its factory was called with."""

    def __init__(self, **called: Any) -> None:
        super().__init__(size=8)
        self.called = called


def numbered(seed: int, index: int, num_envs: int = 0, title: str = "") -> Remembers:
    return Remembers(seed=seed, index=index, num_envs=num_envs, title=title)


def takes_anything(**kwargs: Any) -> Remembers:
    return Remembers(**kwargs)


def hands_on(**kwargs: Any) -> Dummy:
    return Dummy(**kwargs)


def demanding(width: int, *, height: int = 1) -> Remembers:
    return Remembers(width=width, height=height)


def positional(width: int, /) -> Remembers:
    return Remembers(width=width)


def adds(length: int) -> Dummy:
    return Dummy(length=length + 1)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> str:
    """The name under which factories in this file can be named on a command line."""
    monkeypatch.setitem(sys.modules, "registered_factories", sys.modules[__name__])
    return "registered_factories"


def test_arguments_reach_the_constructor() -> None:
    env = make_env("dummy", 0, 0, {"length": 7, "size": 8})
    assert env.obs_space["count"].high == 8
    assert env.obs_space["image"].shape == (8, 8, 3)


def test_every_environment_of_a_run_has_a_seed_of_its_own_and_keeps_it() -> None:
    keys = [(index, seed, mode) for index in (0, 1) for seed in (0, 1) for mode in ("train", "eval")]
    images = [first_image(*key) for key in keys]
    assert len(set(images)) == len(keys)
    assert images == [first_image(*key) for key in keys]


def test_an_environment_that_is_made_anew_goes_on_with_another_seed() -> None:
    images = [first_image(0, restart=restart, life=life) for restart in (0, 1, 2) for life in (0, 1, 2)]
    assert len(set(images)) == 9
    assert images[0] == first_image(0)


def test_seeds_stay_what_they_were_so_that_single_runs_of_older_versions_go_on() -> None:
    """The numbers are those of NumPy's documented SeedSequence for [0, 0, 0] and [0, 0, 0, 2]."""
    assert [registry.make_unadapted("dummy", 0, 0, {}, restart=restart).seed for restart in (0, 2)] == [
        2968811710,
        int(np.random.SeedSequence([0, 0, 0, 2]).generate_state(1)[0]),
    ]


def test_a_seed_that_the_user_sets_is_taken() -> None:
    images = [make_env("dummy", index, 0, {"size": 8, "seed": 5}).step(START)["image"] for index in (0, 1)]
    assert (images[0] == images[1]).all()


@pytest.mark.parametrize("seed", [-1, 1.5, True, "x"])
def test_a_seed_that_is_none_is_refused(seed: Any) -> None:
    with pytest.raises(ConfigError, match=r"env\.kwargs\.seed=.* is no seed"):
        make_env("dummy", 0, 0, {"seed": seed})


def test_a_users_own_factory_gets_its_arguments_and_nothing_else(here: str) -> None:
    env = make_env("dreamfleet.envs.builtin.dummy:Dummy", 3, 0, {"length": 2})
    assert env.obs_space["count"].high == 3
    assert find_env("dreamfleet.envs.builtin.dummy:Dummy").factory is Dummy
    assert registry.make_unadapted(f"{here}:takes_anything", 3, 0, {"x": 1}).made.called == {"x": 1}


def test_a_factory_that_asks_for_them_gets_its_seed_its_number_and_how_many_environments_it_may_hold(here: str) -> None:
    first, second = (
        registry.make_unadapted(f"{here}:numbered", index, 7, {"title": "t"}, room=4).made.called for index in (0, 1)
    )
    assert (first["index"], second["index"]) == (0, 1)
    assert first["seed"] != second["seed"]
    assert first["num_envs"] == 4
    assert first["title"] == "t"
    own = registry.make_unadapted(f"{here}:numbered", 1, 7, {"index": 9}).made.called
    assert own["index"] == 9


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("dumy", "unknown environment 'dumy': did you mean 'dummy'"),
        ("atary:pong", "unknown environment 'atary:pong': did you mean 'atari:pong'"),
        ("xyz", "unknown environment 'xyz': known are atari.*dummy.*package.module:factory"),
        ("gym", "environment 'gym' names no task: write gym:TASK; `dreamfleet envs gym` lists them"),
        ("no.such.module:Env", "cannot import 'no.such.module'"),
        ("dreamfleet.envs.builtin.dummy:Nothing", "'dreamfleet.envs.builtin.dummy' has no callable 'Nothing'"),
        (
            "dreamfleet.envs.builtin.dummy:Dumy",
            "'dreamfleet.envs.builtin.dummy' has no callable 'Dumy': did you mean 'Dummy'?",
        ),
        ("dreamfleet.envs.builtin.dummy:ACTIONS", "has no callable 'ACTIONS': it is of type int"),
        ("dreamfleet.envs.builtin.dummy:", "has no callable ''"),
    ],
)
def test_a_name_that_leads_nowhere_is_explained(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        find_env(name)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import no_such_library", "cannot import 'broken': No module named 'no_such_library'"),
        ("x = 1\nprint(1/0)", r"cannot import 'broken': ZeroDivisionError: .*broken\.py, line 2"),
        ("def f(:", r"cannot import 'broken': SyntaxError: .*broken\.py, line 1"),
    ],
)
def test_a_module_that_cannot_be_imported_is_one_line_with_the_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, message: str
) -> None:
    (tmp_path / "broken.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "broken", raising=False)
    with pytest.raises(ConfigError, match=message) as raised:
        find_env("broken:make")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("factory", "kwargs", "message"),
    [
        ("demanding", {"widht": 1}, r"does not take env\.kwargs\.widht: did you mean env\.kwargs\.width\?"),
        ("demanding", {"width": 1, "xyz": 1}, r"does not take env\.kwargs\.xyz: it takes height, width"),
        ("demanding", {}, r"needs a value for its parameter 'width': set env\.kwargs\.width"),
        ("positional", {}, r"needs a value for its parameter 'width': it is positional only"),
        ("hands_on", {"lenth": 1}, r"does not take env\.kwargs\.lenth: .*unexpected keyword argument 'lenth'"),
    ],
)
def test_arguments_that_do_not_fit_a_factory_are_named(
    here: str, factory: str, kwargs: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        make_env(f"{here}:{factory}", 0, 0, kwargs)


def test_arguments_that_the_constructor_does_not_take_are_named() -> None:
    with pytest.raises(ConfigError, match=r"'dummy' does not take env\.kwargs\.wrong: it takes .*length"):
        make_env("dummy", 0, 0, {"wrong": 1})
    with pytest.raises(ConfigError, match=r"'dummy' does not take env\.kwargs\.lenght: did you mean .*length"):
        make_env("dummy", 0, 0, {"lenght": 1})


@pytest.mark.parametrize(
    ("name", "kwargs", "message"),
    [
        ("catch", {"rows": "many"}, r"environment 'catch': env.kwargs.rows cannot be 'many': expected a whole number"),
        ("catch", {"rows": 7.5}, "env.kwargs.rows cannot be 7.5: expected a whole number"),
        ("catch", {"rows": True}, "env.kwargs.rows cannot be True: expected a whole number"),
        ("crafter", {"logs": "yes"}, "env.kwargs.logs cannot be 'yes': expected true or false"),
        ("dummy", {"length": "long"}, "env.kwargs.length cannot be 'long': expected a whole number"),
        ("atari:pong", {"actions": 3}, "env.kwargs.actions cannot be 3: expected text"),
    ],
)
def test_arguments_of_a_suite_that_are_of_another_type_are_named(
    name: str, kwargs: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        make_env(name, 0, 0, kwargs)


def test_a_whole_number_of_a_suite_may_be_written_as_any_other() -> None:
    assert make_env("catch:vector", 0, 0, {"rows": 1e1, "columns": np.int64(3)}).obs_space["vector"].shape == (30,)


def test_an_error_inside_the_constructor_is_not_taken_for_a_wrong_argument(here: str) -> None:
    with pytest.raises(TypeError, match="NoneType"):
        make_env(f"{here}:adds", 0, 0, {"length": None})


def test_a_suite_whose_library_is_broken_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any) -> Any:
        raise ImportError("libGL.so.1: cannot open shared object file")

    class Module:
        make = staticmethod(broken)

    monkeypatch.setattr(registry, "load_suite", lambda name: Module)
    with pytest.raises(ConfigError, match=r"'crafter' cannot be imported: libGL.*: try pip install"):
        make_env("crafter", 0, 0, {})


class Tasked(gymnasium.Env[Any, Any]):
    observation_space = gymnasium.spaces.Discrete(2)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, task: str, options: int) -> None:
        self.arguments = (task, options)


def test_arguments_of_a_gymnasium_environment_may_be_called_as_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(gymnasium.registry, "Tasked-v0", EnvSpec("Tasked-v0", Tasked))
    made = registry.make_unadapted("gym:Tasked-v0", 0, 0, {"task": "walk", "options": 3}).made
    assert made.unwrapped.arguments == ("walk", 3)


def test_a_gymnasium_environment_whose_module_needs_another_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(gymnasium.registry, "Gone-v0", EnvSpec("Gone-v0", "no_such_library:Env"))
    with pytest.raises(ConfigError, match=r"'Gone-v0' cannot be imported: No module named 'no_such_library': install"):
        make_env("gym:Gone-v0", 0, 0, {})


@pytest.mark.parametrize("name", ["catch", "registered_factories:takes_anything"])
def test_only_gymnasium_ids_are_vectorised_for_the_user(here: str, name: str) -> None:
    with pytest.raises(ConfigError, match=rf"env.vector=true is for gym:ID, not for '{name}': unset it"):
        make_env(name, 0, 0, {}, options=EnvOptions(vector=True))


def test_a_suite_that_is_not_installed_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(SUITES["crafter"]), "missing", lambda suite: ["crafter"])
    with pytest.raises(ConfigError, match=r"suite 'crafter' needs crafter, not installed here: pip install"):
        find_env("crafter:reward")
