"""Parameter counts of the size presets, to the unit."""

from __future__ import annotations

import equinox as eqx
import jax
import numpy as np
import pytest

from dreamfleet.core.hyperparameters import sized
from dreamfleet.core.spaces import Space
from dreamfleet.model.dreamer_model import DreamerModel

FLOATS = {
    "height": Space(np.float32),
    "orientations": Space(np.float32, (14,)),
    "velocity": Space(np.float32, (9,)),
}
TASKS = {
    "walker proprio": (FLOATS, {"action": Space(np.float32, (6,), -1, 1)}),
    "crafter": ({"image": Space(np.uint8, (64, 64, 3))}, {"action": Space(np.int32, (), 0, 17)}),
    "walker vision": ({"image": Space(np.uint8, (64, 64, 3))}, {"action": Space(np.float32, (6,), -1, 1)}),
    "atari": ({"image": Space(np.uint8, (96, 96, 1))}, {"action": Space(np.int32, (), 0, 18)}),
}
# Columns in the order of TASKS.
COUNTS = {
    "size1m": (640_867, 687_875, 686_846, 769_762),
    "size12m": (9_738_019, 10_498_259, 10_494_158, 11_808_850),
    "size25m": (21_782_947, 23_495_475, 23_489_326, 26_444_402),
    "size50m": (38_612_003, 41_658_259, 41_650_062, 46_900_882),
    "size100m": (86_622_499, 93_480_531, 93_468_238, 105_276_626),
    "size200m": (153_769_507, 165_965_075, 165_948_686, 186_936_082),
    "size400m": (345_473_059, 372_920_979, 372_896_398, 420_106_130),
}
MODULES = {
    ("size1m", "walker proprio"): (10_112, 364_416, 51_096, 57_663, 41_153, 50_316, 66_111),
    ("size12m", "crafter"): (220_416, 5_982_464, 1_272_003, 721_407, 656_129, 792_337, 853_503),
}


def make_outline(size: str, task: str) -> DreamerModel:
    """Shapes only; nothing is allocated."""
    return eqx.filter_eval_shape(DreamerModel, jax.random.key(0), *TASKS[task], sized(size))


def count(outline: object) -> int:
    return sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(outline))


@pytest.mark.parametrize("column", range(len(TASKS)), ids=list(TASKS))
@pytest.mark.parametrize("size", COUNTS)
def test_counts_of_the_presets_are_the_published_ones(size: str, column: int) -> None:
    assert count(make_outline(size, list(TASKS)[column])) == COUNTS[size][column]


@pytest.mark.parametrize(("size", "task"), MODULES)
def test_each_module_has_its_share(size: str, task: str) -> None:
    world = make_outline(size, task)
    parts = (world.enc, world.dyn, world.dec, world.rew, world.con, world.pol, world.val)
    assert tuple(count(part) for part in parts) == MODULES[size, task]
