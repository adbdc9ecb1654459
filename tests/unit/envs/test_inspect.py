"""What is found out about an environment by trying it: spaces, episodes, determinism, speed and every violation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import dreamfleet.commands.envs.trial
from dreamfleet.core.error_origin import is_own_code
from dreamfleet.core.errors import ConfigError
from dreamfleet.core.spaces import Space
from dreamfleet.envs.builtin.catch import Catch
from dreamfleet.envs.builtin.dummy import Dummy
from dreamfleet.envs.inspection.inspect import Inspection, describe, kind_of
from dreamfleet.envs.options import EnvOptions
from dreamfleet.envs.registry import Made, make_unadapted
from support import faulty_envs, wrapping_fakes


def inspect(make: Any, steps: int | None = 100, seconds: float = 20.0, **options: Any) -> dict[str, Any]:
    inspection = Inspection(
        lambda restart: Made(make(), "mine", EnvOptions(**options), 3),
        lambda report: None,
        steps=steps,
        seconds=seconds,
    )
    return inspection.run()


def violations(report: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    assert report["ok"] == (not report["violations"])
    return {(found["kind"], found["where"]): found for found in report["violations"]}


def only(report: dict[str, Any]) -> dict[str, Any]:
    (found,) = violations(report).values()
    return found


def test_an_environment_without_fault_is_described() -> None:
    report = inspect(faulty_envs.Correct)
    assert report["ok"]
    assert report["observation"]["obs"] == {
        "kind": "vector",
        "dtype": "float32",
        "shape": [3],
        "low": -1.0,
        "high": 1.0,
    }
    assert report["action"] == {
        "action": {"kind": "discrete", "dtype": "int32", "shape": [], "low": 0, "high": 2},
    }
    assert report["log"] == ["log/speed"]
    assert report["steps"] == 100
    assert report["episodes"] == {
        "count": 10,
        "terminated": 0,
        "truncated": 10,
        "lengths": {"min": 10, "mean": 10.0, "max": 10},
        "returns": {"min": 10.0, "mean": 10.0, "max": 10.0},
    }
    assert report["determinism"] == {"same": True, "steps": 199, "key": None, "step": None}
    assert report["speed"]["steps_per_s"] > 0
    assert report["notes"] == []
    assert report["vectorised"] is None


def test_nested_spaces_without_fault_pass() -> None:
    report = inspect(faulty_envs.Parts)
    assert report["ok"]
    kinds = {key: report["observation"][key]["kind"] for key in ("near", "far/0", "far/1")}
    assert kinds == {"near": "discrete", "far/0": "binary", "far/1": "multi-discrete"}


@pytest.mark.parametrize(
    ("make", "kind", "where", "problem", "fix"),
    [
        (faulty_envs.WrongShape, "shape", "observation 'obs'", "shape (2,) instead of (3,)", "declare"),
        (faulty_envs.OutOfBounds, "bounds", "observation 'obs'", "at [1] above 1.0", "return what obs_space declares"),
        (faulty_envs.NotANumber, "nan", "observation 'obs'", "NaN at [1]", "divides by zero"),
        (faulty_envs.OldReset, "contract", "reset", "return (observation, info)", ""),
        (faulty_envs.ResetWithoutSeed, "contract", "reset", "reset(self, *, seed=None, options=None)", ""),
        (faulty_envs.OldStep, "contract", "step", "as old gym did", ""),
        (faulty_envs.ThreeValues, "contract", "step", "step() returned a tuple of 3", ""),
        (faulty_envs.NoReward, "contract", "step", "returned None as the reward: return a number", ""),
        (
            faulty_envs.RewardArray,
            "shape",
            "observation 'reward'",
            "shape (1,) instead of ()",
            "return a finite number",
        ),
        (faulty_envs.InfiniteReward, "bounds", "observation 'reward'", "inf, which is not finite", "finite"),
        (faulty_envs.FlagIsText, "contract", "step", "'no' (a str) as truncated: return bool(truncated)", ""),
        (faulty_envs.InfoIsText, "contract", "step", "'fine' (a str) as info: return a dict", ""),
        (faulty_envs.StepRaises, "exception", "step", "RuntimeError: the robot fell over", "faulty_envs.py:"),
        (faulty_envs.ResetRaises, "exception", "reset", "RuntimeError: no level left", "in reset"),
        (faulty_envs.CloseRaises, "exception", "close", "RuntimeError: already closed", "in close"),
        (faulty_envs.MakingRaises, "exception", "construction", "RuntimeError: no display", "in __init__"),
        (faulty_envs.nothing, "contract", "construction", "the factory mine returned None: return a gymnasium", ""),
        (faulty_envs.WithText, "contract", "construction", "Text", ""),
    ],
)
def test_each_violation_is_found_once_and_comes_with_its_fix(
    make: Any, kind: str, where: str, problem: str, fix: str
) -> None:
    found = only(inspect(make))
    assert (found["kind"], found["where"]) == (kind, where)
    assert problem in found["problem"]
    assert fix in found["fix"]


def test_parts_of_an_observation_are_named_by_their_path() -> None:
    assert "differ in the keys ['extra', 'near']" in only(inspect(faulty_envs.PartMissing))["problem"]
    assert "observation 'far/0' has value 2" in only(inspect(faulty_envs.PartOutOfBounds))["problem"]
    found = only(inspect(faulty_envs.PartTooLarge))
    assert found["where"] == "observation 'far/1'"
    assert found["problem"] == "value 3 at [1] above 2"


def test_a_value_just_out_of_bounds_is_shown_with_enough_digits() -> None:
    class Nearly(faulty_envs.Correct):
        def observe(self) -> Any:
            return np.float32([0, 1.0000001, 0])

    found = only(inspect(Nearly))
    assert found["problem"] == "value 1.0000001 at [1] above 1.0"
    assert "or set env.clip=true" in found["fix"]
    assert found["count"] == 111  # with the resets
    report = inspect(Nearly, clip=True)
    assert report["ok"]
    assert only(inspect(faulty_envs.NotANumber, clip=True))["kind"] == "nan"


def test_a_value_that_the_agent_sees_at_its_bound_is_not_out_of_it() -> None:
    class Doubles(faulty_envs.Correct):
        observation_space = spaces.Box(-1.0, 1.0, (3,), np.float64)

        def observe(self) -> Any:
            return np.array([0, 1 + 1e-15, -1 - 1e-15])

    assert inspect(Doubles)["ok"]


def test_what_is_left_out_encoded_and_weighed_is_inspected_as_it_is_trained_on() -> None:
    options: dict[str, Any] = {"text": {"mission": 16}, "pad": {"cars": 2}, "reward_weights": (1.0, 0.5)}
    report = inspect(wrapping_fakes.Crossing, drop=("graph",), clip=True, **options)
    assert report["ok"]
    shapes = {key: found["shape"] for key, found in report["observation"].items() if "is_" not in key}
    assert shapes == {"cars": [2, 2], "cars/mask": [2], "mission": [16], "x": [3], "reward": []}
    assert report["episodes"]["returns"]["mean"] == 21.0
    assert report["determinism"]["same"]


def test_several_violations_are_collected_with_how_often_and_where_first() -> None:
    found = violations(inspect(faulty_envs.Several))
    assert found.keys() == {("bounds", "observation 'obs'"), ("shape", "observation 'reward'")}
    assert found["shape", "observation 'reward'"]["count"] == 100
    assert found["shape", "observation 'reward'"]["first_step"] == 1
    assert found["bounds", "observation 'obs'"]["first_step"] == 0  # in the first reset
    assert only(inspect(faulty_envs.NotANumber))["first_step"] == 8


def test_an_environment_that_raises_is_made_anew_a_few_times() -> None:
    made: list[Any] = []

    def make() -> Any:
        made.append(faulty_envs.StepRaises())
        return made[-1]

    found = only(inspect(make))
    assert found["count"] == len(made) == 3
    assert found["first_step"] == 7


def test_an_environment_without_an_end_is_found() -> None:
    found = only(inspect(faulty_envs.Endless, steps=1000))
    assert (found["kind"], found["where"]) == ("endless", "episode")
    assert found["problem"] == "no episode ended within 1000 steps"
    assert "env.time_limit" in found["fix"]


def test_only_the_authors_files_are_named_as_the_place_of_an_error() -> None:
    assert is_own_code(__file__)
    assert not is_own_code(dreamfleet.commands.envs.trial.__file__)
    assert not is_own_code(np.__file__)


def test_episodes_that_may_end_later_are_no_violation() -> None:
    def limited() -> Any:
        env = faulty_envs.Endless()
        env.spec = type("Spec", (), {"max_episode_steps": 500})()  # type: ignore[assignment]
        return env

    report = inspect(limited)
    assert report["ok"]
    assert report["notes"] == ["no episode ended within 100 steps: give --steps for a longer look"]
    assert inspect(faulty_envs.Endless)["ok"]  # so few steps say nothing
    assert inspect(faulty_envs.Endless, steps=None, seconds=0.01)["ok"]
    assert inspect(faulty_envs.Endless, time_limit=20)["episodes"]["truncated"] == 5


def test_a_time_limit_that_looks_like_a_termination_is_noted() -> None:
    report = inspect(faulty_envs.TimeIsTermination, steps=200)
    assert report["ok"]
    assert "all 3 episodes were terminated after 60 steps" in report["notes"][0]


def test_an_environment_that_ignores_its_seed_is_noted_with_the_key_and_step() -> None:
    report = inspect(faulty_envs.Unseeded)
    assert report["ok"]
    assert report["determinism"] | {"steps": 0} == {"same": False, "steps": 0, "key": "obs", "step": 0}
    assert "self.np_random" in report["notes"][0]


def test_without_a_number_of_steps_it_goes_on_until_episodes_have_ended() -> None:
    assert inspect(faulty_envs.Correct, steps=None)["steps"] == 1000
    assert inspect(lambda: Dummy(length=300, size=4), steps=None)["steps"] == 1500


def test_vectorised_environments_are_tried_row_by_row() -> None:
    report = inspect(lambda: faulty_envs.vectorised(3))
    assert report["ok"]
    assert report["vectorised"] == 3
    assert report["episodes"]["truncated"] == 30
    assert report["determinism"]["same"]
    found = violations(inspect(lambda: faulty_envs.vectorised(3, wrong="bounds")))
    assert found["bounds", "observation 'obs'"]["problem"] == "value 7.0 at [2] above 1.0 in row 1"
    found = violations(inspect(lambda: faulty_envs.vectorised(3, wrong="reward")))
    assert "an array of shape (3, 1) and dtype float64 as the reward" in found["contract", "step"]["problem"]


def test_an_environment_of_our_own_interface_is_held_to_it() -> None:
    class Wrong(Dummy):
        def step(self, action: Any) -> dict[str, Any]:
            obs = super().step(action)
            first = obs["is_first"]
            return {**obs, "vector": np.zeros(3, np.float32), "is_first": ~first, "is_terminal": np.True_, "new": 1}

    found = violations(inspect(lambda: Wrong(size=4)))
    assert found["shape", "observation 'vector'"]["problem"] == "shape (3,) instead of (5,)"
    assert found["undeclared", "observation"]["problem"] == "['new'] besides"
    assert found["flag", "is_terminal"]["problem"] == "true without is_last"
    assert found["flag", "is_first"]["problem"] == "false at the start of an episode"


def test_what_is_no_observation_at_all_is_said() -> None:
    class Nothing(Dummy):
        def step(self, action: Any) -> Any:
            return None

    found = only(inspect(lambda: Nothing(size=4)))
    assert (found["kind"], found["where"]) == ("type", "step")
    assert found["count"] == 3


def test_notes_of_the_adapter_are_part_of_the_report() -> None:
    report = inspect(faulty_envs.Large, steps=20)
    assert report["ok"]
    assert report["observation"]["image"]["shape"] == [64, 64, 3]
    assert any("210x160" in note for note in report["notes"])
    assert inspect(faulty_envs.Large, steps=20, size=(96, 96))["observation"]["image"]["shape"] == [96, 96, 3]


def test_what_the_user_typed_wrong_is_theirs() -> None:
    inspection = Inspection(lambda restart: make_unadapted("dummy", 0, 0, {"wrong": 1}), lambda report: None)
    with pytest.raises(ConfigError, match="wrong"):
        inspection.run()


def test_reports_are_published_with_every_finding() -> None:
    seen: list[int] = []
    Inspection(
        lambda restart: Made(faulty_envs.Several(), "mine", EnvOptions(), 3),
        lambda report: seen.append(len(report["violations"])),
        steps=20,
    ).run()
    assert sorted(set(seen)) == [0, 1, 2]
    assert seen == sorted(seen)


@pytest.mark.parametrize(
    ("space", "kind"),
    [
        (Space(np.uint8, (64, 64, 3)), "image"),
        (Space(bool, (3,)), "binary"),
        (Space(np.int32, (), 0, 4), "discrete"),
        (Space(np.int32, (2,), 0, [4, 5]), "multi-discrete"),
        (Space(np.float32), "scalar"),
        (Space(np.float32, (7,)), "vector"),
        (Space(np.float32, (7, 2)), "array"),
    ],
)
def test_arrays_are_called_by_what_they_are_to_the_agent(space: Space, kind: str) -> None:
    assert kind_of(space) == kind
    assert describe(space)["shape"] == list(space.shape)


def test_a_built_in_environment_passes() -> None:
    assert inspect(Catch, steps=None)["ok"]
