"""What every environment keeps to, whichever suite or adapter it comes from (`Env` and `EnvBatch` of the interfaces).

Each case is stepped once with random actions and random resets, in the same way for all; the tests look at what came
out. Gymnasium environments take part with every kind of space, vectorised ones in every autoreset mode.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces as gym
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from dreamfleet.core.interfaces import Env, EnvBatch
from dreamfleet.core.spaces import Space
from dreamfleet.envs.adapter import adapt
from dreamfleet.envs.builtin.dummy import TASKS
from dreamfleet.envs.catalog import SUITES, load_suite
from dreamfleet.envs.checks import CheckBatch, CheckSpaces
from dreamfleet.envs.options import EnvOptions
from dreamfleet.envs.registry import make_env
from support.fake_suites import Lab, ProcgenGym3Env, install, install_minerl
from support.gym_fakes import SPACES, Echo, Recorder

FLAGS = ("is_first", "is_last", "is_terminal")
Step = Mapping[str, Any]


@dataclass(frozen=True)
class Case:
    """An environment by name; `steps` and `resets` (how often a step asks for one) are smaller for slow ones."""

    name: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    options: EnvOptions = EnvOptions()  # noqa: RUF009
    steps: int = 80
    resets: float = 0.1
    ends: bool = True  # within these steps
    terminates: bool | None = None  # all ends are terminations, all are truncations, or both come

    def make(self, index: int = 0, seed: int = 0) -> Env:
        env = make_env(self.name, index, seed, self.kwargs, options=self.options)
        assert isinstance(env, Env)
        return env


def fake(kind: str) -> Case:
    return Case("support.gym_fakes:Recorder", {"observation_space": SPACES[kind], "action_space": SPACES[kind]})


BUILT_IN = {
    "dummy": Case("dummy", {"length": 7, "size": 8}, terminates=False),
    "a class": Case("dreamfleet.envs.builtin.dummy:Dummy", {"length": 1}, terminates=False),
    **{
        f"dummy:{task}": Case(f"dummy:{task}", {"length": 7}, terminates=kinds.terminates)
        for task, kinds in TASKS.items()
    },
    **{
        f"{suite}:{task}": Case(f"{suite}:{task}")
        for suite in ("catch", "bandit", "memory")
        for task in load_suite(suite).tasks()
    },
}
OPTIONS = {
    "repeat": Case("dummy:terminating", {"length": 7}, EnvOptions(repeat=3), terminates=True),
    "time limit": Case("dummy:terminating", {"length": 7}, EnvOptions(time_limit=4), terminates=False),
    "size": Case("dummy", {"length": 7, "size": 8}, EnvOptions(size=(48, 64))),
    "gym repeat": Case("support.gym_fakes:Recorder", {"lengths": (7,)}, EnvOptions(repeat=3), terminates=True),
    "gym time limit": Case("support.gym_fakes:Recorder", {"lengths": (7,)}, EnvOptions(time_limit=4), terminates=False),
    "gym size": Case("support.gym_fakes:Recorder", {"observation_space": gym.Box(0, 255, (3, 9, 12), np.uint8)}),
}
GYMNASIUM = {
    **{f"Recorder {kind}": fake(kind) for kind in SPACES},
    "terminates": Case("support.gym_fakes:Recorder", {"lengths": (3, 5)}, terminates=True),
    "truncates too": Case(
        "support.gym_fakes:Recorder", {"lengths": (3, 4), "truncates": True, "infos": True}, resets=0
    ),
    "CartPole": Case("gym:CartPole-v1", steps=150),
    "Pendulum": Case("gym:Pendulum-v1", {"max_episode_steps": 9}, terminates=False),
    "Blackjack": Case("gym:Blackjack-v1"),
    "FrozenLake": Case("gym:FrozenLake-v1"),
}
INSTALLED = {
    "atari": Case("atari:pong", steps=25, ends=False),
    "atari100k": Case("atari100k:breakout", steps=25, ends=False),
    "crafter": Case("crafter:reward", {"length": 8, "logs": True}, steps=12, resets=0, terminates=False),
    "dmc": Case("dmc:cartpole_swingup", {"image": False}, steps=40, ends=False),
    "dmc vision": Case("dmc:reacher_easy", {"proprio": False}, steps=6, ends=False),
    "minigrid": Case("minigrid:Empty-5x5-v0", {"max_steps": 12}, steps=40),
    "minigrid symbolic": Case("minigrid:DoorKey-5x5-v0", {"view": "symbolic", "max_steps": 12}, steps=40),
    "mujoco": Case("mujoco:hopper"),
    "procgen": Case("procgen:coinrun", steps=25, ends=False),
    "dmlab": Case("dmlab:rooms_watermaze", steps=25, ends=False),
    "minecraft": Case("minecraft", {"length": 9, "logs": True}, steps=25, resets=0),
    "memory_maze": Case("memory_maze:9x9", steps=6, ends=False),
}
# For suites whose libraries cannot be installed beside ours.
STAND_INS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "procgen": partial(install, procgen={"ProcgenGym3Env": ProcgenGym3Env}),
    "dmlab": partial(install, deepmind_lab={"Lab": Lab}),
    "minecraft": install_minerl,
}
CASES = {**BUILT_IN, **OPTIONS, **GYMNASIUM, **INSTALLED}


def record(env: Env, steps: int, resets: float) -> list[tuple[bool, Step]]:
    """What was asked and what came back. Copied, for an environment may use its arrays again."""
    rng = np.random.default_rng(1)
    seen = []
    for number in range(steps):
        reset = bool(rng.random() < resets) and number > 0
        action = {key: space.sample(rng) for key, space in env.act_space.items() if key != "reset"}
        obs = env.step({**action, "reset": np.bool_(reset)})
        seen.append((reset, {key: np.array(value) for key, value in obs.items()}))
    return seen


@cache
def recorded(case: str) -> tuple[dict[str, Space], dict[str, Space], list[tuple[bool, Step]]]:
    """One run of a case, through the checks of the worker."""
    env = CheckSpaces(CASES[case].make(), case)
    try:
        return dict(env.obs_space), dict(env.act_space), record(env, CASES[case].steps, CASES[case].resets)
    finally:
        env.close()


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    suite = CASES[request.param].name.partition(":")[0]
    if suite in SUITES and SUITES[suite].missing():
        STAND_INS[suite](monkeypatch)
    name: str = request.param
    return name


def test_declares_flags_and_reset(case: str) -> None:
    obs_space, act_space, _ = recorded(case)
    assert obs_space["reward"] == Space(np.float32)
    assert all(obs_space[flag] == Space(bool) for flag in FLAGS)
    assert act_space["reset"] == Space(bool)


def test_every_observation_is_in_its_space(case: str) -> None:
    obs_space, _, steps = recorded(case)
    for _, obs in steps:
        assert all(key in obs_space or key.startswith("log/") for key in obs)
        for key, space in obs_space.items():
            assert space.violation(obs[key]) is None, key


def test_dtypes_are_those_that_agents_know(case: str) -> None:
    obs_space, act_space, _ = recorded(case)
    known = (np.float32, np.int32, np.uint8, np.bool_)
    assert all(space.dtype.type in known for space in [*obs_space.values(), *act_space.values()])


def test_continuous_actions_fill_one_range_or_are_open(case: str) -> None:
    for key, space in recorded(case)[1].items():
        if not space.discrete:
            closed = np.isfinite(space.low) & np.isfinite(space.high)
            assert (space.low[closed] == -1).all(), key
            assert (space.high[closed] == 1).all(), key


def test_an_episode_begins_at_the_start_after_a_last_step_and_on_reset_and_nowhere_else(case: str) -> None:
    ended = True
    for reset, obs in recorded(case)[2]:
        assert obs["is_first"] == (reset or ended)
        if obs["is_first"]:
            assert obs["reward"] == 0
            assert not obs["is_last"]
        ended = bool(obs["is_last"])


def test_ends_are_terminations_or_truncations_as_the_task_has_them(case: str) -> None:
    steps = [obs for _, obs in recorded(case)[2]]
    assert all(obs["is_last"] or not obs["is_terminal"] for obs in steps)
    ends = [bool(obs["is_terminal"]) for obs in steps if obs["is_last"]]
    assert bool(ends) or not CASES[case].ends
    if CASES[case].terminates is not None:
        assert set(ends) == {CASES[case].terminates}
    if case == "truncates too":
        assert ends[:4] == [True, False, True, False]


def test_the_same_seed_gives_the_same_steps(case: str) -> None:
    env = CASES[case].make()
    try:
        again = record(env, CASES[case].steps, CASES[case].resets)
    finally:
        env.close()
    for number, ((_, first), (_, second)) in enumerate(zip(recorded(case)[2], again, strict=True)):
        assert first.keys() == second.keys()
        for key, value in first.items():
            np.testing.assert_array_equal(value, second[key], f"{key} of step {number}")


@pytest.mark.parametrize("case", ["dummy:observations", "catch:default", "Recorder box", "CartPole", "FrozenLake"])
@pytest.mark.parametrize(("index", "seed"), [(1, 0), (0, 1)])
def test_another_environment_and_another_run_give_other_steps(case: str, index: int, seed: int) -> None:
    env = CASES[case].make(index, seed)
    others = record(env, CASES[case].steps, CASES[case].resets)
    pairs = [(first, other) for (_, first), (_, other) in zip(recorded(case)[2], others, strict=True)]
    assert any(np.any(first[key] != other[key]) for first, other in pairs for key in first.keys() & other.keys())
    env.close()


@pytest.mark.parametrize("task", TASKS)
def test_the_actions_that_the_task_asks_for_arrive(task: str) -> None:
    """In these tasks the reward is the share of the action's elements that are right, which `count` says."""
    env = make_env(f"dummy:{task}", 0, 0, {"length": 7})
    obs: Any = env.step({"reset": np.True_})
    for _ in range(7):
        right: dict[str, Any] = {"reset": np.False_}
        for key, space in env.act_space.items():
            if key != "reset":
                wanted = obs["count"] % space.classes if space.discrete else -1.0 if obs["count"] % 2 else 1.0
                right[key] = np.broadcast_to(wanted, space.shape).astype(space.dtype)
        obs = env.step(right)
        assert obs["reward"] == 1
    assert obs["is_last"]


