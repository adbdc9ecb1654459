"""Images of environments: how they are laid out, and the size the encoder takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from dreamfleet.core.errors import ConfigError
from dreamfleet.envs.options import EnvOptions

# The encoder halves height and width four times and must land on 3 to 16.
SIDES = range(48, 257, 16)
DEFAULT_SIZE = (64, 64)
MAX_CHANNELS = 16
FEW_CHANNELS = (1, 3, 4)

Size = tuple[int, int]
ArrayFn = Callable[[np.ndarray], np.ndarray]


class ImageLayout:
    """Moves an image as its environment declares it to height, width, channels. Leading axes stay where they are.

    Frames that are stacked become channels, the first frame's first.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.frames = shape[0] if len(shape) == 4 else 0
        inner = shape[-3:] if len(shape) > 2 else (*shape, 1)
        self.flat = len(shape) == 2
        self.channels_first = not self.flat and _channels_first(inner)
        if self.channels_first:
            inner = (*inner[1:], inner[0])
        self.shape = (inner[0], inner[1], inner[2] * max(self.frames, 1))
        self.changes = self.flat or self.channels_first or bool(self.frames)

    def __call__(self, image: np.ndarray) -> np.ndarray:
        if self.flat:
            return image[..., None]
        if self.channels_first:
            image = np.moveaxis(image, -3, -1)
        if self.frames:
            image = np.moveaxis(image, -4, -2)
            image = image.reshape(*image.shape[:-2], self.shape[-1])
        return image


def _channels_first(shape: tuple[int, ...]) -> bool:
    first, height, last = shape
    return _few(first, height, last) and not _few(last, first, height)


def _few(axis: int, *others: int) -> bool:
    return axis in FEW_CHANNELS or (axis <= MAX_CHANNELS and axis < min(others))


def choose_size(images: Mapping[str, Size], options: EnvOptions, notes: list[str]) -> Size | None:
    """The size that all images get, or None to leave them as they are. `notes` takes what the user did not ask for."""
    if options.size is not None:
        return check_size(options.size)
    sizes = set(images.values())
    if not sizes or (len(sizes) == 1 and acceptable(next(iter(sizes)))):
        return None
    for key, size in images.items():
        if size != DEFAULT_SIZE:
            notes.append(
                f"image {key!r} of {size[0]}x{size[1]} is resized to {DEFAULT_SIZE[0]}x{DEFAULT_SIZE[1]}, "
                "which the encoder can take: set env.size for another"
            )
    return DEFAULT_SIZE


def acceptable(size: Size) -> bool:
    return size[0] in SIDES and size[1] in SIDES


def check_size(size: Size) -> Size:
    if not acceptable(size):
        raise ConfigError(
            f"env.size={size[0]},{size[1]}: the encoder takes heights and widths that are multiples of {SIDES.step} "
            f"from {SIDES.start} to {SIDES[-1]}, for example 64,64"
        )
    return size


def make_resize(size: Size, method: str | None) -> ArrayFn:
    """Resizes images of height, width, channels to `size`, by area unless `method` is bilinear."""
    from PIL import Image

    filters = {"area": Image.Resampling.BOX, "bilinear": Image.Resampling.BILINEAR}
    if (method or "area") not in filters:
        raise ConfigError(f"env.resize={method}: write {' or '.join(filters)}")
    resample = filters[method or "area"]
    height, width = size

    def plane(image: np.ndarray) -> np.ndarray:
        return np.asarray(Image.fromarray(image).resize((width, height), resample))

    def resize(image: np.ndarray) -> np.ndarray:
        if image.shape[:2] == size:
            return image
        image = np.ascontiguousarray(image)
        if image.shape[2] == 3:
            return plane(image)
        # One at a time: Pillow would take a fourth channel for transparency, and has no mode for most other numbers.
        planes = [plane(np.ascontiguousarray(image[..., c])) for c in range(image.shape[2])]
        return np.stack(planes, -1)

    return resize
