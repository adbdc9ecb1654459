"""Updates by the authors' code and by ours, from the same parameters on the same batches: how far are they apart?

    python benchmarks/same_update.py --code PATH [--updates 8] [--json]

PATH and what must be installed are as for `published.py`. Both start from the parameters that the authors' code draws,
get the same random batches, and the same numbers in place of random ones, so that what they sample is the same. Then
every loss and metric, every parameter, the slow critic, the running statistics and the latents that go back to replay
must agree after each update but for rounding. The initial parameters of ours are compared too, by their spread. Exits
with 1 where something differs by more than its limit.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import published
from dreamfleet.agent.parameters import leaf_names
from dreamfleet.agent.train_step import Recipe, init_carry, init_state, sizes, train_step
from dreamfleet.core.errors import BadInput
from dreamfleet.core.hyperparameters import DreamerOptions, NormalizerOptions, OptimizerOptions, sized
from dreamfleet.core.spaces import Space
from dreamfleet.model.dreamer_model import ComputeSettings
from dreamfleet.model.spaces import Spaces

ROWS, STEPS = 4, 12
FLAGS = {"reward": Space(np.float32), "is_first": Space(bool), "is_last": Space(bool), "is_terminal": Space(bool)}
PERCENTILES = NormalizerOptions(impl="perc")
SMALL = replace(sized("tiny"), opt=OptimizerOptions(lr=1e-3, warmup=4))
WALKER = {
    "orientations": Space(np.float32, (14,)),
    "height": Space(np.float32),
    "velocity": Space(np.float32, (9,)),
}
FORCES = {"action": Space(np.float32, (6,), -1, 1)}
GAME = {"image": Space(np.uint8, (64, 64, 3)), "lives": Space(np.int32, (), 0, 4)}
BUTTONS = {"action": Space(np.int32, (), 0, 18)}
CASES: dict[str, tuple[dict[str, Space], dict[str, Space], DreamerOptions]] = {
    "states, forces": (WALKER, FORCES, SMALL),
    "image, buttons": (GAME, BUTTONS, SMALL),
    "both, both": (WALKER | GAME, FORCES | {"button": BUTTONS["action"]}, SMALL),
    "other options": (
        WALKER,
        BUTTONS,
        replace(
            SMALL,
            imag_last=5,
            contdisc=False,
            reward_grad=False,
            repval_grad=False,
            ac_grads=True,
            imag_loss=replace(SMALL.imag_loss, slowtar=True, actent=0.1),
            valnorm=PERCENTILES,
            advnorm=replace(PERCENTILES, impl="meanstd"),
            slowvalue=replace(SMALL.slowvalue, rate=0.3, every=2),
            opt=OptimizerOptions(lr=1e-3, warmup=3, schedule="linear", anneal=9, wd=0.1),
        ),
    ),
}
# Where a tensor of theirs is in ours; the first expression that fits.
NAMES = (
    (r"dyn/dynin0(norm)?/", "dyn/core/from_deter/PART/"),
    (r"dyn/dynin1(norm)?/", "dyn/core/from_stoch/PART/"),
    (r"dyn/dynin2(norm)?/", "dyn/core/from_action/PART/"),
    (r"dyn/dynhid(\d)norm/", r"dyn/core/norms/\1/"),
    (r"dyn/dynhid(\d)/", r"dyn/core/hidden/\1/"),
    (r"dyn/dyngru/", "dyn/core/gates/"),
    (r"dyn/obslogit/", "dyn/post_logits/"),
    (r"dyn/priorlogit/", "dyn/prior_logits/"),
    (r"dyn/obs(\d)(norm)?/", r"dyn/post/\1/PART/"),
    (r"dyn/prior(\d)(norm)?/", r"dyn/prior/layers/\1/PART/"),
    (r"enc/mlp(\d)(norm)?/", r"enc/mlp/layers/\1/PART/"),
    (r"enc/cnn(\d)norm/", r"enc/norms/\1/"),
    (r"enc/cnn(\d)/", r"enc/convs/\1/"),
    (r"dec/sp0/", "dec/images/from_deter/"),
    (r"dec/sp1(norm)?/", "dec/images/from_stoch/PART/"),
    (r"dec/sp2/", "dec/images/to_map/"),
    (r"dec/spnorm/", "dec/images/norms/0/"),
    (r"dec/imgout/", "dec/images/convs/3/"),
    *((rf"dec/conv{2 - i}/", f"dec/images/convs/{i}/") for i in range(3)),
    *((rf"dec/conv{2 - i}norm/", f"dec/images/norms/{1 + i}/") for i in range(3)),
    (r"dec/vec/(\w+)/\w+/", r"dec/heads/\1/"),
    (r"(\w+)/mlp/(?:linear|(norm))(\d)/", r"\1/mlp/layers/\3/PART/"),
    (r"pol/head/(\w+)/stddev/", r"pol/heads/\1/std/"),
    (r"pol/head/", "pol/heads/"),
    (r"(\w+)/head/logits?/", r"\1/out/"),
)
# Relative, of float32 over a few updates; latents are stored as bfloat16. The logarithm of a ratio for the spread.
LIMITS = {
    "spread of initial parameters": 0.15,
    "losses and metrics": 1e-4,
    "parameters": 1e-4,
    "slow critic": 1e-4,
    "running statistics": 1e-4,
    "latents": 4e-3,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--code", type=Path, required=True, help="folder with the authors' packages")
    parser.add_argument("--updates", type=int, default=8)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    options = parser.parse_args()
    try:
        published.import_code(options.code)
    except BadInput as error:
        parser.error(str(error))
    without_chance()
    found = {name: compare(*CASES[name], options.updates) for name in options.cases}
    if options.json:
        print(json.dumps(found))
    else:
        for name, differences in found.items():
            print(name)
            for what, (difference, where) in differences.items():
                word = "" if difference <= LIMITS[what] else f"  DIFFERS, by more than {LIMITS[what]:g}"
                print(f"  {what:28} {difference:9.2e}  {where}{word}")
    raise SystemExit(0 if all(agree(differences) for differences in found.values()) else 1)


def agree(differences: dict[str, tuple[float, str]]) -> bool:
    return all(differences[what][0] <= limit for what, limit in LIMITS.items())


def compare(
    obs: dict[str, Space], act: dict[str, Space], options: DreamerOptions, updates: int
) -> dict[str, tuple[float, str]]:
    """For each kind of result the largest relative difference, and of what it is."""
    theirs = Theirs(obs, act, options)
    ours = Ours(obs, act, options)
    worst = {"spread of initial parameters": spread(theirs.parameters(), ours.parameters())}
    start = lively(theirs.parameters())
    if options.valnorm.impl != "none":
        start = calm(start)
    theirs.load(start)
    ours.load(start)
    for update in range(updates):
        batch = make_batch(obs, act, options, update)
        theirs.train(batch)
        ours.train(batch)
        both = {
            "losses and metrics": (theirs.metrics, ours.metrics),
            "parameters": (theirs.parameters(), ours.parameters()),
            "slow critic": (theirs.slow(), ours.slow()),
            "running statistics": (theirs.statistics(), ours.statistics()),
            "latents": (theirs.latents, ours.latents),
        }
        for what, (a, b) in both.items():
            difference, where = largest(a, b)
            if difference >= worst.get(what, (-1.0,))[0]:
                worst[what] = (difference, f"{where}, update {update + 1}")
    return worst


def without_chance() -> None:
    """Whatever is drawn is a fixed row of numbers along the last axis: one code draws for all steps at once, the other
    one step by step. Initial parameters are drawn by another function and stay random.
    """

    def row(size: int) -> np.ndarray:
        return np.random.default_rng(size).standard_normal(size).astype(np.float32)

    def drawn(key: Any, shape: tuple[int, ...] = (), dtype: Any = jnp.float32) -> jax.Array:
        return jnp.broadcast_to(row(shape[-1]), shape).astype(dtype)

    def categorical(key: Any, logits: jax.Array, axis: int = -1, shape: Any = None) -> jax.Array:
        return jnp.argmax(logits + row(logits.shape[-1]), -1)

    jax.random.gumbel = drawn
    jax.random.normal = drawn
    jax.random.categorical = categorical


class Theirs:
    def __init__(self, obs: dict[str, Space], act: dict[str, Space], options: DreamerOptions) -> None:
        spaces = [{key: published.their_space(space) for key, space in part.items()} for part in (obs | FLAGS, act)]
        settings = {
            "logdir": tempfile.gettempdir(),
            "seed": 0,
            "batch_size": ROWS,
            "batch_length": STEPS,
            "report_length": STEPS,
            "replay_context": 1,
            "jax": {"platform": "cpu", "compute_dtype": "float32", "transfer_guard": False},
        }
        self._agent = published.build_agent(*spaces, options, settings)
        self._carry = self._agent.init_train(ROWS)
        self._classes = options.dyn.classes
        self.metrics: dict[str, Any] = {}
        self.latents: dict[str, Any] = {}

    def train(self, batch: dict[str, np.ndarray]) -> None:
        steps = {key: value for key, value in batch.items() if not key.startswith("dyn/")}
        # Theirs has latents for all steps, of which the first is used.
        steps["dyn/deter"] = np.repeat(batch["dyn/deter"].astype(np.float32), STEPS + 1, 1)
        steps["dyn/stoch"] = np.repeat(np.eye(self._classes, dtype=np.float32)[batch["dyn/stoch"]], STEPS + 1, 1)
        steps["consec"] = np.zeros((ROWS, STEPS + 1), np.int32)
        source = iter(self._agent.stream(itertools.repeat(steps)))  # it looks ahead
        self._carry, _, _ = self._agent.train(self._carry, next(source))
        outs, metrics = jax.device_get((self._agent.pending_outs, self._agent.pending_mets))
        self.metrics = metrics
        self.latents = {key: value for key, value in outs["replay"].items() if key.startswith("dyn/")}

    def load(self, parameters: dict[str, np.ndarray]) -> None:
        saved = self._agent.save()
        own = dict(saved["params"])
        for key in own:
            name = our_name(key)
            if name in parameters:
                own[key] = parameters[name].reshape(own[key].shape)
            elif key.startswith("slowval/"):
                own[key] = 0.5 * parameters[our_name(key.replace("slowval/", "val/", 1))]
        self._agent.load({**saved, "params": own})

    def parameters(self) -> dict[str, np.ndarray]:
        trained = ("enc/", "dyn/", "dec/", "rew/", "con/", "pol/", "val/")
        saved = self._agent.save()["params"]
        return {our_name(key): value for key, value in saved.items() if key.startswith(trained)}

    def slow(self) -> dict[str, np.ndarray]:
        saved = self._agent.save()["params"]
        return {our_name(key): value for key, value in saved.items() if key.startswith("slowval/")}

    def statistics(self) -> dict[str, np.ndarray]:
        saved = self._agent.save()["params"]
        parts = {"lo": "first", "hi": "second", "mean": "first", "sqrs": "second", "corr": "weight"}
        found = [(re.match(r"(\w+)norm/(\w+)/value$", key), value) for key, value in saved.items()]
        return {f"{match[1]}/{parts[match[2]]}": value for match, value in found if match}


class Ours:
    def __init__(self, obs: dict[str, Space], act: dict[str, Space], options: DreamerOptions) -> None:
        recipe = Recipe(options, ComputeSettings(jnp.float32), Spaces(obs), Spaces(act))
        self._state: Any = jax.jit(lambda key: init_state(key, recipe))(jax.random.key(0))

        def step(state: Any, batch: Any) -> Any:
            found = train_step(state, init_carry(ROWS, recipe), batch, jax.random.key(1), recipe)
            return found.state, found.latents, found.metrics | sizes(found.state, recipe)

        self._step = jax.jit(step)
        self._classes = options.dyn.classes
        kinds = {"ret": options.retnorm.impl, "val": options.valnorm.impl, "adv": options.advnorm.impl}
        self._used = tuple(f"{name}/" for name, kind in kinds.items() if kind != "none")
        self.metrics: dict[str, Any] = {}
        self.latents: dict[str, Any] = {}

    def train(self, batch: dict[str, np.ndarray]) -> None:
        steps = {key: value for key, value in batch.items() if key != "stepid"} | {"consec": np.zeros(ROWS, np.int32)}
        self._state, latents, metrics = jax.device_get(self._step(self._state, steps))
        self.metrics = {key.replace("loss/rec/", "loss/"): value for key, value in metrics.items()}
        stoch = np.eye(self._classes, dtype=np.float32)[latents["dyn/stoch"]]
        self.latents = {"dyn/deter": latents["dyn/deter"].astype(np.float32), "dyn/stoch": stoch}

    def load(self, parameters: dict[str, np.ndarray]) -> None:
        names = leaf_names(self._state.world)
        world = jax.tree.unflatten(jax.tree.structure(self._state.world), [parameters[name] for name in names])
        slow = jax.tree.map(lambda leaf: 0.5 * leaf, world.val)
        self._state = eqx.tree_at(lambda state: (state.world, state.slow), self._state, (world, slow))

    def parameters(self) -> dict[str, np.ndarray]:
        return by_name(self._state.world)

    def slow(self) -> dict[str, np.ndarray]:
        return {f"slowval/{name}": value for name, value in by_name(self._state.slow).items()}

    def statistics(self) -> dict[str, np.ndarray]:
        return {name: value for name, value in by_name(self._state.norms).items() if name.startswith(self._used)}


def by_name(tree: Any) -> dict[str, np.ndarray]:
    return dict(zip(leaf_names(tree), map(np.asarray, jax.tree.leaves(tree)), strict=True))


def our_name(name: str) -> str:
    for pattern, ours in NAMES:
        found = re.match(pattern, name)
        if found:
            part = "norm" if "norm" in found.groups() else "linear"
            return found.expand(ours).replace("PART", part) + name[found.end() :]
    return name


def make_batch(obs: dict[str, Space], act: dict[str, Space], options: DreamerOptions, seed: int) -> dict[str, Any]:
    """What replay would send, with episode ends of both kinds in it."""
    rng = np.random.default_rng(seed)
    lead = (ROWS, STEPS + 1)
    batch = {key: space.sample(rng, lead) for key, space in (obs | act).items()}
    batch["reward"] = rng.standard_normal(lead).astype(np.float32)
    batch["is_last"] = rng.random(lead) < 0.15
    batch["is_terminal"] = batch["is_last"] & (rng.random(lead) < 0.5)
    batch["is_first"] = np.concatenate([np.ones((ROWS, 1), bool), batch["is_last"][:, :-1]], 1)
    batch["dyn/deter"] = rng.uniform(-1, 1, (ROWS, 1, options.dyn.deter)).astype(jnp.bfloat16)
    batch["dyn/stoch"] = rng.integers(0, options.dyn.classes, (ROWS, 1, options.dyn.stoch)).astype(np.uint8)
    batch["stepid"] = np.zeros((*lead, 20), np.uint8)
    return batch


def lively(parameters: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """With biases, scales and outputs that are not all alike, as they are in an agent that has learnt something."""
    rng = np.random.default_rng(0)
    noise = {name: rng.standard_normal(value.shape).astype(np.float32) for name, value in parameters.items()}
    return {
        name: value + noise[name] * (0.3 / np.sqrt(np.prod(value.shape[:-1])) if name.endswith("kernel") else 0.3)
        for name, value in parameters.items()
    }


def calm(parameters: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """With values of ordinary size. Corrected statistics of values scale the values that they are of: from the huge
    ones of `lively` they would overflow within a few updates.
    """
    bias = parameters["val/out/bias"]
    return parameters | {"val/out/bias": bias - np.abs(np.linspace(-20, 20, len(bias), dtype=np.float32))}


def spread(theirs: dict[str, np.ndarray], ours: dict[str, np.ndarray]) -> tuple[float, str]:
    """Of tensors large enough to tell; those that are all alike must be so in both."""
    found = []
    for name, value in theirs.items():
        a, b = value.std(), ours[name].std()
        if a == 0 or b == 0:
            found.append((0.0 if a == b and value.mean() == ours[name].mean() else np.inf, name))
        elif value.size >= 1000:
            found.append((abs(float(np.log(a / b))), name))
    return max(found)


def largest(theirs: dict[str, Any], ours: dict[str, Any]) -> tuple[float, str]:
    """The largest difference of one of them, relative to its own size."""
    missing = set(theirs) ^ set(ours)
    if missing:
        raise SystemExit(f"only one of the codes has {sorted(missing)}")
    found = []
    for name, value in theirs.items():
        a, b = (np.asarray(side, np.float64).ravel() for side in (value, ours[name]))
        difference = np.linalg.norm(a - b) / max(np.linalg.norm(a), 1e-8)
        found.append((float(difference) if np.isfinite(difference) else np.inf, name))
    return max(found)


if __name__ == "__main__":
    main()