def as_sent(space: Any, value: Any) -> Any:
    """What an environment must get for an action of the agent, in the words of the specification."""
    if isinstance(space, gym.Discrete | gym.MultiDiscrete):
        return value + np.asarray(space.start)
    if isinstance(space, gym.MultiBinary) or space.dtype == np.bool_:
        return value
    if space.dtype.kind in "iu":
        return value + space.low.astype(np.int64)
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    bounded = np.isfinite(low) & np.isfinite(high)
    with np.errstate(invalid="ignore"):  # of the elements without bounds
        scaled = low + (np.clip(value, -1, 1) + 1.0) / 2 * (high - low)
    return np.where(bounded, scaled, np.clip(value, low, high))


def leaves(space: Any, key: str) -> dict[str, Any]:
    parts = space.spaces.items() if isinstance(space, gym.Dict) else enumerate(getattr(space, "spaces", ()))
    inner = {name: leaf for part, one in parts for name, leaf in leaves(one, f"{key}/{part}").items()}
    return inner or {key: space}


def assert_echo(env: Env | EnvBatch, kind: str, batch: tuple[int, ...]) -> None:
    """Sends actions, some beyond the bounds, and finds them in the observation that follows."""
    rng = np.random.default_rng(0)
    env.step({"reset": np.ones(batch, bool)})
    for _ in range(20):
        actions = {key: space.sample(rng, batch) for key, space in env.act_space.items() if key != "reset"}
        for key, space in env.act_space.items():
            if not space.discrete:
                actions[key] = (actions[key] * 1.5).astype(np.float32)
        obs = env.step({**actions, "reset": np.zeros(batch, bool)})
        for path, space in leaves(SPACES[kind], "").items():
            sent = as_sent(space, actions[f"action{path}"])
            tolerance = 1e-2 if space.dtype == np.float16 else 1e-6
            np.testing.assert_allclose(obs[f"given{path}"], sent, tolerance, tolerance, err_msg=path)


