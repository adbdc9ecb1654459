"""A saved Dreamer acts as the training agent does: in this process, from a file, and where only JAX and NumPy are."""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import pytest

from dreamfleet.agent.dreamer import ComputeOptions, DreamerAgent, DreamerShape
from dreamfleet.agent.export import policy_file
from dreamfleet.agent.export.policy import Raw, SavedActor
from dreamfleet.agent.export.policy_file import Policy, PolicyError
from dreamfleet.core.errors import CheckpointError
from dreamfleet.core.spaces import Space
from dreamfleet.model.spaces import Spaces
from support.tiny_dreamer import CHOICE, IMAGE, PUSH, VECTOR, lively, tiny_options

TESTS = Path(__file__).parents[2]
OBS = Spaces(**VECTOR, **IMAGE)
ACT = Spaces(**CHOICE, **PUSH)
STEPS, ROWS, WARM_UP = 50, 2, 3  # 100 observations


class NeverTrains(DreamerAgent):
    """The training agent, but for its update, which takes long to compile and is not asked for here."""

    def _compile(self) -> None:
        self._metric_names, self._health_names = [], []


def make_lively(dtype: str = "float32", rng: str = "unsafe_rbg") -> DreamerAgent:
    shape, compute = (
        DreamerShape(ROWS, policy_rows=(ROWS,), slots=ROWS),
        ComputeOptions(dtype, rng=rng, best_eval_action=True),
    )
    agent = NeverTrains(OBS, {**ACT, "reset": Space(bool)}, tiny_options(), shape, compute, seed=3)
    names = [name for name in agent.names if name.startswith("world/")]
    agent.load(dict(zip(names, jax.device_get(jax.tree.leaves(lively(agent._initial).world)), strict=True)), "^world/")
    return agent


