"""A Dreamer small enough to compile in seconds, and batches for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from dreamfleet.agent.dreamer import ComputeOptions, DreamerAgent, DreamerShape
from dreamfleet.agent.train_step import Recipe
from dreamfleet.core.hyperparameters import (
    ContinueOptions,
    DecoderOptions,
    DreamerOptions,
    EncoderOptions,
    PolicyOptions,
    RewardOptions,
    RSSMOptions,
    ValueOptions,
)
from dreamfleet.core.spaces import STEP_KEYS, Space
from dreamfleet.model.dreamer_model import Batch, ComputeSettings, DreamerModel
from dreamfleet.model.spaces import Spaces

T = TypeVar("T")

VECTOR = Spaces(position=Space(np.float32, (3,)))
IMAGE = Spaces(image=Space(np.uint8, (12, 12, 3)))
CHOICE = Spaces(move=Space(np.int32, (), 0, 5))
PUSH = Spaces(push=Space(np.float32, (2,), -1, 1))

FLOAT32 = ComputeSettings(jnp.float32)


def tiny_options(**changes: Any) -> DreamerOptions:
    """Two poolings instead of four, so that an image of 12x12 is large enough."""
    coder = {"depth": 2, "mults": (2, 4), "layers": 1, "units": 8}
    options = DreamerOptions(
        dyn=RSSMOptions(deter=16, hidden=6, stoch=3, classes=4),
        enc=EncoderOptions(**coder),
        dec=DecoderOptions(**coder),
        rewhead=RewardOptions(units=8, bins=11),
        conhead=ContinueOptions(units=8),
        policy=PolicyOptions(layers=1, units=8),
        value=ValueOptions(layers=1, units=8, bins=11),
        imag_length=3,
    )
    return replace(options, **changes)


def lively(make: Callable[[jax.Array], T], seed: int = 0) -> T:
    """What `make` makes of a key, with random numbers in every bias, scale and kernel. Nothing is compiled for it."""
    rng = np.random.default_rng(seed)

    def draw(path: Any, leaf: Any) -> jax.Array:
        noise = rng.standard_normal(leaf.shape)
        kind = getattr(path[-1], "name", "")
        if kind == "kernel":
            noise /= np.sqrt(np.prod(leaf.shape[:-1]))
        else:
            noise = 0.3 * noise + (kind == "scale")
        return jnp.asarray(noise.astype(leaf.dtype))

    return jax.tree_util.tree_map_with_path(draw, jax.eval_shape(make, jax.random.key(0)))


def make_world(options: DreamerOptions, obs: Spaces = VECTOR, act: Spaces = CHOICE, seed: int = 0) -> DreamerModel:
    return lively(lambda key: DreamerModel(key, obs, act, options), seed)


def make_recipe(
    options: DreamerOptions, obs: Spaces = VECTOR, act: Spaces = CHOICE, dtype: Any = jnp.float32, **changes: Any
) -> Recipe:
    return Recipe(options, ComputeSettings(dtype), obs, act, **changes)


def make_data(
    options: DreamerOptions, obs: Spaces, act: Spaces, rows: int, steps: int, context: int = 1, seed: int = 0
) -> dict[str, np.ndarray]:
    """What replay would send, with episode ends of both kinds in it."""
    rng = np.random.default_rng(seed)
    lead = (rows, steps + context)
    data = {key: space.sample(rng, lead) for key, space in {**obs, **act}.items()}
    data["reward"] = rng.standard_normal(lead).astype(np.float32)
    is_last = rng.random(lead) < 0.15
    data["is_last"] = is_last
    data["is_terminal"] = is_last & (rng.random(lead) < 0.5)
    data["is_first"] = np.concatenate([np.ones((rows, 1), bool), is_last[:, :-1]], 1)
    data["consec"] = np.zeros(rows, np.int32)
    if context:
        dyn = options.dyn
        data["dyn/deter"] = rng.uniform(-1, 1, (rows, context, dyn.deter)).astype(jnp.bfloat16)
        data["dyn/stoch"] = rng.integers(0, dyn.classes, (rows, context, dyn.stoch)).astype(np.uint8)
    data["stepid"] = np.zeros((*lead, 2), np.int64)
    return data


def make_batch(options: DreamerOptions, obs: Spaces, act: Spaces, rows: int, steps: int, seed: int = 0) -> Batch:
    data = make_data(options, obs, act, rows, steps, 1, seed)
    actions = {key: data[key][:, 1:] for key in act}
    before = {key: data[key][:, :-1] for key in act}
    batch = Batch({key: data[key][:, 1:] for key in obs}, actions, before, *(data[key][:, 1:] for key in STEP_KEYS))
    return jax.tree.map(jnp.asarray, batch)


def make_agent(
    options: DreamerOptions | None = None,
    obs: Spaces = VECTOR,
    act: Spaces = CHOICE,
    shape: DreamerShape | None = None,
    compute: ComputeOptions | None = None,
    **others: Any,
) -> DreamerAgent:
    return DreamerAgent(
        obs,
        {**act, "reset": Space(bool)},
        options or tiny_options(),
        shape or DreamerShape(2, 4, 4, 1, (2,), 4),
        compute or ComputeOptions("float32", rng="threefry2x32"),
        **others,
    )
