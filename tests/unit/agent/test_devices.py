"""One device and several compute the same; what cannot work is refused before the first step."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dreamfleet.agent.devices import DeviceOptions, Layout, pick_devices
from dreamfleet.core.errors import ConfigError

pytestmark = pytest.mark.timeout(330)
TESTS = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def probe() -> dict[str, Any]:
    env = {
        **os.environ,
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0",
        "JAX_PLATFORMS": "cpu",
    }
    env["PYTHONPATH"] = os.pathsep.join([str(TESTS), str(TESTS.parent / "src")])
    done = subprocess.run(
        [sys.executable, str(TESTS / "device_probe.py")],
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["replicated", "fsdp"])
def test_eight_devices_train_as_one(probe: dict[str, Any], layout: str) -> None:
    assert probe[layout]["losses"] < 1e-4
    assert probe[layout]["parameters"] < 1e-6
    assert probe["moved"] > 1e-5, "there is something to compare"


@pytest.mark.slow
def test_with_fsdp_parameters_are_split(probe: dict[str, Any]) -> None:
    assert probe["shards"] > 10


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("indivisible", "batch_size=8 cannot be split over the 3 devices"),
        ("unknown", "there is no device 9, this machine has 8"),
        ("twice", "names a device twice"),
        ("none", "name at least one device"),
        ("unknown policy", "jax.policy_devices=[8]: there is no device 8"),
    ],
)
def test_devices_that_cannot_work_are_refused_before_the_first_step(
    probe: dict[str, Any], case: str, words: str
) -> None:
    assert words in probe[case]


def test_one_device_holds_everything() -> None:
    layout = Layout(DeviceOptions(fsdp=True), 3)
    assert layout.same_device
    with pytest.raises(ConfigError, match="no device 99"):
        pick_devices("jax.train_devices", [99])
