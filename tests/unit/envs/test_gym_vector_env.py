"""Vectorised environments: every row gives the steps that its environment would give alone."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics

from dreamfleet.core.errors import EnvError, SpaceMismatch
from dreamfleet.core.spaces import Space
from dreamfleet.envs.checks import CheckBatch
from dreamfleet.envs.gym.env import GymnasiumEnv
from dreamfleet.envs.gym.vector_env import GymnasiumBatch
from dreamfleet.envs.options import EnvOptions
from support.gym_fakes import NO_OPTIONS, SPACES, Recorder

MODES = list(AutoresetMode)
LENGTHS = [(2, 5), (3,), (1, 4)]  # of the episodes of each row, in turn
NESTED = spaces.Dict({"view": spaces.Box(0, 255, (3, 40, 48), np.uint8), "more": SPACES["nested"]})


def recorder(row: int, observation_space: Any = NESTED, action_space: Any = None) -> Recorder:
    return Recorder(observation_space, action_space, LENGTHS[row], truncates=True, infos=True)


def batch_of(vector: Any, options: EnvOptions = NO_OPTIONS) -> CheckBatch:
    return CheckBatch(GymnasiumBatch(vector, "mine", options, 5, []), "mine")


def sync(mode: AutoresetMode, **kwargs: Any) -> SyncVectorEnv:
    return SyncVectorEnv([partial(recorder, row, **kwargs) for row in range(3)], autoreset_mode=mode)


def row_of(step: Any, row: int) -> dict[str, Any]:
    """What is NaN under `log/` is absent from this row."""
    found = {key: value[row] for key, value in step.items()}
    return {key: value for key, value in found.items() if not (key.startswith("log/") and np.isnan(value))}


def run_rows(env: CheckBatch, actions: Any, steps: int) -> list[list[dict[str, Any]]]:
    """What each row sees. As the worker does, `first` is taken as a step of its own where a row has begun."""
    rows: list[list[dict[str, Any]]] = [[] for _ in range(env.num_envs)]
    reset = np.ones(env.num_envs, bool)
    while min(map(len, rows)) < steps:
        # The answer to a row's newest observation: the action with the number of steps that it has seen.
        batch: Any = {
            key: np.stack([values[len(rows[r])] for r, values in enumerate(rows_of)])
            for key, rows_of in actions.items()
        }
        step = env.step({**batch, "reset": reset})
        begun = env.begun().copy()
        for row, seen in enumerate(rows):
            seen.append(row_of(step, row))
        reset = np.array(step["is_last"] & ~begun)
        if begun.any():
            first = env.first()
            for row in np.flatnonzero(begun):
                rows[row].append(row_of(first, row))
    return rows


def run_alone(row: int, actions: Any, steps: int, make: Any = recorder) -> list[dict[str, Any]]:
    env = GymnasiumEnv(make(row), "mine", NO_OPTIONS, 5 + row, [])
    return [
        dict(env.step({**{key: values[row][n] for key, values in actions.items()}, "reset": np.False_}))
        for n in range(steps)
    ]


def draw_actions(env: CheckBatch, steps: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    act_space = {key: space for key, space in env.act_space.items() if key != "reset"}
    return {key: [space.sample(rng, (2 * steps,)) for _ in range(env.num_envs)] for key, space in act_space.items()}


def assert_same(rows: Any, alone: Any, steps: int) -> None:
    for row, expected in enumerate(alone):
        for number in range(steps):
            found = rows[row][number]
            assert found.keys() == expected[number].keys(), (row, number)
            for key, value in expected[number].items():
                np.testing.assert_array_equal(found[key], value, f"row {row}, step {number}, {key}")


@pytest.mark.parametrize("mode", MODES)
def test_rows_are_the_same_as_environments_alone(mode: AutoresetMode) -> None:
    env = batch_of(sync(mode, action_space=SPACES["nested"]))
    actions = draw_actions(env, 40)
    rows = run_rows(env, actions, 40)
    make = partial(recorder, action_space=SPACES["nested"])
    assert_same(rows, [run_alone(row, actions, 40, make) for row in range(3)], 40)
    env.close()


# Other tests of this process use JAX, which warns of forks; an env worker never loads it.
@pytest.mark.filterwarnings("ignore:os.fork")
@pytest.mark.parametrize("mode", MODES)
def test_rows_in_other_processes_are_the_same_too(mode: AutoresetMode) -> None:
    plain = partial(recorder, observation_space=spaces.Box(-1, 1, (3,), np.float32))
    env = batch_of(AsyncVectorEnv([partial(plain, row) for row in range(3)], autoreset_mode=mode, context="fork"))
    try:
        actions = draw_actions(env, 12)
        rows = run_rows(env, actions, 12)
    finally:
        env.close()
    assert_same(rows, [run_alone(row, actions, 12, plain) for row in range(3)], 12)


class Pendulums(VectorEnv[Any, Any, Any]):
    """A custom one: all rows in one array that is reused, and the last observations of a step as one array too."""

    metadata = {"autoreset_mode": "SameStep"}  # noqa: RUF012

    def __init__(self) -> None:
        self.num_envs = 2
        self.single_observation_space = spaces.Box(-100, 100, (1,), np.float64)
        self.single_action_space = spaces.Discrete(2)
        self.state = np.zeros((2, 1))

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.state[:] = [[0], [1]]
        return self.state, {}

    def step(self, actions: Any) -> Any:
        self.state += 1
        ends = self.state[:, 0] >= 3
        infos = {"final_obs": self.state.copy(), "speed": np.array([1, 2])} if ends.any() else {}
        self.state[ends] = 0
        return self.state, np.ones(2), ends, np.zeros(2, bool), infos


def test_a_custom_one_with_arrays_of_last_observations_works() -> None:
    env = batch_of(Pendulums())
    go: Any = {"action": np.zeros(2, np.int32)}
    seen = [env.step({**go, "reset": np.ones(2, bool)})["obs"][:, 0].tolist()]
    begun = []
    for _ in range(4):
        step = env.step({**go, "reset": np.zeros(2, bool)})
        seen.append(step["obs"][:, 0].tolist())
        begun.append(env.begun().tolist())
        assert ("log/speed" in step) == bool(step["is_last"].any())
    assert seen == [[0, 1], [1, 2], [2, 3], [3, 1], [1, 2]]
    assert begun == [[False, False], [False, True], [True, False], [False, False]]


@pytest.mark.parametrize("kind", SPACES)
def test_actions_belong_to_the_action_space_of_the_batch_and_of_every_row(kind: str) -> None:
    vector = sync(AutoresetMode.NEXT_STEP, action_space=SPACES[kind])
    received: list[Any] = []
    step = vector.step
    vector.step = lambda actions: received.append(actions) or step(actions)  # type: ignore
    env = batch_of(vector)
    rng = np.random.default_rng(0)
    reset = np.ones(3, bool)
    for _ in range(8):
        actions = {key: space.sample(rng, (3,)) for key, space in env.act_space.items() if key != "reset"}
        reset = np.array(env.step({**actions, "reset": reset})["is_last"])
    assert len(received) == 7
    for actions in received:
        assert vector.action_space.contains(actions)
    for row in vector.envs:
        for action in row.received:  # type: ignore
            # Gymnasium itself takes the array from around a scalar.
            assert row.action_space.contains(np.asarray(action) if kind == "box_scalar" else action)
    env.close()


@pytest.mark.parametrize("mode", MODES)
def test_all_rows_can_be_reset_at_any_time_and_one_alone_cannot(mode: AutoresetMode) -> None:
    vector = sync(mode)
    env = batch_of(vector)
    go: Any = {"action": np.zeros(3, np.int32), "reset": np.zeros(3, bool)}
    again = {**go, "reset": np.ones(3, bool)}
    env.step(again)
    env.step(go)  # ends the last row's episode
    assert env.step(again)["is_first"].all()
    assert not env.begun().any()
    with pytest.raises(EnvError, match=r"mine cannot reset its rows \[1\] alone.*reset all rows or none"):
        env.step({**go, "reset": np.array([False, True, False])})
    assert [row.seeds[0] for row in vector.envs] == [5, 6, 7]  # type: ignore
    assert all(seed is None for row in vector.envs for seed in row.seeds[1:])  # type: ignore
    env.close()


def test_rows_that_end_together_go_on_by_themselves() -> None:
    vector = SyncVectorEnv([partial(Recorder, lengths=(2,)) for _ in range(2)])
    env = batch_of(vector)
    reset = np.ones(2, bool)
    firsts = []
    for _ in range(6):
        step = env.step({"action": np.zeros(2, np.int32), "reset": reset})
        reset = np.array(step["is_last"])
        firsts.append(step["is_first"].all())
    assert firsts == [True, False, False, True, False, False]
    assert [row.episode for row in vector.envs] == [1, 1]  # type: ignore
    env.close()


def test_images_are_moved_and_resized_row_by_row() -> None:
    env = batch_of(sync(AutoresetMode.NEXT_STEP, observation_space=spaces.Box(0, 255, (3, 40, 48), np.uint8)))
    assert env.obs_space["image"] == Space(np.uint8, (64, 64, 3))
    step = env.step({"action": np.zeros(3, np.int32), "reset": np.ones(3, bool)})
    alone = GymnasiumEnv(recorder(1, spaces.Box(0, 255, (3, 40, 48), np.uint8)), "mine", NO_OPTIONS, 6, [])
    np.testing.assert_array_equal(step["image"][1], alone.step({"reset": np.True_})["image"])
    env.close()


def test_an_unknown_autoreset_mode_is_explained() -> None:
    vector = Pendulums()
    vector.metadata = {}
    with pytest.raises(EnvError, match=r"mine: metadata\['autoreset_mode'\] is None: set it .*AutoresetMode.SAME_STEP"):
        batch_of(vector)


def test_last_observations_that_are_missing_are_explained() -> None:
    class Forgets(Pendulums):
        def step(self, actions: Any) -> Any:
            return (*super().step(actions)[:4], {})

    env = batch_of(Forgets())
    go: Any = {"action": np.zeros(2, np.int32)}
    env.step({**go, "reset": np.ones(2, bool)})
    env.step({**go, "reset": np.zeros(2, bool)})
    with pytest.raises(EnvError, match="mine has autoreset mode SAME_STEP, but no 'final_obs'"):
        env.step({**go, "reset": np.zeros(2, bool)})


def test_a_bad_value_is_named_with_its_row() -> None:
    class Leaves(Pendulums):
        def step(self, actions: Any) -> Any:
            super().step(actions)
            self.state[1] = 200
            return self.state, np.ones(2), np.zeros(2, bool), np.zeros(2, bool), {}

    env = batch_of(Leaves())
    go: Any = {"action": np.zeros(2, np.int32)}
    env.step({**go, "reset": np.ones(2, bool)})
    with pytest.raises(SpaceMismatch, match=r"mine: observation 'obs' has value 200.0 at \[0\] above 100.0 in row 1"):
        env.step({**go, "reset": np.zeros(2, bool)})


def test_numbers_that_only_some_rows_have_are_missing_in_the_others() -> None:
    """Gymnasium's own statistics have one mask for all of their numbers, and zeros in the other rows."""
    rows = [partial(Recorder, lengths=(length,)) for length in (2, 3, 3)]
    env = batch_of(RecordEpisodeStatistics(SyncVectorEnv(rows, autoreset_mode=AutoresetMode.NEXT_STEP)))
    go: Any = {"action": np.zeros(3, np.int32), "reset": np.zeros(3, bool)}
    steps = [env.step(go) for _ in range(4)]
    assert [step.keys() & {"log/episode/l"} for step in steps] == [set(), set(), {"log/episode/l"}, {"log/episode/l"}]
    np.testing.assert_array_equal(steps[2]["log/episode/l"], [2, np.nan, np.nan])
    np.testing.assert_array_equal(steps[3]["log/episode/l"], [np.nan, 3, 3])
    env.close()


def test_closing_closes_every_row() -> None:
    vector = sync(AutoresetMode.NEXT_STEP)
    batch_of(vector).close()
    assert all(row.closed for row in vector.envs)  # type: ignore
