"""`dreamfleet envs` and `dreamfleet check-env`: what they find, print and how they end."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from dreamfleet import cli
from dreamfleet.commands.envs import command as env_tools
from dreamfleet.commands.envs.heartbeat import Heartbeat
from dreamfleet.commands.envs.trial import inspect_env
from dreamfleet.config.load import parse_overrides
from dreamfleet.core.errors import ConfigError
from dreamfleet.envs import catalog
from dreamfleet.envs.gym.readers import READINGS


@pytest.fixture
def run(monkeypatch, capsys):
    def call(*words: str) -> tuple[int, str, str]:
        """The exit code and what is written to stdout and stderr."""
        monkeypatch.setattr(sys, "argv", ["dreamfleet", *words])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        written = capsys.readouterr()
        return int(ended.value.code or 0), written.out, written.err

    return call


def test_every_suite_is_listed_with_what_to_install(run):
    code, out, _ = run("envs")
    assert code == 0
    assert all(name in out for name in catalog.SUITES)
    assert "pip install 'dreamfleet[atari]'" in out
    listed = json.loads(run("envs", "--json")[1])["suites"]
    assert [entry["suite"] for entry in listed] == list(catalog.SUITES)
    dummy = listed[0]
    assert (dummy["suite"], dummy["installed"], dummy["missing"]) == ("dummy", True, [])


def test_the_tasks_of_a_suite_are_listed(run):
    code, out, _ = run("envs", "catch")
    assert code == 0
    assert "env=catch means catch:default" in out
    assert "  catch:default" in out.splitlines()
    (entry,) = json.loads(run("envs", "gym", "--json")[1])["suites"]
    assert "CartPole-v1" in entry["tasks"]
    assert entry["problem"] is None


def test_a_suite_that_is_missing_or_broken_is_shown_and_does_not_end_the_command(run, monkeypatch):
    monkeypatch.setitem(catalog.SUITES, "catch", catalog.Suite("x", needs=("no_such_thing",), install="pip install it"))
    assert "lacks no_such_thing: pip install it" in run("envs", "catch")[1]
    assert run("envs")[0] == 0

    def broken(name: str) -> Any:
        raise OSError("libGL.so.1 is not there")

    monkeypatch.setattr(catalog, "load_suite", broken)
    code, out, _ = run("envs", "dummy")
    assert code == 0
    assert "its tasks cannot be listed: OSError: libGL.so.1 is not there" in out


def test_a_misspelt_suite_gets_the_closest(run):
    assert run("envs", "dumy") == (2, "", "dreamfleet: unknown suite 'dumy': did you mean 'dummy'?\n")
    with pytest.raises(ConfigError, match="known are atari"):
        env_tools.list_suites("xyz")


def test_a_good_environment_ends_with_code_0_and_is_described(run):
    code, out, _ = run("check-env", "catch", "--steps", "100")
    assert code == 0
    assert "no violations" in out
    # Images of 16x16 are too small for Dreamer.
    words = ["env=dummy", "env.kwargs.length=7", "env.kwargs.size=16", "agent=random", "--steps", "50", "--json"]
    code, out, _ = run("check-env", *words)
    assert code == 0
    report = json.loads(out)
    assert report["env"] == "dummy"
    assert report["ok"]
    assert report["observation"]["image"]["shape"] == [16, 16, 3]
    assert report["observation"]["count"]["high"] == 8
    assert report["episodes"]["lengths"]["max"] == 7
    assert report["determinism"]["same"]


def test_violations_end_with_code_1_and_are_listed_with_fix_and_count(run):
    code, out, _ = run("check-env", "support.faulty_envs:Several", "--steps", "30")
    assert code == 1
    lines = out.splitlines()
    assert "2 violations" in lines
    said = lines.index("- observation 'reward': shape (1,) instead of () (at step 1, 30 times)")
    assert lines[said + 1] == "  return a finite number"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["dumy"], "unknown environment 'dumy': did you mean 'dummy'?"),
        (["gym:CartPol-v1"], "did you mean 'CartPole-v1'"),
        (["dummy", "env.kwargs.lenght=5"], "does not take env.kwargs.lenght: did you mean env.kwargs.length?"),
        (["dummy", "env.siz=5"], "unknown config key 'env.siz': did you mean 'env.size'?"),
        (["support.faulty_envs:spaces"], "'support.faulty_envs' has no callable 'spaces': it is of type module"),
        (["no_such_module:make"], "cannot import 'no_such_module'"),
    ],
)
def test_bad_input_ends_with_one_line_and_code_2(run, words, message):
    code, out, err = run("check-env", *words)
    assert code == 2
    assert out == ""
    assert len(err.splitlines()) == 1
    assert message in err


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["support.faulty_envs:OneChoice"], "the action 'action' has an element with one choice only: leave it out"),
        (
            ["support.faulty_envs:ManyActions"],
            "the action 'action' has 1000000 choices in all, which is too many, more than",
        ),
        (
            ["support.faulty_envs:Board", "env.read={code: classes}"],
            "'code' has 76800 classes in all, which is too many",
        ),
        (["dummy", "env.kwargs.size=8"], "images of 8x8: the encoder takes multiples of 16 from 48 to 256"),
        (
            ["support.faulty_envs:Large", "tiny", "agent.dec.bspace=7"],
            "agent.dec.bspace=7 must divide agent.dyn.deter=",
        ),
    ],
)
def test_what_the_agent_would_refuse_is_a_violation(run, words, problem):
    code, out, _ = run("check-env", *words, "--steps", "5")
    assert code == 1
    assert f"- environment: does not suit agent=dreamer: {problem}" in " ".join(out.split())


def test_it_is_the_agent_of_the_configuration_that_is_asked(run):
    code, out, _ = run("check-env", "support.faulty_envs:ManyActions", "--spaces")
    assert code == 1
    assert "it does not suit agent=dreamer: the action 'action' has 1000000 choices" in " ".join(out.split())
    assert run("check-env", "support.faulty_envs:ManyActions", "agent=random", "--steps", "5")[0] == 0


def test_an_agent_of_the_users_is_asked_whether_spaces_suit_it(run):
    code, out, _ = run("check-env", "catch:vector", "agent=support.user_envs:Choosy", "--steps", "20")
    assert code == 1
    assert "- environment: does not suit agent=support.user_envs:Choosy: 'vector' has 50 elements, I take 5" in out
    assert run("check-env", "dummy", "agent=support.user_envs:Choosy", "--steps", "20")[0] == 0


def test_the_readings_of_an_environment_are_shown_with_the_other_choices(run):
    code, out, _ = run("check-env", "support.faulty_envs:Board", "--steps", "20")
    assert code == 0
    (line,) = [line for line in out.splitlines() if line.startswith("read as")]
    assert line.split(maxsplit=2)[2].strip() == (
        "board as classes; code as numbers: --spaces says why, env.read={board: numbers} reads one otherwise"
    )
    code, out, _ = run("check-env", "support.faulty_envs:Board", "env.read={board: numbers}", "--spaces")
    assert code == 0
    rows = {line.split()[0]: line for line in out.splitlines() if line.strip()}
    assert "48 numbers" in rows["board"]
    assert "env.read" in rows["board"]
    assert "image, classes" in rows["board"]
    assert "with more than 65,536 classes in all" in rows["code"]
    assert all(rule.spaces.replace("`", "") in out for rule in READINGS)


def test_readings_are_one_object_with_json(run):
    found = json.loads(run("check-env", "support.faulty_envs:Board", "--spaces", "--json")[1])
    assert found["readings"]["board"] == {
        "declared": "Box(0, 5, (4, 4, 3), uint8)",
        "reading": "classes",
        "by": "other Discrete, MultiDiscrete, Box of integers",
        "shape": [4, 4, 3],
        "classes": 288,
        "others": ["image", "numbers"],
    }
    assert found["readings"]["code"]["reading"] == "numbers"
    assert [rule["reading"] for rule in found["rules"]] == [rule.reading for rule in READINGS]
    assert found["ok"]


def test_an_environment_of_our_own_interface_has_no_readings(run):
    code, out, _ = run("check-env", "catch", "--spaces")
    assert (code, out.splitlines()[0]) == (0, "catch")
    assert "spaces of Dreamfleet's own" in out
    code, _, err = run("check-env", "catch", "--spaces", "env.read={image: numbers}")
    assert code == 2
    assert "env.read is for Gymnasium's spaces, and catch declares those of dreamfleet.core.spaces" in err


def last_violation(name: str, *overrides: str) -> dict[str, Any]:
    report = inspect_env(parse_overrides([f"env=support.faulty_envs:{name}", *overrides]))
    assert not report["ok"]
    return report["violations"][-1]


def test_an_environment_that_hangs_is_given_up_and_the_place_is_named():
    found = last_violation("Hangs", "env.step_timeout_s=0.5")
    assert found["kind"] == "hang"
    assert found["first_step"] == 12
    assert found["problem"].startswith("step 12 has not returned for")
    assert "faulty_envs.py" in found["fix"]
    assert "in wait" in found["fix"]


def test_an_environment_that_ends_its_process_is_reported():
    found = last_violation("Dies")
    assert found["kind"] == "death"
    assert found["problem"] == "the environment's process ended in step 5 with signal SIGKILL"
    found = last_violation("Exits")
    assert found["problem"] == "the environment's process ended in step 1 with exit code 3"
    assert found["fix"] == "licence expired"


def test_a_construction_that_takes_too_long_is_given_up():
    found = last_violation("Correct", "run.start_timeout_s=0.001")
    assert found["kind"] == "hang"
    assert "run.start_timeout_s" in found["fix"]


def test_vectorised_environments_get_room(run):
    code, out, _ = run("check-env", "support.faulty_envs:vectorised", "--steps", "30")
    assert code == 0
    assert out.splitlines()[0] == "support.faulty_envs:vectorised, 4 environments at once"


def test_a_heartbeat_is_read_where_it_was_not_written():
    mine = Heartbeat()
    theirs = Heartbeat(mine.fd)
    theirs.tell("step", 12)
    beat = mine.read()
    assert str(beat) == "step 12"
    theirs.tell("close", 13)
    assert str(mine.read()) == "close"
    assert mine.read().since >= beat.since
    theirs.close()
    mine.close()


@pytest.mark.parametrize(
    ("space", "text"),
    [
        ({"kind": "image", "low": None, "high": None}, "0 to 255"),
        ({"kind": "vector", "low": None, "high": None}, "any"),
        ({"kind": "vector", "low": -1.0, "high": None}, "-1 to inf"),
        ({"kind": "vector", "low": [[-1.0], [-3.0]], "high": [[1.0], [None]]}, "-3 to inf, differs by element"),
        ({"kind": "discrete", "low": 0, "high": 5}, "0 to 4"),
        ({"kind": "multi-discrete", "low": 0, "high": [2, 5]}, "0 to 4, differs by element"),
        ({"kind": "binary", "low": None, "high": None}, "0 or 1"),
    ],
)
def test_ranges_are_written_with_both_ends_allowed(space, text):
    assert env_tools._range(space) == text
