"""Faults that are easy to make, each found by a check of the suite.

A fault stands in what the model itself calls, not in what a check calls.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import pytest

from dreamfleet.agent import train_step
from dreamfleet.model import dreamer_model as world_module
from dreamfleet.model import rssm_scan
from support.dreamer_checks import check_actor_loss, check_reset_forgets, check_reward_loss, check_time_indices


def test_the_model_itself_passes() -> None:
    check_actor_loss()
    check_reward_loss()
    check_time_indices()
    check_reset_forgets()


def test_a_wrong_sign_in_the_actor_loss_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = world_module.actor_loss
    monkeypatch.setattr(world_module, "actor_loss", lambda *args: -right(*args))
    with pytest.raises(AssertionError, match="the loss policy"):
        check_actor_loss()


def test_a_reward_of_the_next_step_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = world_module._model_losses

    def shifted(world: Any, states: Any, post: Any, batch: Any, *others: Any) -> Any:
        return right(world, states, post, batch._replace(reward=jnp.roll(batch.reward, -1, 1)), *others)

    monkeypatch.setattr(world_module, "_model_losses", shifted)
    with pytest.raises(AssertionError, match="the loss rew"):
        check_reward_loss()


def test_a_context_cut_one_step_late_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = train_step.cut_context

    def shifted(carry: Any, data: Any, recipe: Any) -> Any:
        return right(carry, {**data, "reward": jnp.roll(data["reward"], -1, 1)}, recipe)

    monkeypatch.setattr(train_step, "cut_context", shifted)
    with pytest.raises(AssertionError):
        check_time_indices()


def test_an_action_chosen_at_a_step_instead_of_before_it_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = train_step.cut_context

    def unshifted(*args: Any) -> Any:
        state, batch = right(*args)
        return state, batch._replace(last_actions=batch.actions)

    monkeypatch.setattr(train_step, "cut_context", unshifted)
    with pytest.raises(AssertionError):
        check_time_indices()


def test_a_missing_reset_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = rssm_scan.Inputs

    def forgetful(action: Any, token: Any, keep: Any, noise: Any) -> Any:
        return right(action, token, jnp.ones_like(keep), noise)

    monkeypatch.setattr(rssm_scan, "Inputs", forgetful)
    with pytest.raises(AssertionError):
        check_reset_forgets()
