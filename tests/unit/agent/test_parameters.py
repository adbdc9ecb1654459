"""Parameters by name: saving, loading, and what does not fit."""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np
import pytest

from dreamfleet.agent.dreamer import DreamerAgent
from dreamfleet.agent.parameters import leaf_names, load_leaves
from dreamfleet.agent.training import init_state
from dreamfleet.core.errors import CheckpointError
from tiny_dreamer import CHOICE, VECTOR, make_data, make_recipe, tiny_options


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
