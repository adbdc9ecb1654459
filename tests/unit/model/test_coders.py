"""The encoder and the decoder."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dreamfleet.core.errors import SpaceMismatch
from dreamfleet.core.hyperparameters import EncoderOptions
from dreamfleet.core.spaces import Space
from dreamfleet.model.decoder import Decoder
from dreamfleet.model.encoder import Encoder
from dreamfleet.model.rssm import State
from dreamfleet.model.spaces import Spaces
from support import dreamer_reference as ref
from support.tiny_dreamer import lively, tiny_options

OPTIONS = tiny_options()
KINDS = {
    "vector": Spaces(b=Space(np.float32, (2, 2)), a=Space(np.float32)),
    "discrete": Spaces(
        choice=Space(np.int32, (), 0, 4), many=Space(np.int32, (3,), [0, 2, 0], [2, 6, 3]), flags=Space(bool, (2,))
    ),
    "image": Spaces(image=Space(np.uint8, (12, 16, 3))),
    "images and the rest": Spaces(
        zoom=Space(np.uint8, (12, 12, 1)),
        speed=Space(np.float32, (2,)),
        front=Space(np.uint8, (12, 12, 3)),
        on=Space(bool),
    ),
}


def draw(spaces: Spaces, lead: tuple[int, ...], seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {key: space.sample(rng, lead) for key, space in spaces.items()}


def make_encoder(spaces: Spaces) -> Encoder:
    return lively(lambda key: Encoder(key, spaces, OPTIONS.enc))


def make_decoder(spaces: Spaces) -> Decoder:
    return lively(lambda key: Decoder(key, spaces, OPTIONS.dec, OPTIONS.dyn))


def make_states(lead: tuple[int, ...]) -> State:
    rng = np.random.default_rng(0)
    stoch = np.eye(4)[rng.integers(0, 4, (*lead, 3))]
    return State(jnp.asarray(rng.uniform(-1, 1, (*lead, 16)), jnp.float32), jnp.asarray(stoch, jnp.float32))


def on_device(obs: dict[str, np.ndarray]) -> dict[str, jax.Array]:
    return {key: jnp.asarray(value) for key, value in obs.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_equal_the_float64_reference(kind: str) -> None:
    spaces, obs = KINDS[kind], draw(KINDS[kind], (2, 1))
    encoder = make_encoder(spaces)
    tokens = jax.jit(lambda encoder, obs: encoder(obs, jnp.float32))(encoder, on_device(obs))
    assert tokens.shape == (2, 1, encoder.size)
    for row in range(2):
        expected = ref.encode(encoder, spaces, {key: value[row, 0] for key, value in obs.items()})
        np.testing.assert_allclose(tokens[row, 0], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_reconstruction_losses_equal_the_float64_reference(kind: str) -> None:
    spaces, obs, states = KINDS[kind], draw(KINDS[kind], (2, 1)), make_states((2, 1))
    decoder = make_decoder(spaces)
    losses = jax.jit(lambda decoder, states, obs: decoder.losses(decoder.predict(states), obs))(
        decoder, states, on_device(obs)
    )
    assert losses.keys() == spaces.keys()
    size = (3, 4) if kind == "image" else (3, 3)
    for row in range(2):
        seen = {key: value[row, 0] for key, value in obs.items()}
        deter, stoch = (ref.f64(x[row, 0]) for x in states)
        expected = ref.reconstruction_losses(decoder, spaces, deter, stoch, seen, size)
        for key, loss in expected.items():
            assert losses[key].shape == (2, 1)
            np.testing.assert_allclose(losses[key][row, 0], loss, rtol=1e-5, err_msg=key)


def test_images_are_encoded_by_name_and_decoded_as_declared() -> None:
    one, other = (np.uint8, (12, 12, 1)), (np.uint8, (12, 12, 2))
    ab, ba = Spaces(a=Space(*one), b=Space(*other)), Spaces(b=Space(*other), a=Space(*one))
    obs = on_device(draw(ab, (1,)))
    np.testing.assert_array_equal(make_encoder(ab)(obs, jnp.float32), make_encoder(ba)(obs, jnp.float32))
    first, second = (make_decoder(spaces).predict(make_states((1,))) for spaces in (ab, ba))
    np.testing.assert_array_equal(first["a"][..., 0], second["b"][..., 0])
    np.testing.assert_array_equal(first["b"][..., 1], second["a"][..., 0])


def test_missing_values_cost_nothing_and_give_no_gradient() -> None:
    spaces = Spaces(goal=Space(np.float32, (2,)), count=Space(np.int32, (2,), 0, [3, 2]))
    obs: dict[str, Any] = {
        "goal": jnp.asarray([[-jnp.inf, 1.0], [0.5, 1.0]]),
        "count": jnp.asarray([[-1, 1], [2, 1]], jnp.int32),
    }
    decoder, states = make_decoder(spaces), make_states((2,))

    def losses(decoder: Decoder) -> dict[str, jax.Array]:
        return decoder.losses(decoder.predict(states), obs)

    for key, loss in losses(decoder).items():
        assert float(loss[0]) == 0, key
        assert float(loss[1]) > 0, key
    grads = jax.grad(lambda decoder: sum(loss[0] for loss in losses(decoder).values()))(decoder)
    assert not any(np.asarray(x).any() for x in jax.tree.leaves(grads))


def test_predictions_and_losses_are_float32_in_half_precision() -> None:
    spaces = KINDS["images and the rest"]
    decoder, obs = make_decoder(spaces), on_device(draw(spaces, (2,)))
    states = jax.tree.map(lambda x: x.astype(jnp.bfloat16), make_states((2,)))
    losses = jax.jit(lambda decoder: decoder.losses(decoder.predict(states), obs))(decoder)
    assert {loss.dtype for loss in losses.values()} == {np.dtype(np.float32)}
    assert make_encoder(spaces)(obs, jnp.bfloat16).dtype == jnp.bfloat16


@pytest.mark.parametrize("shape", [(8, 12, 3), (12, 12 * 17, 3), (13, 12, 3)])
def test_images_of_other_sizes_are_refused(shape: tuple[int, ...]) -> None:
    spaces = Spaces(image=Space(np.uint8, shape))
    encoder = lively(lambda key: Encoder(key, spaces, EncoderOptions(depth=1, mults=(1, 1))))
    with pytest.raises(SpaceMismatch, match=r"env\.size"):
        _ = encoder.size


def test_images_of_different_sizes_are_refused() -> None:
    spaces = Spaces(a=Space(np.uint8, (12, 12, 3)), b=Space(np.uint8, (16, 16, 3)))
    encoder = lively(lambda key: Encoder(key, spaces, EncoderOptions(depth=1, mults=(1, 1))))
    with pytest.raises(SpaceMismatch, match="different sizes"):
        _ = encoder.size