@pytest.mark.parametrize("kind", SPACES)
def test_actions_come_back_as_observations(kind: str) -> None:
    notes: list[str] = []
    assert_echo(adapt(Echo(SPACES[kind]), "echo", EnvOptions(), 0, notes), kind, ())
    assert notes == []


@pytest.mark.parametrize("kind", SPACES)
def test_actions_of_a_batch_come_back_as_observations(kind: str) -> None:
    env = adapt(SyncVectorEnv([partial(Echo, SPACES[kind])] * 3), "echo", EnvOptions(), 0, [])
    assert_echo(env, kind, (3,))
    env.close()


def recorders(mode: AutoresetMode) -> Any:
    lengths = [(2, 5), (3,), (1, 4)]
    rows = [partial(Recorder, lengths=each, truncates=True, infos=True) for each in lengths]
    return adapt(SyncVectorEnv(rows, autoreset_mode=mode), "rows", EnvOptions(), 0, [])


def cart_poles(mode: str) -> Any:
    options = EnvOptions(vector=True)
    return make_env("gym:CartPole-v1", 0, 0, {"vectorization_mode": mode}, options=options, room=3)


BATCHES: dict[str, Callable[[], Any]] = {
    **{mode.name: partial(recorders, mode) for mode in AutoresetMode},
    "CartPole sync": partial(cart_poles, "sync"),
    "CartPole custom": partial(cart_poles, "vector_entry_point"),
}


