"""One device and several compute the same; what cannot work is refused before the first step."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import pytest

from dreamfleet.agent.device import learner_client
from dreamfleet.agent.device.placement import DeviceLayout, DeviceOptions, pick_devices
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
        [sys.executable, str(TESTS / "support/device_probe.py")],
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
    layout = DeviceLayout(DeviceOptions(fsdp=True), 3)
    assert layout.same_device
    with pytest.raises(ConfigError, match="no device 99"):
        pick_devices("jax.train_devices", [99])


def test_without_a_gpu_there_is_no_second_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learner_client, "_has_gpu", lambda: False)
    before = dict(os.environ)
    learner_client.open_second_client()
    assert dict(os.environ) == before
    assert learner_client.in_second_client(jax.local_devices()[0]) is None
    assert not DeviceLayout(DeviceOptions(), 1).concurrent


@pytest.mark.parametrize(
    ("given", "options"),
    [
        ({}, {"memory_fraction": 0.75, "preallocate": True, "allocator": "default"}),
        ({"XLA_PYTHON_CLIENT_MEM_FRACTION": ".4"}, {"memory_fraction": 0.4}),
        ({"XLA_CLIENT_MEM_FRACTION": ".3"}, {"memory_fraction": 0.3}),
        ({"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}, {"preallocate": False}),
        ({"XLA_PYTHON_CLIENT_ALLOCATOR": "platform"}, {"allocator": "platform"}),
    ],
)
def test_the_second_client_gets_the_memory_and_the_first_next_to_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: dict[str, str], options: dict[str, Any]
) -> None:
    """The learner's arrays are in the second one, so what the user says of JAX's memory is meant for it."""
    for name in ("XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_ALLOCATOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "true")
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(learner_client, "_has_gpu", lambda: True)
    monkeypatch.setattr(learner_client, "_cuda_library", lambda: tmp_path / "plugin.so")
    seen: dict[str, Any] = {}

    def devices() -> list[Any]:
        seen.update(os.environ)
        name, _, file = os.environ[learner_client.PLUGINS].partition(":")
        seen["file"] = json.loads(Path(file).read_text())
        assert name == learner_client.NAME
        return []

    monkeypatch.setattr(jax, "devices", devices)
    learner_client.open_second_client()
    assert seen["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"
    assert seen["JAX_PLATFORMS"] == f"cuda,{learner_client.NAME}"
    assert seen["file"]["library_path"] == str(tmp_path / "plugin.so")
    assert seen["file"]["create_options"].items() >= options.items()
    assert learner_client.PLUGINS not in os.environ, (
        "the file is gone, and processes started later must not look for it"
    )
    assert os.environ["JAX_PLATFORMS"] == "cuda"
    assert os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] == given.get("XLA_PYTHON_CLIENT_PREALLOCATE", "true")


def test_a_gpu_without_room_for_two_clients_names_the_setting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def devices() -> list[Any]:
        raise RuntimeError("out of memory")

    for name in ("XLA_PYTHON_CLIENT_PREALLOCATE", "JAX_PLATFORMS"):
        monkeypatch.setenv(name, "")
    monkeypatch.setattr(learner_client, "_has_gpu", lambda: True)
    monkeypatch.setattr(learner_client, "_cuda_library", lambda: tmp_path / "plugin.so")
    monkeypatch.setattr(jax, "devices", devices)
    with pytest.raises(ConfigError, match=r"jax\.concurrent=false"):
        learner_client.open_second_client()
