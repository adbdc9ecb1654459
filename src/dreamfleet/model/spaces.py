"""What spaces are to the networks: images or vectors, and how large they are. Without JAX, for those who only ask."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from dreamfleet.core.errors import SpaceMismatch
from dreamfleet.core.spaces import Space, is_image

SMALLEST, LARGEST = 3, 16  # height and width of the encoder's smallest map


class Spaces(dict[str, Space]):
    """Never changed once made, and so part of what a compiled function is remembered by."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(self.items()))


def vector_keys(spaces: Mapping[str, Space]) -> list[str]:
    return sorted(key for key, space in spaces.items() if not is_image(space))


def image_keys(spaces: Mapping[str, Space]) -> list[str]:
    """In the order of declaration."""
    return [key for key, space in spaces.items() if is_image(space)]


def class_counts(space: Space) -> list[int]:
    """Of each element of a discrete space, in the order of its flattened array."""
    return [int(n) for n in np.broadcast_to(space.classes, space.shape).reshape(-1)]


def width(space: Space) -> int:
    return sum(class_counts(space)) if space.discrete else math.prod(space.shape)


def map_size(spaces: Mapping[str, Space], layers: int) -> tuple[int, int]:
    """Height and width of the smallest map, after all poolings."""
    sizes = {spaces[key].shape[:2] for key in image_keys(spaces)}
    if len(sizes) > 1:
        raise SpaceMismatch(f"images of different sizes {sorted(sizes)}: set env.size, such as env.size=64")
    height, breadth = sizes.pop()
    factor = 2**layers
    if any(n % factor or not SMALLEST <= n // factor <= LARGEST for n in (height, breadth)):
        raise SpaceMismatch(
            f"images of {height}x{breadth}: the encoder takes multiples of {factor} from {SMALLEST * factor} to "
            f"{LARGEST * factor}; set env.size, such as env.size={4 * factor}"
        )
    return height // factor, breadth // factor
