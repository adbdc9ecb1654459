"""What an agent tells of itself at the start of a run."""

from __future__ import annotations

import numpy as np

from dreamfleet.agent.device.placement import DeviceLayout, DeviceOptions
from dreamfleet.agent.parameters import count_parameters


def test_parameters_are_counted_by_part_without_what_is_not_trained() -> None:
    names = ["world/enc/kernel", "world/enc/bias", "world/dyn/kernel", "slow/kernel", "opt/momentum"]
    leaves = [np.zeros((3, 4)), np.zeros(4), np.zeros((2, 2)), np.zeros(100), np.zeros(100)]
    assert count_parameters(names, leaves) == {"enc": 16, "dyn": 4}  # type: ignore[arg-type]


def test_devices_are_named_with_their_numbers() -> None:
    assert DeviceLayout(DeviceOptions(), 8).describe() == "cpu 0"