def record_rows(name: str) -> tuple[dict[str, Space], list[list[dict[str, Any]]]]:
    """What each row sees: with the first observations of rows that have begun as steps of their own."""
    env = CheckBatch(BATCHES[name](), name)
    rng = np.random.default_rng(0)
    rows: list[list[dict[str, Any]]] = [[] for _ in range(env.num_envs)]
    reset = np.ones(env.num_envs, bool)
    for number in range(120):
        actions = {key: s.sample(rng, (env.num_envs,)) for key, s in env.act_space.items() if key != "reset"}
        again = np.ones_like(reset) if number == 50 else reset
        step = env.step({**actions, "reset": again})
        begun = env.begun().copy()
        for row, seen in enumerate(rows):
            seen.append({**{key: np.array(value[row]) for key, value in step.items()}, "asked": again[row]})
        for row in np.flatnonzero(begun):
            rows[row].append({**{k: np.array(v[row]) for k, v in env.first().items()}, "asked": np.True_})
        reset = np.array(step["is_last"] & ~begun)
    env.close()
    return dict(env.obs_space), rows


@pytest.mark.parametrize("name", BATCHES)
def test_every_row_of_a_batch_keeps_to_the_contract(name: str) -> None:
    assert isinstance(BATCHES[name](), EnvBatch)
    obs_space, rows = record_rows(name)
    for steps in rows:
        ended = True
        for obs in steps:
            assert obs["is_first"] == (obs["asked"] or ended)
            assert obs["is_last"] or not obs["is_terminal"]
            if obs["is_first"]:
                assert obs["reward"] == 0
                assert not obs["is_last"]
            for key, space in obs_space.items():
                assert space.violation(obs[key]) is None, key
            ended = bool(obs["is_last"])
        assert sum(bool(obs["is_last"]) for obs in steps) > 1


@pytest.mark.parametrize("name", BATCHES)
def test_the_same_seed_gives_the_same_rows(name: str) -> None:
    for first, second in zip(record_rows(name)[1], record_rows(name)[1], strict=True):
        assert len(first) == len(second)
        for number, (one, other) in enumerate(zip(first, second, strict=True)):
            assert one.keys() == other.keys()
            for key, value in one.items():
                np.testing.assert_array_equal(value, other[key], f"{key} of step {number}")