def make_inputs(steps: int = STEPS, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    obs = {f"obs/{key}": space.sample(rng, (steps, ROWS)) for key, space in OBS.items()}
    reset = rng.random((steps, ROWS)) < 0.1
    reset[0] = True
    return {**obs, "reset": reset}


def step_obs(inputs: dict[str, np.ndarray], time: int) -> dict[str, np.ndarray]:
    obs = {key: inputs[f"obs/{key}"][time] for key in OBS}
    return {**obs, "is_first": inputs["reset"][time]}


def run_agent(agent: DreamerAgent, inputs: dict[str, np.ndarray], mode: str = "train") -> dict[str, np.ndarray]:
    carry = agent.init_policy(ROWS)
    out: dict[str, list[np.ndarray]] = {"deter": [], "stoch": []}
    for time in range(len(inputs["reset"])):
        _, actions, _ = agent.policy(carry, step_obs(inputs, time), mode)
        out["deter"].append(np.asarray(carry.data.deter, np.float32))
        out["stoch"].append(np.asarray(carry.data.stoch))
        for key, value in actions.items():
            out.setdefault(f"action/{key}", []).append(value)
    return {key: np.stack(values) for key, values in out.items()}


def run_policy(policy: Policy, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    state = None
    out: dict[str, list[np.ndarray]] = {"deter": [], "stoch": []}
    for time in range(len(inputs["reset"])):
        actions, state = policy.act(step_obs(inputs, time), state)
        out["deter"].append(np.asarray(state[0][0], np.float32))
        out["stoch"].append(np.asarray(state[0][1]))
        for key, value in actions.items():
            out.setdefault(f"action/{key}", []).append(value)
    return {key: np.stack(values) for key, values in out.items()}


class Trained(NamedTuple):
    """What an agent saved, and what it did next."""

    arrays: dict[str, np.ndarray]
    sampled: dict[str, np.ndarray]
    best: dict[str, np.ndarray]

    def actor(self, dtype: str = "float32") -> SavedActor:
        return SavedActor(OBS, {**ACT, "reset": Space(bool)}, tiny_options(), self.arrays, dtype, "unsafe_rbg", 3)


@pytest.fixture(scope="module")
def trained() -> Trained:
    """The agent has acted before it is saved: the policy goes on with its random numbers."""
    agent = make_lively()
    run_agent(agent, make_inputs(WARM_UP, seed=9))
    arrays = agent.save()
    sampled = run_agent(agent, make_inputs())
    agent.load(arrays)
    return Trained(arrays, sampled, run_agent(agent, make_inputs(), "eval"))


@pytest.fixture(scope="module")
def file(trained, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("exported") / "policy.zip"
    trained.actor().export(path, Raw(), "seed: 3\n", step=12)
    return path


@pytest.fixture(scope="module")
def policy(file) -> Policy:
    return policy_file.load(file)


def expect_same(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> None:
    assert found.keys() == wanted.keys()
    for key, value in wanted.items():
        if value.dtype.kind == "f":
            np.testing.assert_allclose(found[key], value, rtol=0, atol=1e-5, err_msg=key)
        else:
            np.testing.assert_array_equal(found[key], value, err_msg=key)
    assert len(np.unique(wanted["action/move"])) > 1
    assert np.abs(wanted["deter"]).max() > 0.1


def test_a_saved_policy_acts_as_the_training_agent(trained) -> None:
    expect_same(run_policy(trained.actor().policy(Raw()), make_inputs()), trained.sampled)


def test_a_deterministic_policy_takes_the_actions_of_evaluation(trained, file) -> None:
    expect_same(run_policy(policy_file.load(file, deterministic=True), make_inputs()), trained.best)
    assert (trained.best["action/push"] != trained.sampled["action/push"]).all()


def act_elsewhere(python: str, file: Path, folder: Path, *block: str) -> dict[str, np.ndarray]:
    np.savez(folder / "inputs.npz", **make_inputs())
    script = [
        python,
        str(TESTS / "support/jax_only.py"),
        str(file),
        str(folder / "inputs.npz"),
        str(folder / "results.npz"),
    ]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    environment["JAX_PLATFORMS"] = "cpu"
    ended = subprocess.run([*script, *block], env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert ended.returncode == 0, ended.stderr
    return dict(np.load(folder / "results.npz"))


def test_an_exported_policy_acts_as_the_agent_with_jax_and_numpy_alone(trained, file, tmp_path) -> None:
    expect_same(act_elsewhere(sys.executable, file, tmp_path, "block"), trained.sampled)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_an_exported_policy_runs_in_an_environment_that_has_only_jax_and_numpy(trained, file, tmp_path) -> None:
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True, timeout=120)
    python = str(tmp_path / "venv" / "bin" / "python")
    constraints = str(TESTS.parent / "constraints.txt")
    subprocess.run([python, "-m", "pip", "install", "-q", "-c", constraints, "jax", "numpy"], check=True, timeout=400)
    listed = subprocess.run([python, "-m", "pip", "list"], check=True, capture_output=True, text=True, timeout=60)
    assert "equinox" not in listed.stdout
    expect_same(act_elsewhere(python, file, tmp_path), trained.sampled)


def test_the_same_seed_gives_the_same_actions(policy) -> None:
    obs = step_obs(make_inputs(), 0)
    policy.reset(4)
    first, _ = policy.act(obs)
    second, _ = policy.act(obs)
    policy.reset(4)
    again, _ = policy.act(obs)
    np.testing.assert_array_equal(first["push"], again["push"])
    assert (first["push"] != second["push"]).any()


def test_one_environment_and_many_go_through_the_same_call(policy) -> None:
    inputs = make_inputs()
    many = {key: inputs[f"obs/{key}"][0] for key in OBS}
    action, state = policy({key: value[0] for key, value in many.items()})
    assert action["move"].shape == ()
    assert action["push"].shape == (2,)
    action, state = policy({key: value[0] for key, value in many.items()}, state)
    both, state = policy(many)
    assert both["push"].shape == (ROWS, 2)
    with pytest.raises(PolicyError, match="the state is of 2 environments, the observation of 1"):
        policy({key: value[0] for key, value in many.items()}, state)


def test_a_reset_row_forgets_and_the_others_do_not(policy) -> None:
    inputs = make_inputs()
    obs = [{key: inputs[f"obs/{key}"][time] for key in OBS} for time in range(3)]
    _, state = policy(obs[0])
    policy.reset(1)
    _, (kept, _) = policy(obs[1], state)
    policy.reset(1)
    _, (mixed, _) = policy(obs[1], state, reset=[True, False])
    policy.reset(1)
    _, (fresh, _) = policy(obs[1])
    np.testing.assert_array_equal(np.asarray(mixed[0])[0], np.asarray(fresh[0])[0])
    np.testing.assert_array_equal(np.asarray(mixed[0])[1], np.asarray(kept[0])[1])
    assert (np.asarray(kept[0])[0] != np.asarray(fresh[0])[0]).any()


@pytest.mark.parametrize(
    ("obs", "message"),
    [
        ({"position": np.zeros(3)}, "must be a dictionary with the keys"),
        ({"position": np.zeros(4), "image": np.zeros((12, 12, 3))}, r"'position' has shape \(4,\), the policy takes"),
        ({"position": np.zeros(3), "image": np.zeros((2, 12, 12, 3))}, "different numbers of environments"),
    ],
)
def test_an_observation_that_does_not_fit_is_named(policy, obs, message) -> None:
    with pytest.raises(PolicyError, match=message):
        policy(obs)


def test_a_file_of_a_newer_format_is_refused(file, tmp_path) -> None:
    newer = tmp_path / "newer.zip"
    with zipfile.ZipFile(file) as old, zipfile.ZipFile(newer, "w") as new:
        about = json.loads(old.read("policy.json"))
        new.writestr("policy.json", json.dumps({**about, "format": 2}))
    with pytest.raises(PolicyError, match="has format 2, this reader knows 1: update dreamfleet"):
        policy_file.load(newer)


@pytest.mark.parametrize("content", [b"", b"not a zip", b"PK\x03\x04"])
def test_a_file_that_is_no_policy_is_refused(tmp_path, content: bytes) -> None:
    (tmp_path / "p.zip").write_bytes(content)
    with pytest.raises(PolicyError, match="is not an exported policy"):
        policy_file.load(tmp_path / "p.zip")


def rewrite(file: Path, to: Path, change: Callable[[str, bytes], bytes]) -> Path:
    with zipfile.ZipFile(file) as old, zipfile.ZipFile(to, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, change(name, old.read(name)))
    return to


def test_a_file_that_its_user_compressed_is_still_read(file, tmp_path) -> None:
    again = rewrite(file, tmp_path / "again.zip", lambda name, data: data)
    assert again.stat().st_size < file.stat().st_size
    assert policy_file.load(again).about == policy_file.load(file).about


@pytest.mark.parametrize("kind", [".json", ".npy"])
def test_a_small_file_with_much_in_it_is_refused(file, tmp_path, kind: str) -> None:
    with zipfile.ZipFile(file) as opened:
        large = next(name for name in opened.namelist() if name.endswith(kind))
    bomb = rewrite(file, tmp_path / "bomb.zip", lambda name, data: data + bytes(1 << 27) * (name == large))
    with pytest.raises(PolicyError, match=r"bomb.zip decompresses to more than \d+ MiB, 10 times its own size"):
        policy_file.load(bomb)


def test_a_damaged_file_is_refused_in_one_way(file, tmp_path) -> None:
    whole, rng, path = file.read_bytes(), random.Random(5), tmp_path / "p.zip"
    with zipfile.ZipFile(file) as opened:
        about = opened.getinfo("policy.json")
    for case in range(60):
        data = bytearray(whole)
        at = about.header_offset if case % 2 else len(data) - 4000
        data[rng.randrange(at, at + 4000)] = rng.randrange(256)
        path.write_bytes(data[: rng.randrange(len(data))] if case % 5 == 0 else data)
        with contextlib.suppress(PolicyError):  # a byte that means nothing may have been hit
            policy_file.load(path)


def test_the_file_holds_config_and_spaces_and_no_pickle(file) -> None:
    with zipfile.ZipFile(file) as opened:
        about = json.loads(opened.read("policy.json"))
        assert opened.read("config.yaml") == b"seed: 3\n"
        for name in opened.namelist():
            if name.endswith(".npy"):
                with opened.open(name) as member:
                    np.load(member, allow_pickle=False)
    assert about["step"] == 12
    assert about["obs_space"]["position"]["shape"] == [3]
    assert set(about["act_space"]) == {"move", "push"}


def test_half_precision_survives_the_file(trained, tmp_path) -> None:
    actor = trained.actor("bfloat16")
    actor.export(tmp_path / "p.zip", Raw(), "", 0)
    found = run_policy(policy_file.load(tmp_path / "p.zip"), make_inputs(5))
    expect_same(found, run_policy(actor.policy(Raw()), make_inputs(5)))


def test_weights_of_another_agent_are_refused(trained) -> None:
    arrays = trained.arrays
    with pytest.raises(CheckpointError, match="is of another agent"):
        SavedActor(VECTOR | {"position": Space(np.float32, (4,))}, ACT, tiny_options(), arrays, "float32")
    with pytest.raises(CheckpointError, match="not of a Dreamer"):
        SavedActor(OBS, ACT, tiny_options(), {"updates": np.zeros(1)})
