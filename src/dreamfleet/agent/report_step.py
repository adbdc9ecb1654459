"""What the agent shows of itself: its losses on a batch it does not learn from, and videos of its predictions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import PRNGKeyArray

from dreamfleet.agent.train_step import Recipe, TrainCarry, TrainState, cut_context
from dreamfleet.core.hyperparameters import DreamerOptions
from dreamfleet.model.dreamer_model import Batch, DreamerModel, Outcome, observe, world_loss
from dreamfleet.model.imagination import replay_actions
from dreamfleet.model.rssm import State
from dreamfleet.model.spaces import image_keys
from dreamfleet.model.vectors import action_vector

SHOWN = 6  # sequences in a video
BORDER = 2
BLANK = 10  # black frames at the end
OBSERVED, IMAGINED = (0, 255, 0), (255, 0, 0)


def report_step(
    train: TrainState, carry: TrainCarry, data: Mapping[str, Array], key: PRNGKeyArray, recipe: Recipe
) -> tuple[TrainCarry, dict[str, Array], dict[str, Array]]:
    """The carry, numbers, and per image key the truth and the prediction."""
    recipe = replace(recipe, options=_without_updates(recipe.options))
    loss_key, observe_key, imagine_key = jax.random.split(jax.random.fold_in(key, train.updates), 3)
    start, batch = cut_context(carry, data, recipe)
    options, settings = recipe.options, recipe.settings
    loss, outcome = world_loss(train.world, train.slow, train.norms, start, batch, loss_key, options, settings)
    metrics = {**outcome.metrics, "loss": loss}
    if options.report_gradnorms:
        metrics.update(_gradient_norms(train, start, batch, loss_key, recipe))
    predicted = open_loop(train.world, start, batch, observe_key, imagine_key, recipe)
    end = jax.tree.map(lambda x: x[-1], outcome.states)
    return TrainCarry(end, {name: action[:, -1] for name, action in batch.actions.items()}), metrics, predicted


def _without_updates(options: DreamerOptions) -> DreamerOptions:
    """A report reads the running statistics as they are."""
    norms = ("retnorm", "valnorm", "advnorm")
    return replace(options, **{name: replace(getattr(options, name), rate=0.0) for name in norms})


def open_loop(
    world: DreamerModel,
    start: State,
    batch: Batch,
    observe_key: PRNGKeyArray,
    imagine_key: PRNGKeyArray,
    recipe: Recipe,
) -> dict[str, Array]:
    """Images of a few sequences: the first half decoded from what was observed, the second from what was imagined."""
    images = image_keys(recipe.obs_space)
    if not images:
        return {}
    few = min(SHOWN, batch.reward.shape[0])
    start, batch = jax.tree.map(lambda x: x[:few], (start, batch))
    half = batch.reward.shape[1] // 2
    early = jax.tree.map(lambda x: x[:, :half], batch)
    seen, _ = observe(world, start, early, observe_key, recipe.settings)
    actions = action_vector(world.pol.spaces, batch.last_actions, recipe.settings.dtype).swapaxes(0, 1)[half:]
    last = jax.tree.map(lambda x: x[-1], seen)
    dreamt = replay_actions(world.dyn, last, actions, imagine_key)
    states = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), seen, dreamt)
    decoded = world.dec.predict(states)
    return {key: jax.nn.sigmoid(decoded[key].astype(jnp.float32)).swapaxes(0, 1) for key in images}


def _gradient_norms(
    train: TrainState, start: State, batch: Batch, key: PRNGKeyArray, recipe: Recipe
) -> dict[str, Array]:
    """Of each loss by itself, unscaled."""

    def losses(world: DreamerModel) -> dict[str, Array]:
        args = (train.slow, train.norms, start, batch, key, recipe.options, recipe.settings)
        outcome: Outcome = world_loss(world, *args)[1]
        return outcome.losses

    values, pull_back = jax.vjp(losses, train.world)
    norms = {}
    for name in values:
        one = {
            other: jnp.ones_like(value) if other == name else jnp.zeros_like(value) for other, value in values.items()
        }
        (grads,) = pull_back(one)
        norms[f"gradnorm/{name}"] = jnp.sqrt(sum(jnp.sum(jnp.square(grad)) for grad in jax.tree.leaves(grads)))
    return norms


def make_video(truth: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    """[time, height, width, 3] of uint8: per sequence a column of truth, prediction and error.

    `truth` is uint8 and `predicted` between 0 and 1, both [sequence, time, height, width, channels].
    """
    real = truth[: len(predicted)].astype(np.float32)
    model = predicted.astype(np.float32) * 255
    rows = [_colour(part) for part in (real, model, (model - real + 255) / 2)]
    half = real.shape[1] // 2
    framed = [_frame(part.clip(0, 255).astype(np.uint8), half) for part in rows]
    columns = np.concatenate(framed, 2)  # under each other
    video = np.concatenate(list(columns), 2)  # beside each other
    return np.concatenate([video, np.zeros((BLANK, *video.shape[1:]), np.uint8)])


def _colour(images: np.ndarray) -> np.ndarray:
    """Three channels, whatever there are."""
    if images.shape[-1] == 3:
        return images
    return np.repeat(images[..., :1], 3, -1)


def _frame(images: np.ndarray, half: int) -> np.ndarray:
    framed = np.empty((*images.shape[:2], images.shape[2] + 2 * BORDER, images.shape[3] + 2 * BORDER, 3), np.uint8)
    framed[:, :half] = OBSERVED
    framed[:, half:] = IMAGINED
    framed[:, :, BORDER:-BORDER, BORDER:-BORDER] = images
    return framed
