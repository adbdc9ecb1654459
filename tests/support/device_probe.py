"""Trains small agents on one and on several devices and prints how they compare, as JSON. Needs eight devices."""

from __future__ import annotations

import json
from typing import Any

import jax
import numpy as np

from dreamfleet.agent.device import placement
from dreamfleet.agent.device.placement import DeviceOptions
from dreamfleet.agent.dreamer import ComputeOptions, DreamerShape
from dreamfleet.core.errors import ConfigError
from dreamfleet.core.hyperparameters import OptimizerOptions
from support.tiny_dreamer import CHOICE, VECTOR, make_agent, make_data, tiny_options

UPDATES = 3
# A large eps keeps the update smooth: the default one turns the rounding errors of a zero gradient into full steps.
OPTIONS = tiny_options(opt=OptimizerOptions(lr=1e-2, warmup=1, eps=0.1), imag_length=2)
SHAPE = DreamerShape(8, 2, 2, 1, (1,), 2)


def train(count: int, fsdp: bool = False, policy: int = 0) -> tuple[list[dict[str, float]], dict[str, np.ndarray], Any]:
    compute = ComputeOptions("float32", rng="threefry2x32", devices=DeviceOptions(tuple(range(count)), (policy,), fsdp))
    agent = make_agent(OPTIONS, shape=SHAPE, compute=compute)
    carry, found = agent.init_train(8), []
    for seed in range(UPDATES):
        carry, _, metrics = agent.train(carry, make_data(OPTIONS, VECTOR, CHOICE, 8, 2, seed=seed))
        found.append(dict(metrics))
    obs = {"position": np.ones((1, 3), np.float32), "is_first": np.ones(1, bool)}
    _, actions, _ = agent.policy(agent.init_policy(1), obs, "train")
    assert CHOICE["move"].contains(actions["move"][0])
    return found, agent.save(), agent


def compare(one: Any, other: Any) -> dict[str, float]:
    losses = max(
        abs(a[name] - b[name]) / max(1.0, abs(a[name])) for a, b in zip(one[0], other[0], strict=True) for name in a
    )
    params = max(float(np.abs(one[1][key] - other[1][key]).max()) for key in one[1] if key.startswith("world/"))
    return {"losses": losses, "parameters": params}


def refuse(**changes: Any) -> str:
    try:
        shape = changes.pop("shape", SHAPE)
        make_agent(OPTIONS, shape=shape, compute=ComputeOptions("float32", devices=DeviceOptions(**changes)))
    except ConfigError as error:
        return str(error)
    return ""


def main() -> None:
    assert len(jax.devices()) == 8
    placement.SMALL = 16  # so that the tiny tensors are split too
    one = train(1)
    split = train(8, fsdp=True, policy=1)
    shards = sum(len(x.sharding.device_set) == 8 and not x.sharding.is_fully_replicated for x in split[2]._packed)
    found = {
        "replicated": compare(one, train(8)),
        "fsdp": compare(one, split),
        "shards": shards,
        "moved": float(np.abs(one[1]["world/enc/mlp/layers/0/linear/bias"]).max()),
        "indivisible": refuse(train_devices=(0, 1, 2)),
        "unknown": refuse(train_devices=(0, 9)),
        "twice": refuse(train_devices=(1, 1)),
        "none": refuse(train_devices=()),
        "unknown policy": refuse(policy_devices=(8,)),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
