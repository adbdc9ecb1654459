"""What is said about ids that Gymnasium does not know, and how packages are named that register in other ways."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import gymnasium
import pytest

from dreamfleet.commands.envs import command as env_tools
from dreamfleet.core.errors import ConfigError
from dreamfleet.envs.gym import registration
from dreamfleet.envs.options import EnvOptions
from dreamfleet.envs.registry import make_env

REGISTER = "import gymnasium\ngymnasium.register({!r}, 'support.gym_fakes:Recorder')\n"
Package = Callable[..., str]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Package]:
    """Writes a package that can be imported; what it registers is gone after the test."""
    before = dict(gymnasium.registry)
    modules = set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path)

    def write(name: str, **files: str) -> str:
        for file, source in files.items():
            path = tmp_path / name / (file.replace("__", "/") + "/__init__.py" if file != "init" else "__init__.py")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(source)
        return name

    yield write
    for name in set(sys.modules) - modules:
        del sys.modules[name]
    for identifier in gymnasium.registry.keys() - before.keys():
        del gymnasium.registry[identifier]
    registration.run.cache_clear()


def refusal(name: str) -> str:
    with pytest.raises(ConfigError) as raised:
        make_env(name, 0, 0, {})
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_a_package_that_registers_in_a_submodule_is_answered_with_that(package: Package) -> None:
    package("quiet_pkg", init="", other="x = 1\n", wrapper=REGISTER.format("Quiet-v0"))
    said = refusal("gym:quiet_pkg:Quiet-v0")
    assert "importing 'quiet_pkg' does not register 'Quiet-v0'" in said
    assert said.endswith("its module 'quiet_pkg.wrapper' names it: write gym:quiet_pkg.wrapper:Quiet-v0")
    make_env("gym:quiet_pkg.wrapper:Quiet-v0", 0, 0, {}).close()


def test_a_package_whose_submodules_make_up_their_ids_is_answered_with_those_that_register(package: Package) -> None:
    source = "import gymnasium\nfor n in 'AB':\n    gymnasium.register(f'Made-{n}-v0', 'support.gym_fakes:Recorder')\n"
    package("makes_pkg", init="", deep__envs=source, deep="")
    assert "its module 'makes_pkg.deep.envs' registers environments: try" in refusal("gym:makes_pkg:Made-A-v0")


def test_a_package_with_a_function_that_registers_is_answered_with_that(package: Package) -> None:
    function = "def register_envs():\n    import gymnasium\n"
    function += "    gymnasium.register('Called-v0', 'support.gym_fakes:Recorder')\n"
    package("calls_pkg", init=function + "def register_one(name):\n    pass\n")
    said = refusal("gym:calls_pkg:Called-v0")
    assert said.endswith("its function register_envs may: try gym:calls_pkg:register_envs:Called-v0")
    for _ in range(2):  # a warning that it overrides itself would be an error here
        make_env("gym:calls_pkg:register_envs:Called-v0", 0, 0, {}).close()
    assert registration.registered_by("calls_pkg", "register_envs") == ["Called-v0"]


@pytest.mark.parametrize(
    ("task", "words"),
    [
        ("calls_pkg:register_all:X-v0", "'calls_pkg' has no function 'register_all': it has register_envs"),
        ("calls_pkg:fails:X-v0", "calls_pkg.fails() raised OSError: no licence"),
        ("calls_pkg:one:two:X-v0", "write gym:ID, gym:MODULE:ID or gym:MODULE:FUNCTION:ID"),
    ],
)
def test_a_function_that_cannot_register_is_named(package: Package, task: str, words: str) -> None:
    package("calls_pkg", init="def register_envs():\n    pass\n\ndef fails():\n    raise OSError('no licence')\n")
    assert words in refusal(f"gym:{task}")


def test_a_misspelt_id_of_a_package_gets_the_closest_of_that_package(package: Package) -> None:
    package("loud_pkg", init=REGISTER.format("Loud-v0") + REGISTER.format("name/Quiet-v3"))
    assert "did you mean gym:loud_pkg:Loud-v0?" in refusal("gym:loud_pkg:Lood-v0")
    said = refusal("gym:loud_pkg:CartPole-v7")
    assert said.endswith("`dreamfleet envs gym:loud_pkg` lists the 2 that it registers")


def test_a_package_is_named_as_it_is_imported(package: Package) -> None:
    package("two_words", init=REGISTER.format("Two-v0"))
    assert refusal("gym:two-words:Two-v0").endswith(
        "'two-words' is imported as 'two_words': write gym:two_words:Two-v0"
    )
    assert "'pyyaml' is imported as 'yaml': write gym:yaml:X-v0" in refusal("gym:pyyaml:X-v0")
    assert "cannot import 'no_such_package': install it" in refusal("gym:no_such_package:X-v0")


def test_a_package_that_lacks_another_is_not_taken_for_missing(package: Package) -> None:
    package("lacks_pkg", init="import no_such_library\n")
    assert refusal("gym:lacks_pkg:X-v0").endswith("cannot import 'lacks_pkg': No module named 'no_such_library'")


@pytest.mark.parametrize(
    ("identifier", "words"),
    [
        ("ALE/Pong-v5", "write gym:ale_py:ALE/Pong-v5, or take the suite atari (`dreamfleet envs atari`)"),
        ("MiniGrid-Empty-5x5-v0", "write gym:minigrid:MiniGrid-Empty-5x5-v0, or take the suite minigrid"),
        ("BabyAI-GoToObj-v0", "write gym:minigrid:BabyAI-GoToObj-v0"),
        ("CartPol-v1", "did you mean 'CartPole-v1'"),
        ("nowhere/Ant-v5", "is written gym:PACKAGE:nowhere/Ant-v5"),
    ],
)
def test_an_id_without_a_package_is_answered_with_what_it_most_likely_is(
    monkeypatch: pytest.MonkeyPatch, identifier: str, words: str
) -> None:
    known = ("ALE/", "MiniGrid-", "BabyAI-")
    for name in [name for name in gymnasium.registry if name.startswith(known)]:  # another test imported the package
        monkeypatch.delitem(gymnasium.registry, name)
    said = refusal(f"gym:{identifier}")
    assert words in said
    assert ("did you mean" in said) == (identifier == "CartPol-v1")


def test_what_a_package_registers_is_listed(package: Package) -> None:
    package("loud_pkg", init="print('hello')\n" + REGISTER.format("Loud-v0") + REGISTER.format("name/Quiet-v3"))
    package("quiet_pkg", init="", wrapper=REGISTER.format("Quiet-v0"))
    (listed,) = env_tools.list_suites("gym:loud_pkg")
    assert (listed["suite"], listed["tasks"], listed["problem"]) == ("gym:loud_pkg", ["Loud-v0", "name/Quiet-v3"], None)
    (listed,) = env_tools.list_suites("gym:quiet_pkg")
    assert listed["tasks"] == []
    assert "its module 'quiet_pkg.wrapper' registers environments" in listed["problem"]
    with pytest.raises(ConfigError, match="cannot import 'two-w': install it"):
        env_tools.list_suites("gym:two-w")


def test_a_package_that_cannot_be_imported_is_no_end_of_the_list(package: Package) -> None:
    package("broken_pkg", init="x = 1\nraise OSError('libGL.so.1 is missing')\n")
    (listed,) = env_tools.list_suites("gym:broken_pkg")
    assert listed["problem"].startswith("OSError: libGL.so.1 is missing, raised at ")


def test_it_is_listed_on_the_command_line_beside_what_the_package_prints(
    package: Package, capsys: pytest.CaptureFixture[str]
) -> None:
    package("loud_pkg", init="print('hello')\n" + REGISTER.format("Loud-v0"))
    env_tools.show_suites(env_tools.list_suites("gym:loud_pkg"))
    written = capsys.readouterr()
    assert "  gym:loud_pkg:Loud-v0" in written.out.splitlines()
    assert "hello" not in written.out


def test_a_package_that_was_imported_before_is_listed_too(package: Package) -> None:
    name = package("early_pkg", init="import gymnasium\ngymnasium.register('Early-v0', 'early_pkg:Env')\n")
    __import__(name)
    assert registration.registered_by(name) == ["Early-v0"]


def test_env_vector_takes_the_same_names(package: Package) -> None:
    package("quiet_pkg", init="", wrapper=REGISTER.format("Quiet-v0"))
    env = make_env("gym:quiet_pkg.wrapper:Quiet-v0", 0, 0, {}, options=EnvOptions(vector=True), room=2)
    with closing(env):
        assert env.num_envs == 2
