"""What check-env says of an environment is what training does with it: other people's are taken as they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dreamfleet.core.errors import EnvError
from dreamfleet.core.interfaces import EnvBatch
from dreamfleet.envs.checks import CheckBatch, CheckSpaces
from dreamfleet.envs.inspection import comparison
from dreamfleet.envs.inspection.comparison import compare_runs
from dreamfleet.envs.inspection.inspect import Inspection
from dreamfleet.envs.options import EnvOptions
from dreamfleet.envs.registry import Made
from support import faulty_envs, foreign_envs


def inspect(make: Callable[[], Any]) -> dict[str, Any]:
    return Inspection(lambda restart: Made(make(), "mine", EnvOptions(), 3), lambda report: None, steps=100).run()


def train(make: Callable[[], Any], steps: int = 100) -> None:
    """Steps it as an env worker does."""
    made = Made(make(), "mine", EnvOptions(), 3).adapted()
    env = CheckBatch(made, "mine") if isinstance(made, EnvBatch) else CheckSpaces(made, "mine")
    rows = (env.num_envs,) if isinstance(env, CheckBatch) else ()
    rng = np.random.default_rng(0)
    for number in range(steps):
        action = {key: space.sample(rng, rows) for key, space in env.act_space.items()}
        env.step({**action, "reset": np.full(rows, number == 0)[()]})


def test_a_batch_whose_observation_space_is_that_of_one_row_passes() -> None:
    report = inspect(lambda: foreign_envs.Pool(4))
    assert report["violations"] == []
    assert report["vectorised"] == 4
    assert report["observation"]["obs"]["shape"] == [3]
    assert report["determinism"]["same"]


def test_what_the_unwrapped_environment_takes_is_of_no_interest() -> None:
    report = inspect(foreign_envs.Keyed)
    assert report["violations"] == []
    assert report["notes"] == []
    assert report["determinism"]["same"], "only with its seed does it do the same again"


def test_a_second_run_that_is_too_slow_to_be_compared_to_its_end_is_no_difference(
    monkeypatch: pytest.MonkeyPatch, manual_time: Any
) -> None:
    """On a machine that is busy all of a sudden, fewer steps are compared."""
    monkeypatch.setattr(comparison.time, "monotonic", manual_time)
    made: list[Any] = []

    class Slow(foreign_envs.Keyed):
        def step(self, action: Any) -> Any:
            manual_time.advance(1.0 if self is made[0] else 3.0)
            return super().step(action)

    def build() -> Made:
        made.append(Slow())
        return Made(made[-1], "mine", EnvOptions(), 3)

    # Ten seconds each: a reset and ten steps, and a reset and four.
    assert compare_runs(build, lambda what, step: None) == {"same": True, "steps": 4, "key": None, "step": None}


@pytest.mark.parametrize(
    ("make", "kind"), [(foreign_envs.OnDevice, "support.DeviceArray"), (foreign_envs.OnJax, "jaxlib.ArrayImpl")]
)
def test_arrays_of_a_device_are_converted_and_noted_once(make: Callable[[], Any], kind: str) -> None:
    report = inspect(make)
    assert report["violations"] == []
    assert report["notes"] == [f"observation 'obs' comes as {kind}: it is converted to NumPy's float32 at every step"]
    assert report["episodes"]["truncated"] == 10
    assert report["determinism"]["same"]


@pytest.mark.parametrize(
    ("make", "note"),
    [
        (faulty_envs.WrongDtype, "observation 'obs' comes as float64, not float32: it is converted at every step"),
        (faulty_envs.List, "observation 'obs' comes as a list: it is converted to NumPy's float32 at every step"),
    ],
)
def test_values_that_training_converts_are_a_note(make: Callable[[], Any], note: str) -> None:
    report = inspect(make)
    assert report["violations"] == []
    assert report["notes"] == [note]


FAULTY = [
    "WrongDtype", "WrongShape", "OutOfBounds", "NotANumber", "List", "Parts", "PartMissing", "PartOutOfBounds",
    "OldReset", "ResetWithoutSeed", "OldStep", "ThreeValues", "NoReward", "RewardArray", "InfiniteReward",
    "FlagIsNone", "FlagIsText", "InfoIsNone", "InfoIsText", "Several", "Large",
]  # fmt: skip


@pytest.mark.parametrize("name", FAULTY)
def test_check_env_finds_a_violation_where_training_ends_and_nowhere_else(name: str) -> None:
    make = getattr(faulty_envs, name)
    try:
        train(make)
    except EnvError:
        ends = True
    else:
        ends = False
    assert inspect(make)["ok"] == (not ends)
