"""Parameters by name: saving, loading, and what does not fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dreamfleet.agent.dreamer import DreamerAgent
from dreamfleet.agent.parameters import leaf_names, load_leaves, optimizer_to_reset
from dreamfleet.agent.train_step import init_state
from dreamfleet.checkpoint.arrays import save_arrays
from dreamfleet.checkpoint.partial import merge
from dreamfleet.checkpoint.snapshot import Snapshots
from dreamfleet.core.errors import CheckpointError, CheckpointMismatch
from dreamfleet.core.hyperparameters import OptimizerOptions
from dreamfleet.model.optimizer import make_optimizer
from support.tiny_dreamer import CHOICE, VECTOR, make_data, make_recipe, tiny_options


def train_once(agent: DreamerAgent, seed: int) -> dict[str, float]:
    batch = make_data(tiny_options(), VECTOR, CHOICE, 2, 4, seed=seed)
    _, _, metrics = agent.train(agent.init_train(2), batch)
    return dict(metrics)


def test_a_loaded_agent_goes_on_exactly_as_the_saved_one(agent: DreamerAgent) -> None:
    train_once(agent, 0)
    saved = agent.save()
    expected = [train_once(agent, seed) for seed in (1, 2)]
    after = agent.save()
    agent.load(saved)
    for key, value in agent.save().items():
        np.testing.assert_array_equal(value, saved[key])
    assert [train_once(agent, seed) for seed in (1, 2)] == expected
    for key, value in agent.save().items():
        np.testing.assert_array_equal(value, after[key])


def test_acting_uses_what_was_loaded(agent: DreamerAgent) -> None:
    obs = {"position": np.ones((2, 3), np.float32), "is_first": np.ones(2, bool)}
    saved = agent.save()
    _, _, latents = agent.policy(agent.init_policy(2), obs, "train")
    assert np.asarray(latents["dyn/deter"], np.float32).any()
    blank = {key: np.zeros_like(value) if key.startswith("world/") else value for key, value in saved.items()}
    agent.load(blank)
    _, _, latents = agent.policy(agent.init_policy(2), obs, "train")
    agent.load(saved)
    assert not np.asarray(latents["dyn/deter"], np.float32).any()


def test_saving_brings_arrays_to_the_host(agent: DreamerAgent) -> None:
    saved = agent.save()
    assert all(isinstance(value, np.ndarray) for value in saved.values())
    assert saved["updates"].dtype == np.int32
    assert saved["updates"].shape == ()


def test_names_say_where_an_array_belongs(agent: DreamerAgent) -> None:
    assert len(set(agent.names)) == len(agent.names)
    assert "world/dyn/core/gates/kernel" in agent.names
    assert "slow/out/bias" in agent.names
    assert "world/pol/heads/move/logits/kernel" in agent.names


def save_as_snapshot(run: Path, arrays: Mapping[str, np.ndarray]) -> Path:
    snapshots = Snapshots(run)
    save_arrays(snapshots.begin(5) / "agent.safetensors", arrays)
    return snapshots.commit(5, {"updates": 1})


def test_a_new_head_among_loaded_arrays_moves_at_the_learning_rate(tmp_path: Path) -> None:
    """Without warm-up, every update by a constant gradient is as large as the learning rate, from the first one on.

    With the step of the optimiser that was loaded, the moments of the head would count as old: its updates would be
    from three to nine times as large.
    """
    optimizer = make_optimizer(OptimizerOptions(lr=0.01, warmup=0, agc=1e9))

    def begin(head: int) -> dict[str, Any]:
        params = {"body": jnp.ones(2), "head": jnp.ones(head)}
        return {"world": params, "opt": optimizer.init(params)}

    def by_name(state: Any) -> dict[str, np.ndarray]:
        return dict(zip(leaf_names(state), map(np.asarray, jax.tree.leaves(state)), strict=True))

    old = {name: value + 5000 if value.dtype == np.int32 else value + 1 for name, value in by_name(begin(4)).items()}
    new = by_name(begin(3))
    source = save_as_snapshot(tmp_path, old)
    arrays, report = merge(new, source, ".*", lambda taken: optimizer_to_reset(list(new), taken))
    assert report.taken == ["world/body"]
    state = jax.tree.unflatten(jax.tree.structure(begin(3)), list(arrays.values()))
    params, opt = state["world"], state["opt"]
    grads = {"body": jnp.array([0.3, -2.0]), "head": jnp.array([5.0, -0.1, 1e-4])}
    for _ in range(12):
        updates, opt = optimizer.update(grads, opt, params)
        for part, sign in (("body", [-1, 1]), ("head", [-1, 1, -1])):
            np.testing.assert_allclose(updates[part], 0.01 * np.array(sign), rtol=1e-4)


def test_a_dreamer_that_takes_a_part_of_another_warms_up_again(agent: DreamerAgent, tmp_path: Path) -> None:
    """The rate of the first update is zero."""
    saved = agent.save()
    begun = {name: np.zeros_like(value) if name.startswith("opt/") else value for name, value in saved.items()}
    old = {
        name: np.full_like(value, 5000) if name in ("opt/1/step", "opt/2/count") else value
        for name, value in saved.items()
    }
    head = "world/pol/heads/move/logits/bias"
    old |= {name: np.zeros(7, np.float32) for name in old if name.endswith("pol/heads/move/logits/bias")}
    arrays, report = merge(begun, save_as_snapshot(tmp_path, old), ".*", agent.optimizer_to_reset)
    assert report.reset == sorted(name for name in saved if name.startswith("opt/") and not name.endswith(head[6:]))
    agent.load(arrays)
    train_once(agent, 3)
    found = agent.save()
    agent.load(saved)
    assert (found["opt/1/step"], found["opt/2/count"]) == (1, 1)
    for name in agent.names:
        if name.startswith("world/"):
            np.testing.assert_array_equal(found[name], begun[name], name)
    assert agent.optimizer_to_reset(set(saved)) == set()


def test_a_snapshot_with_a_state_of_weight_decay_is_loaded(agent: DreamerAgent) -> None:
    saved = agent.save()
    former = {"opt/3/count" if name == "opt/2/count" else name: value for name, value in saved.items()}
    former["opt/3/count"] = np.array(17, np.int32)
    agent.load(former)
    found = agent.save()
    agent.load(saved)
    assert found["opt/2/count"] == 17


def test_all_of_a_snapshot_with_a_state_of_weight_decay_is_taken_by_a_new_run(
    agent: DreamerAgent, tmp_path: Path
) -> None:
    saved = agent.save()
    former = {"opt/3/count" if name == "opt/2/count" else name: value for name, value in saved.items()}
    former["opt/3/count"] = np.array(17, np.int32)
    source = save_as_snapshot(tmp_path, former)
    arrays, report = merge(saved, source, ".*", agent.optimizer_to_reset, agent.upgrade_arrays)
    assert (report.reset, report.mismatched) == ([], [])
    assert arrays["opt/2/count"] == 17


def test_statistics_without_their_weight_are_not_taken_from_another_agent() -> None:
    names = ["norms/ret/first", "norms/ret/second", "norms/val/first", "norms/val/second", "norms/val/weight"]
    assert optimizer_to_reset(names, {*names}) == set()
    assert optimizer_to_reset(names, {*names[:4]}) == {"norms/val/first", "norms/val/second"}


def test_statistics_of_a_former_snapshot_are_taken_as_they_are() -> None:
    """The weight by which statistics are corrected is 1 in the long run."""
    names = ["norms/val/first", "norms/val/second", "norms/val/weight"]
    leaves = [np.zeros((), np.float32)] * 3
    former = {"norms/val/first": np.float32(0.5), "norms/val/second": np.float32(2.0)}
    assert load_leaves(names, leaves, former, None) == [0.5, 2.0, 1.0]
    with pytest.raises(CheckpointMismatch, match="lacks 1 of the agent's arrays: norms/val/second"):
        load_leaves(names, leaves, {"norms/val/first": np.float32(0.5)}, None)


def test_a_pattern_loads_a_part(agent: DreamerAgent) -> None:
    saved = agent.save()
    other = {key: value + 1 for key, value in saved.items()}
    agent.load(other, r"^world/enc/")
    found = agent.save()
    agent.load(saved)
    for key in agent.names:
        np.testing.assert_array_equal(found[key], other[key] if key.startswith("world/enc/") else saved[key])


def test_a_pattern_without_a_match_is_refused(agent: DreamerAgent) -> None:
    with pytest.raises(CheckpointError, match="no parameter matches 'encoder'"):
        agent.load(agent.save(), "encoder")


def test_another_shape_is_named(agent: DreamerAgent) -> None:
    saved = agent.save()
    name = "world/dyn/core/from_action/linear/kernel"
    with pytest.raises(CheckpointError, match=rf"{name} is \(9, 6\) instead of \(5, 6\)"):
        agent.load({**saved, name: np.zeros((9, 6), np.float32)})


def test_the_first_of_many_differences_is_named() -> None:
    small, large = make_recipe(tiny_options()), make_recipe(tiny_options(dyn=replace(tiny_options().dyn, deter=24)))
    own = jax.eval_shape(lambda key: init_state(key, small), jax.random.key(0))
    other = jax.eval_shape(lambda key: init_state(key, large), jax.random.key(0))
    names = leaf_names(own)
    data = {
        name: np.zeros(leaf.shape, leaf.dtype)
        for name, leaf in zip(leaf_names(other), jax.tree.leaves(other), strict=True)
    }
    leaves = [np.zeros(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(own)]
    first = next(name for name, leaf in zip(names, leaves, strict=True) if data[name].shape != leaf.shape)
    with pytest.raises(CheckpointError, match=f"another agent: {first} is"):
        load_leaves(names, leaves, data, None)


def test_missing_arrays_are_named(agent: DreamerAgent) -> None:
    saved = agent.save()
    del saved["world/rew/out/bias"]
    with pytest.raises(CheckpointError, match="lacks 1 of the agent's arrays: world/rew/out/bias"):
        agent.load(saved)


def test_a_checkpoint_without_its_counter_is_refused(agent: DreamerAgent) -> None:
    saved = agent.save()
    del saved["acted"]
    with pytest.raises(CheckpointError):
        agent.load(saved)
