"""The Dreamer agent by itself: time of an update and of acting, time to compile, memory, and the share of the floor.

    python benchmarks/learner.py --size size12m size200m --json

The floor is what the device needs at least: the arithmetic of all products and convolutions at the rate of one large
product, or the bytes that must pass through its memory at the rate of one large copy, whichever is more. Both rates are
measured in the same run. On a CPU use `--size tiny --batch-size 4 --dtype float32 --rng threefry2x32`, as the preset
`cpu` does.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dreamfleet.agent.device.placement import DeviceOptions
from dreamfleet.agent.dreamer import ComputeOptions, DreamerAgent, DreamerShape
from dreamfleet.core.hyperparameters import SIZES, sized
from dreamfleet.core.spaces import Space

REFERENCE_MS = {"size12m": 35.4, "size200m": 110.6}  # the published code on an H200, images, 16 x 64, bfloat16
POLICY_ROWS = (1, 16, 64)
FLAGS = {"reward": Space(np.float32), "is_first": Space(bool), "is_last": Space(bool), "is_terminal": Space(bool)}
ENVS: dict[str, tuple[dict[str, Space], dict[str, Space]]] = {
    "image": ({"image": Space(np.uint8, (64, 64, 3))}, {"action": Space(np.int32, (), 0, 18)}),
    "proprio": (
        {"orientations": Space(np.float32, (14,)), "height": Space(np.float32), "velocity": Space(np.float32, (9,))},
        {"action": Space(np.float32, (6,), -1, 1)},
    ),
}
SECOND_LEVEL_BYTES = 50e6  # weights beyond the cache are read anew at every step of the recurrent loop


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", nargs="+", default=["size12m"], choices=list(SIZES))
    parser.add_argument("--env", default="image", choices=list(ENVS))
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--batch-length", type=int, default=64)
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32", "float16"])
    parser.add_argument("--rng", default="unsafe_rbg", choices=["unsafe_rbg", "rbg", "threefry2x32"])
    parser.add_argument("--unroll", nargs=2, type=int, default=None, metavar=("OBSERVE", "IMAGINE"))
    parser.add_argument("--seconds", type=float, default=3.0, help="length of each measurement")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    args = parser.parse_args()
    device = jax.devices()[0]
    rates = measure_rates(device.platform)
    results = [measure_size(size, args, rates) for size in args.size]
    found = {
        "device": device.device_kind,
        "machine": platform.node(),
        "jax": jax.__version__,
        **rates,
        "sizes": results,
    }
    print(json.dumps(found) if args.json else table(found))


def measure_rates(kind: str) -> dict[str, float]:
    side, copied = (8192, 2**30) if kind == "gpu" else (1024, 2**26)
    a = jax.random.normal(jax.random.key(0), (side, side), jnp.bfloat16 if kind == "gpu" else jnp.float32)
    product = jax.jit(lambda x: x @ x)
    long = jnp.zeros(copied // 4, jnp.float32)
    copy = jax.jit(lambda x: x + 1)
    return {
        "flop_per_s": 2 * side**3 / seconds_per_call(lambda: product(a), 0.5),
        "bytes_per_s": 2 * copied / seconds_per_call(lambda: copy(long), 0.5),
    }


def seconds_per_call(call: Callable[[], Any], seconds: float) -> float:
    """Of calls in a row, waiting for the last one only; the median of five rows."""
    jax.block_until_ready(call())
    begun = time.perf_counter()
    jax.block_until_ready(call())
    calls = max(1, int(seconds / 5 / max(time.perf_counter() - begun, 1e-6)))
    rows = []
    for _ in range(5):
        begun = time.perf_counter()
        for _ in range(calls):
            result = call()
        jax.block_until_ready(result)
        rows.append((time.perf_counter() - begun) / calls)
    return statistics.median(rows)


def measure_size(size: str, args: argparse.Namespace, rates: dict[str, float]) -> dict[str, Any]:
    obs_space, act_space = ENVS[args.env]
    unroll = args.unroll or (0, 0)
    shape = DreamerShape(args.batch_size, args.batch_length, 0, 1, POLICY_ROWS)
    compute = ComputeOptions(
        args.dtype, args.rng, unroll_observe=unroll[0], unroll_imagine=unroll[1], devices=DeviceOptions()
    )
    begun = time.perf_counter()
    agent = DreamerAgent({**obs_space, **FLAGS}, {**act_space, "reset": Space(bool)}, sized(size), shape, compute)
    ready_s = time.perf_counter() - begun
    step = TrainLoop(agent, args)
    train_s = seconds_per_call(step, args.seconds)
    floor = floor_seconds(agent, args, rates)
    result = {
        "size": size,
        "env": args.env,
        "dtype": args.dtype,
        "rng": args.rng,
        "parameters": sum(math.prod(leaf.shape) for leaf in step.parameters()),
        "train_ms": round(train_s * 1e3, 3),
        "floor_ms": round(floor * 1e3, 3),
        "share_of_floor": round(floor / train_s, 3),
        "policy_ms": {rows: round(policy_ms(agent, rows, args.seconds / 3), 3) for rows in POLICY_ROWS},
        "ready_s": round(ready_s, 1),
        "compile_s": {name: round(seconds, 1) for name, seconds in agent.compile_seconds.items()},
        "peak_bytes": peak_bytes(),
    }
    if args.env == "image" and size in REFERENCE_MS and jax.default_backend() == "gpu":
        result["times_reference"] = round(REFERENCE_MS[size] / (train_s * 1e3), 2)
    return result


class TrainLoop:
    """Updates on one batch of random data that stays on the device."""

    def __init__(self, agent: DreamerAgent, args: argparse.Namespace) -> None:
        self._agent = agent
        self._carry = agent.init_train(args.batch_size)
        self._batch = next(agent.stream(iter([random_batch(agent, args)] * 2)))

    def __call__(self) -> Any:
        self._carry, _, _ = self._agent.train(self._carry, self._batch)
        return self._carry

    def parameters(self) -> list[Any]:
        names = self._agent.names
        return [leaf for name, leaf in zip(names, self._agent.spec, strict=True) if name.startswith("world/")]


def random_batch(agent: DreamerAgent, args: argparse.Namespace) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    lead = (args.batch_size, args.batch_length + 1)
    spaces = {**agent.obs_space, **agent.act_space}
    batch = {key: space.sample(rng, lead) for key, space in spaces.items()}
    batch["reward"] = rng.standard_normal(lead).astype(np.float32)
    batch |= {key: rng.random(lead) < 0.02 for key in ("is_first", "is_last", "is_terminal")}
    dyn = agent.recipe.options.dyn
    batch["dyn/deter"] = rng.standard_normal((lead[0], 1, dyn.deter)).astype(jnp.bfloat16)
    batch["dyn/stoch"] = rng.integers(0, dyn.classes, (lead[0], 1, dyn.stoch)).astype(np.uint8)
    batch["consec"] = np.zeros(lead[0], np.int32)
    batch["stepid"] = np.zeros((*lead, 20), np.uint8)
    return batch


def policy_ms(agent: DreamerAgent, rows: int, seconds: float) -> float:
    """Of one call from observations to actions on the host, waiting for each."""
    rng = np.random.default_rng(0)
    obs = {key: space.sample(rng, (rows,)) for key, space in agent.obs_space.items()}
    obs["is_first"] = np.zeros(rows, bool)
    carry = agent.carry_table().take(np.arange(rows), rows)
    agent.policy(carry, obs, "train")
    times = []
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        begun = time.perf_counter()
        agent.policy(carry, obs, "train")
        times.append(time.perf_counter() - begun)
    return statistics.median(times) * 1e3


def floor_seconds(agent: DreamerAgent, args: argparse.Namespace, rates: dict[str, float]) -> float:
    jaxpr = agent.train_jaxpr()
    arithmetic = count_flop(jaxpr.jaxpr) / rates["flop_per_s"]
    state = 2 * sum(leaf.size * leaf.dtype.itemsize for leaf in agent.spec)
    core = sum(leaf.size * 2 for name, leaf in zip(agent.names, agent.spec, strict=True) if in_loop(name))
    reads = 2 * args.batch_length * core if core > SECOND_LEVEL_BYTES else 0
    return max(arithmetic, (state + reads) / rates["bytes_per_s"])


def in_loop(name: str) -> bool:
    return name.startswith(("world/dyn/core", "world/dyn/post")) and name.endswith("kernel")


def count_flop(jaxpr: Any) -> float:
    """Of products and convolutions, those in loops as often as they run."""
    total = 0.0
    for equation in jaxpr.eqns:
        times = equation.params.get("length", 1) if equation.primitive.name == "scan" else 1
        for inner in jax.tree.leaves(list(equation.params.values()), is_leaf=is_jaxpr):
            if is_jaxpr(inner):
                total += times * count_flop(getattr(inner, "jaxpr", inner))
        out = math.prod(equation.outvars[0].aval.shape) if equation.outvars else 0
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            shape = equation.invars[0].aval.shape
            total += 2 * out * math.prod(shape[axis] for axis in contracted)
        elif equation.primitive.name == "conv_general_dilated":
            numbers = equation.params["dimension_numbers"]
            kernel = equation.invars[1].aval.shape
            total += 2 * out * math.prod(kernel) / kernel[numbers.rhs_spec[0]]
    return total


def is_jaxpr(value: Any) -> bool:
    return hasattr(value, "eqns") or hasattr(value, "jaxpr")


def peak_bytes() -> int | None:
    stats = jax.devices()[0].memory_stats()
    return stats.get("peak_bytes_in_use") if stats else None


def table(found: dict[str, Any]) -> str:
    lines = [f"{found['device']}: {found['flop_per_s'] / 1e12:.1f} TFLOP/s, {found['bytes_per_s'] / 1e9:.0f} GB/s"]
    for row in found["sizes"]:
        policy = ", ".join(f"{ms:.2f} ms for {rows}" for rows, ms in row["policy_ms"].items())
        faster = f", {row['times_reference']} times the reference" if "times_reference" in row else ""
        lines.append(
            f"{row['size']} ({row['env']}, {row['dtype']}): train {row['train_ms']:.2f} ms{faster}; floor "
            f"{row['floor_ms']:.2f} ms ({row['share_of_floor']:.0%}); policy {policy}; compiled in {row['compile_s']} s"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
