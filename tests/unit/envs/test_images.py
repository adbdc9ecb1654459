"""Which arrays are images, how they are laid out and resized."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from dreamfleet.core.errors import ConfigError
from dreamfleet.core.spaces import Space
from dreamfleet.envs.gym.env import GymnasiumEnv
from dreamfleet.envs.images import ImageLayout, acceptable, make_resize
from dreamfleet.envs.options import EnvOptions
from support.gym_fakes import Recorder

BEGIN = {"reset": np.True_}


def byte_box(*shape: int) -> spaces.Box:
    return spaces.Box(0, 255, shape, np.uint8)


def wrap(space: Any, **options: Any) -> tuple[GymnasiumEnv, Recorder, list[str]]:
    notes: list[str] = []
    inner = Recorder(space)
    return GymnasiumEnv(inner, "mine", EnvOptions(**options), 0, notes), inner, notes


@pytest.mark.parametrize(
    ("declared", "seen"),
    [
        ((64, 80, 3), (64, 80, 3)),
        ((64, 80), (64, 80, 1)),
        ((3, 64, 80), (64, 80, 3)),
        ((1, 64, 80), (64, 80, 1)),
        ((9, 64, 80), (64, 80, 9)),
        ((64, 80, 9), (64, 80, 9)),
        ((4, 64, 3), (4, 64, 3)),  # the last axis looks like channels too
        ((17, 64, 80), (17, 64, 80)),
        ((4, 64, 80, 3), (64, 80, 12)),
        ((4, 3, 64, 80), (64, 80, 12)),
    ],
)
def test_layouts_become_height_width_channels(declared: tuple[int, ...], seen: tuple[int, ...]) -> None:
    layout = ImageLayout(declared)
    assert layout.shape == seen
    assert layout(np.zeros(declared, np.uint8)).shape == seen
    assert layout(np.zeros((5, *declared), np.uint8)).shape == (5, *seen)


def test_every_pixel_keeps_its_place() -> None:
    image = np.random.default_rng(0).integers(0, 256, (2, 3, 48, 64), np.uint8)
    moved = ImageLayout(image.shape)(image)
    for frame in range(2):
        for channel in range(3):
            np.testing.assert_array_equal(moved[..., 3 * frame + channel], image[frame, channel])


@pytest.mark.parametrize(
    ("space", "key"),
    [
        (byte_box(64, 64, 3), "image"),
        (byte_box(64, 64), "image"),
        (byte_box(64), "obs"),
        (spaces.Box(0, 1, (64, 64, 3), np.float32), "image"),
        (spaces.Box(0, 255, (64, 64, 3), np.int32), "image"),
        (spaces.Box(0, 255, (8, 8, 3), np.uint8), "obs"),
    ],
)
def test_an_image_alone_is_called_image(space: Any, key: str) -> None:
    assert key in wrap(space)[0].obs_space


@pytest.mark.parametrize(
    ("size", "taken"),
    [((48, 48), True), ((256, 64), True), ((64, 65), False), ((32, 32), False), ((272, 64), False), ((84, 84), False)],
)
def test_the_encoder_takes_multiples_of_sixteen(size: tuple[int, int], taken: bool) -> None:
    assert acceptable(size) == taken


def test_an_image_of_a_size_that_the_encoder_takes_stays_as_it_is() -> None:
    env, inner, notes = wrap(byte_box(96, 128, 3))
    assert notes == []
    assert env.obs_space["image"] == Space(np.uint8, (96, 128, 3))
    assert env.step(BEGIN)["image"] is inner.returned[-1]


def test_an_image_of_another_size_is_resized_with_a_note() -> None:
    env, _, notes = wrap(byte_box(210, 160, 3))
    assert notes == [
        "image 'image' of 210x160 is resized to 64x64, which the encoder can take: set env.size for another"
    ]
    assert env.obs_space["image"] == Space(np.uint8, (64, 64, 3))
    assert env.obs_space["image"].contains(env.step(BEGIN)["image"])


def test_the_size_that_the_run_sets_is_taken_without_a_note() -> None:
    env, _, notes = wrap(byte_box(3, 64, 64), size=(48, 96))
    assert notes == []
    assert env.step(BEGIN)["image"].shape == (48, 96, 3) == env.obs_space["image"].shape


def test_images_of_different_sizes_are_brought_to_one() -> None:
    space = spaces.Dict({"front": byte_box(64, 64, 3), "map": byte_box(40, 30), "back": byte_box(3, 96, 96)})
    env, _, notes = wrap(space)
    assert [note.split(" is ")[0] for note in notes] == ["image 'back' of 96x96", "image 'map' of 40x30"]
    obs = env.step(BEGIN)
    assert {key: obs[key].shape for key in space} == {"front": (64, 64, 3), "map": (64, 64, 1), "back": (64, 64, 3)}


@pytest.mark.parametrize("size", [(50, 64), (64, 512), (0, 0)])
def test_a_size_that_the_encoder_cannot_take_is_refused(size: tuple[int, int]) -> None:
    with pytest.raises(ConfigError, match=rf"env.size={size[0]},{size[1]}: .*multiples of 16 from 48 to 256"):
        wrap(byte_box(64, 64, 3), size=size)


def test_a_size_without_images_is_noted() -> None:
    assert wrap(spaces.Discrete(2), size=(64, 64))[2] == ["env.size=64,64 changes nothing: mine has no images"]


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 5])
def test_area_is_the_mean_of_the_pixels_below(channels: int) -> None:
    image = np.random.default_rng(0).integers(0, 256, (96, 128, channels), np.uint8)
    mean = image.reshape(48, 2, 64, 2, channels).astype(np.float64).mean((1, 3))
    assert np.abs(make_resize((48, 64), "area")(image) - mean).max() <= 1


def test_area_is_the_default_and_bilinear_differs() -> None:
    image = np.random.default_rng(0).integers(0, 256, (100, 90, 3), np.uint8)
    area, default, bilinear = (make_resize((64, 64), method)(image) for method in ("area", None, "bilinear"))
    np.testing.assert_array_equal(area, default)
    assert (area != bilinear).any()
    with pytest.raises(ConfigError, match=r"env\.resize=cubic: write area or bilinear"):
        make_resize((64, 64), "cubic")


def test_a_ramp_stays_a_ramp_and_is_not_turned() -> None:
    rows = np.repeat(np.arange(0, 192, 2, dtype=np.uint8)[:, None, None], 96, 1)
    resized = make_resize((48, 48), "bilinear")(rows)
    assert (np.diff(resized[4:-4, :, 0].astype(int), axis=0) == 4).all()
    assert (np.diff(resized[..., 0].astype(int), axis=1) == 0).all()
