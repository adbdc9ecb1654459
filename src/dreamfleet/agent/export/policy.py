"""Acting without training: the policy of a saved Dreamer as a function, and as a file that needs no Dreamfleet."""

from __future__ import annotations

import inspect
import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

import dreamfleet
from dreamfleet.agent.checks import check_spaces
from dreamfleet.agent.dreamer import DTYPES
from dreamfleet.agent.export import policy_file
from dreamfleet.agent.export.policy_file import FORMAT, Policy, only_seen
from dreamfleet.agent.parameters import check_fits, leaf_names
from dreamfleet.agent.policy_step import Actor, Table, act_rows, make_table, publish
from dreamfleet.core.encoding.bfloat16 import to_bits
from dreamfleet.core.errors import CheckpointError
from dreamfleet.core.files.disk import atomic_file
from dreamfleet.core.hyperparameters import DreamerOptions
from dreamfleet.core.spaces import Space
from dreamfleet.model.dreamer_model import DreamerModel
from dreamfleet.model.spaces import width

PLATFORMS = ("cpu", "cuda")
LOADER = "dreamfleet_policy.py"  # its name inside of the file
OLDEST = (1980, 1, 1, 0, 0, 0)  # the date of every member: the same policy is the same file


@dataclass(frozen=True)
class Raw:
    """How an environment that is not of our interface shows observations and takes actions; see `policy_file`."""

    observation: Mapping[str, list[Any]] | None = None  # the path to each key
    layouts: Mapping[str, Mapping[str, Any]] | None = None  # of images that are not height, width, channels
    encodings: Mapping[str, Mapping[str, Any]] | None = None  # of texts and sequences
    action: Mapping[str, Any] | None = None
    clip: bool = False  # observations into their bounds


class SavedActor:
    """The networks that acting needs, from the arrays of a snapshot. Nothing is compiled until it acts."""

    def __init__(
        self,
        obs_space: Mapping[str, Space],
        act_space: Mapping[str, Space],
        options: DreamerOptions,
        arrays: Mapping[str, np.ndarray],
        dtype: str = "bfloat16",
        rng: str = "unsafe_rbg",
        seed: int = 0,
    ) -> None:
        self.obs_space, self.act_space = check_spaces(obs_space, act_space)
        self.seed = seed
        self._options = options
        self._dtype = DTYPES[dtype]
        self._rng = rng
        self._key_words = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0, impl=rng))).shape[-1]
        if "acted" not in arrays:
            raise CheckpointError("the snapshot lacks the agent's counter of actions, 'acted': it is not of a Dreamer")
        self.acted = int(arrays["acted"])
        world = jax.eval_shape(
            lambda key: DreamerModel(key, self.obs_space, self.act_space, options), jax.random.key(0)
        )
        spec, structure = jax.tree.flatten(Actor(world.enc, world.dyn, world.pol))
        self.names = leaf_names(jax.tree.unflatten(structure, spec))
        wanted = {f"world/{name}": leaf for name, leaf in zip(self.names, spec, strict=True)}
        check_fits(wanted, arrays)
        found = [jnp.asarray(arrays[name], leaf.dtype) for name, leaf in wanted.items()]
        self.weights, self._structure = jax.tree.flatten(publish(jax.tree.unflatten(structure, found), self._dtype))

    def policy(self, raw: Raw, deterministic: bool = False) -> Policy:
        run = jax.jit(self._function(deterministic))
        about = self.about(raw)

        def step(carry: Any, obs: dict[str, np.ndarray], seeds: np.ndarray) -> Any:
            return run(self.weights, carry, only_seen(about, obs), seeds)

        return Policy(about, self._begin, step)

    def export(self, path: Path, raw: Raw, config: str, step: int) -> None:
        """Writes it aside and renames it. `config` is the run's configuration as text, for people."""
        programs = {"sampled": self._lower(best=False), "best": self._lower(best=True)}
        described = {
            name: {
                "file": f"{name}.stablehlo",
                "arguments": list(program.module_kept_var_idx),
                "convention": program.calling_convention_version,
            }
            for name, program in programs.items()
        }
        about = {
            "format": FORMAT,
            "dreamfleet": dreamfleet.__version__,
            "jax": jax.__version__,
            "step": step,
            **self.about(raw),
            "programs": described,
            "weights": [
                [name, str(leaf.dtype), list(leaf.shape)] for name, leaf in zip(self.names, self.weights, strict=True)
            ],
        }
        members = {
            "policy.json": json.dumps(about, indent=1).encode(),
            "config.yaml": config.encode(),
            LOADER: inspect.getsource(policy_file).encode(),
            **{f"{name}.stablehlo": program.mlir_module_serialized for name, program in programs.items()},
            **{f"weights/{name}.npy": _npy(leaf) for name, leaf in zip(self.names, self.weights, strict=True)},
        }
        _write_zip(path, members)

    def about(self, raw: Raw) -> dict[str, Any]:
        """What `Policy` needs to know."""
        carry = jax.eval_shape(lambda: self._begin(1))
        return {
            "platforms": list(PLATFORMS),
            "obs_space": {key: space.to_json() for key, space in self.obs_space.items()},
            "act_space": {key: space.to_json() for key, space in self.act_space.items()},
            "observation": raw.observation,
            "layouts": raw.layouts or {},
            "encodings": raw.encodings or {},
            "clip": raw.clip,
            "action": raw.action,
            "carry": [[str(part.dtype), list(part.shape[1:])] for part in carry],
            "key_words": self._key_words,
            "seed": self.seed,
            "calls": self.acted,
        }

    def _begin(self, rows: int) -> list[jax.Array]:
        actions = sum(width(space) for space in self.act_space.values())
        return list(make_table(rows, self._options.dyn, actions, self._dtype))

    def _function(self, best: bool) -> Any:
        def run(weights: Any, carry: Any, obs: Any, seeds: Any) -> Any:
            keys = jax.random.wrap_key_data(seeds, impl=self._rng)
            actor = jax.tree.unflatten(self._structure, weights)
            rows, actions, _ = act_rows(actor, Table(*carry), obs, keys, best, self._dtype)
            return list(rows), actions

        return run

    def _lower(self, best: bool) -> Any:
        """For any number of environments."""
        (rows,) = jax.export.symbolic_shape("n")
        carry = jax.eval_shape(lambda: self._begin(1))
        obs = {key: jax.ShapeDtypeStruct((rows, *space.shape), space.dtype) for key, space in self.obs_space.items()}
        return jax.export.export(jax.jit(self._function(best)), platforms=PLATFORMS)(
            self.weights,
            [jax.ShapeDtypeStruct((rows, *part.shape[1:]), part.dtype) for part in carry],
            {**obs, "is_first": jax.ShapeDtypeStruct((rows,), np.bool_)},
            jax.ShapeDtypeStruct((2, self._key_words), np.uint32),
        )


def _npy(leaf: jax.Array) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, to_bits(np.asarray(leaf)))
    return buffer.getvalue()


def _write_zip(path: Path, members: Mapping[str, bytes]) -> None:
    try:
        # Not compressed: weights hardly shrink.
        with atomic_file(path, synced=False) as temporary, zipfile.ZipFile(temporary, "w") as file:
            for name, data in members.items():
                file.writestr(zipfile.ZipInfo(name, OLDEST), data)
    except OSError as error:
        raise CheckpointError(f"cannot write {path}: {error.strerror}: choose another file") from error
