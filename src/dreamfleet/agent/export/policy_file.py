"""A trained policy in one file, read and run with nothing but JAX and NumPy.

`dreamfleet export` puts a copy of this module into every file it writes, as `dreamfleet_policy.py`, so that the file is
all that is needed to act:

    import sys
    sys.path.insert(0, "policy.zip")
    import dreamfleet_policy
    policy = dreamfleet_policy.load("policy.zip")
"""

from __future__ import annotations

import dataclasses
import io
import itertools
import json
import re
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

FORMAT = 1
MAX_RATIO = 10  # of what a file decompresses to and its own size
MIN_LIMIT = 1 << 26  # bytes: of a small file that was compressed by its user
# What zip, JSON, NumPy and JAX raise for files that are damaged or not of this format.
UNREADABLE = (
    OSError, EOFError, LookupError, ValueError, TypeError, AttributeError, ArithmeticError, RuntimeError, MemoryError,
    SyntaxError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip
BLOCK = 256  # calls that random keys are made for at once
State = Any  # what the policy remembers of every environment; opaque to its user
Step = Callable[[State, dict[str, np.ndarray], np.ndarray], tuple[State, Mapping[str, Any]]]


def keys_of_call(seed: int, call: int, words: int) -> np.ndarray:
    """Two random keys."""
    block, row = divmod(call, BLOCK)
    keys: np.ndarray = draw_keys(seed, block, words)[row]
    return keys


@lru_cache(maxsize=2)
def draw_keys(seed: int, block: int, words: int) -> np.ndarray:
    """Of all calls of a block: a generator takes longer to set up than to use."""
    return np.random.default_rng([seed, block]).integers(0, 2**32, (BLOCK, 2, words), np.uint32)


class PolicyError(ValueError):
    """A file that is no policy, or an observation that this policy cannot take."""


class Policy:
    """Chooses the actions of one environment or of many at once.

        action, state = policy(obs, state)

    `state` is None at the first step of an episode, later what the last call returned. `obs` is what the environment
    returned, or a dictionary of arrays under the names in `obs_space`; `action` is what the environment's `step` takes.
    With a leading axis on every array the call is about as many environments. Those of them that begin an episode are
    named by `reset`, since the others still need their state.

    Actions are drawn at random from the policy's distribution, unless it was loaded as `deterministic`. The random
    numbers depend on the seed and the number of the call alone.
    """

    def __init__(self, about: Mapping[str, Any], begin: Callable[[int], State], step: Step) -> None:
        self.about = about
        self.obs_space: dict[str, Any] = about["obs_space"]
        self.act_space: dict[str, Any] = about["act_space"]
        self._begin = begin
        self._step = step
        self._seed = int(about["seed"])
        self._calls = int(about["calls"])

    def reset(self, seed: int) -> None:
        """Reset the random numbers."""
        self._seed, self._calls = seed, 0

    def __call__(self, obs: Any, state: State = None, reset: Any = False) -> tuple[Any, State]:
        arrays = {key: self._array(key, value) for key, value in self._by_key(obs).items()}
        single = self._count_axes(arrays) == 0
        if single:
            arrays = {key: value[None] for key, value in arrays.items()}
        rows = len(next(iter(arrays.values())))
        actions, state = self.act({**arrays, "is_first": np.broadcast_to(reset, rows)}, state)
        chosen = {key: value[0] if single else value for key, value in actions.items()}
        tree = self.about["action"]
        return (chosen if tree is None else build_action(tree, chosen)), state

    def act(self, obs: Mapping[str, np.ndarray], state: State = None) -> tuple[dict[str, np.ndarray], State]:
        """As a call, but in the agent's own terms: a row for every environment, `is_first` among the observations, and
        actions by name.
        """
        first = np.asarray(obs["is_first"], bool)
        if state is None:
            first, state = np.ones_like(first), (self._begin(len(first)), len(first))
        state, rows = state
        if rows != len(first):
            raise PolicyError(f"the state is of {rows} environments, the observation of {len(first)}")
        self._calls += 1
        seeds = keys_of_call(self._seed, self._calls, self.about["key_words"])
        state, actions = self._step(state, {**obs, "is_first": first}, seeds)
        return {key: np.asarray(value) for key, value in actions.items()}, (state, rows)

    def _by_key(self, obs: Any) -> dict[str, Any]:
        if isinstance(obs, Mapping) and all(key in obs for key in self.obs_space):
            return {key: obs[key] for key in self.obs_space}
        found = {}
        for key, path in (self.about["observation"] or {}).items():
            try:
                value = follow(obs, path)
            except (TypeError, LookupError):
                raise PolicyError(f"the observation has nothing at {'/'.join(map(str, path))!r}") from None
            found[key] = self._padded(key, value)
        if not found:
            raise PolicyError(f"the observation must be a dictionary with the keys {list(self.obs_space)}")
        return found

    def _padded(self, key: str, value: Any) -> Any:
        how = self.about.get("encodings", {}).get(key, {})
        if "length" not in how:
            return value
        try:
            return pad(value, how)
        except (TypeError, ValueError, LookupError):
            raise PolicyError(f"observation {key!r} is not a sequence as the environment shows it") from None

    def _array(self, key: str, value: Any) -> np.ndarray:
        """A text may come as it is, and an image as the environment lays it out, but of the size that the policy was
        trained with."""
        array = np.asarray(value)
        if array.dtype.kind == "U" and "bits" in (how := self.about.get("encodings", {}).get(key, {})):
            array = hash_words(array, how["bits"])
        layout = self.about["layouts"].get(key)
        if layout and array.shape[array.ndim - len(layout["shape"]) :] == tuple(layout["shape"]):
            array = channels_last(to_bytes(key, array, layout, bool(self.about.get("clip"))), layout)
        shape, dtype = tuple(self.obs_space[key]["shape"]), np.dtype(self.obs_space[key]["dtype"])
        if array.shape[max(array.ndim - len(shape), 0) :] != shape or array.ndim - len(shape) > 1:
            raise PolicyError(f"observation {key!r} has shape {array.shape}, the policy takes {shape}, or many of them")
        return (clip(array, self.obs_space[key]) if self.about.get("clip") else array).astype(dtype)

    def _count_axes(self, arrays: Mapping[str, np.ndarray]) -> int:
        lead = {array.shape[: array.ndim - len(self.obs_space[key]["shape"])] for key, array in arrays.items()}
        if len(lead) > 1:
            raise PolicyError(f"the parts of the observation are of different numbers of environments: {sorted(lead)}")
        return len(lead.pop())


def only_seen(about: Mapping[str, Any], obs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {key: obs[key] for key in (*about["obs_space"], "is_first")}


def to_bytes(key: str, image: np.ndarray, layout: Mapping[str, Any], clips: bool) -> np.ndarray:
    """From 0 to 255, rounded, unless the environment declares such bytes or the image has become them already."""
    declared = layout.get("range")
    if not declared or (image.dtype == np.uint8 and layout["dtype"] != "uint8"):
        return image
    low, high = declared
    if clips:
        image = np.clip(image, low, high)
    if not ((image >= low) & (image <= high)).all():
        raise PolicyError(f"observation {key!r} has values outside of {low:g} to {high:g}, which its space declares")
    scaled = (image.astype(np.float32) - low) * (255 / (high - low) if high > low else 0.0)
    return np.rint(scaled).astype(np.uint8)


def follow(value: Any, path: Sequence[Any]) -> Any:
    for part in path:
        value = value[part]
    return value


def hash_words(texts: np.ndarray, bits: int) -> np.ndarray:
    """Booleans, true where a word or a pair of neighbouring words of a text falls."""
    found = np.zeros((*texts.shape, bits), bool)
    for place in np.ndindex(texts.shape):
        words = re.findall(r"\w+", str(texts[place]).lower())
        for part in [*words, *map(" ".join, itertools.pairwise(words))]:
            found[place][zlib.crc32(part.encode(errors="replace")) % bits] = True
    return found


def pad(value: Any, how: Mapping[str, Any]) -> np.ndarray:
    """A sequence as an array of a fixed length, or its mask: of one environment, or of a tuple of them."""
    if _of_many(value, how):
        return np.stack([pad(one, how) for one in value])
    items = follow(value, how["within"]) if how["stacked"] else [follow(item, how["within"]) for item in value]
    length = how["length"]
    if "fill" not in how:
        return np.arange(length) < len(items)
    kept = [_element(item, how["each"]) for item in items[:length]]
    return np.stack([*kept, *[np.asarray(how["fill"])] * (length - len(kept))])


def _of_many(value: Any, how: Mapping[str, Any]) -> bool:
    if not isinstance(value, list | tuple) or not value or (how["within"] and isinstance(how["within"][0], int)):
        return False
    kinds = (np.ndarray, Mapping) if how["stacked"] else (list, tuple)
    return all(isinstance(one, kinds) for one in value)


def _element(item: Any, how: Mapping[str, Any]) -> np.ndarray:
    if "bits" in how:
        return hash_words(np.asarray(item), how["bits"])
    return pad(item, how) if "length" in how else np.asarray(item)


def clip(array: np.ndarray, space: Mapping[str, Any]) -> np.ndarray:
    """Into the bounds of the space, of which the upper one is exclusive for integers."""
    if array.dtype.kind not in "iuf":
        return array
    if space["low"] is not None:
        array = np.maximum(array, space["low"])
    if space["high"] is not None:
        array = np.minimum(array, np.asarray(space["high"]) - int(np.dtype(space["dtype"]).kind in "iub"))
    return array


def channels_last(image: np.ndarray, layout: Mapping[str, Any]) -> np.ndarray:
    """Height, width, channels; stacked frames become channels. Leading axes stay."""
    if layout["flat"]:
        return image[..., None]
    if layout["channels_first"]:
        image = np.moveaxis(image, -3, -1)
    if layout["frames"]:
        image = np.moveaxis(image, -4, -2)
        image = image.reshape(*image.shape[:-2], -1)
    return image


def build_action(tree: Mapping[str, Any], chosen: Mapping[str, np.ndarray]) -> Any:
    """What the environment's own action space holds: nested as it is, integers from its start, floats in its bounds."""
    if "dict" in tree:
        return {name: build_action(inner, chosen) for name, inner in tree["dict"].items()}
    if "tuple" in tree:
        return tuple(build_action(inner, chosen) for inner in tree["tuple"])
    value = chosen[tree["key"]]
    if "start" in tree:
        value = value + np.asarray(tree["start"], np.int64)
    elif "low" in tree:
        low, high = np.asarray(tree["low"]), np.asarray(tree["high"])
        closed = np.isfinite(low) & np.isfinite(high)
        least, most = np.where(closed, low, -1.0), np.where(closed, high, 1.0)
        value = np.minimum(np.maximum(value * ((most - least) / 2) + (most + least) / 2, low), high)
    return np.asarray(value).astype(tree["dtype"])[()]


def load(path: Any, deterministic: bool = False) -> Policy:
    """Reads an exported policy. With `deterministic` it takes the likeliest action; what it makes of an observation is
    drawn at random all the same.
    """
    try:
        with zipfile.ZipFile(path) as file:
            return _read(_Members(path, file), deterministic)
    except PolicyError:
        raise
    except UNREADABLE as error:
        raise PolicyError(f"{path} is not an exported policy: {str(error) or type(error).__name__}") from error


def _read(members: _Members, deterministic: bool) -> Policy:
    about = json.loads(members.read("policy.json"))
    if about["format"] > FORMAT:
        raise PolicyError(
            f"{members.path} has format {about['format']}, this reader knows {FORMAT}: update dreamfleet, or use the "
            "dreamfleet_policy.py inside of the file"
        )
    program = about["programs"]["best" if deterministic else "sampled"]
    module = members.read(program["file"])
    weights = [_weight(members, *weight) for weight in about["weights"]]
    call = jax.jit(_exported(about, program, module, weights).call)

    def begin(rows: int) -> State:
        return [jnp.zeros((rows, *shape), dtype) for dtype, shape in about["carry"]]

    def step(carry: State, obs: dict[str, np.ndarray], seeds: np.ndarray) -> tuple[State, Mapping[str, Any]]:
        return call(weights, carry, only_seen(about, obs), seeds)

    return Policy(about, begin, step)


class _Members:
    """What a zip file of unknown origin holds. Together its members may be a few times as large as the file: they were
    written as they are, without compression.
    """

    def __init__(self, path: Any, file: zipfile.ZipFile) -> None:
        self.path = path
        self._file = file
        size = file.fp.seek(0, 2) if file.fp else 0
        self._most = self._left = max(MIN_LIMIT, MAX_RATIO * size)

    def read(self, name: str) -> bytes:
        with self._file.open(name) as member:
            data = member.read(self._left + 1)
        if len(data) > self._left:
            limit = f"{self._most / (1 << 20):.0f} MiB, {MAX_RATIO} times its own size"
            raise PolicyError(f"{self.path} decompresses to more than {limit}: no exported policy does")
        self._left -= len(data)
        return data


def _weight(members: _Members, name: str, dtype: str, shape: list[int]) -> jax.Array:
    data = io.BytesIO(members.read(f"weights/{name}.npy"))
    if np.lib.format.read_magic(data) != (1, 0):
        raise ValueError(f"the array {name!r} has another format than exported ones")
    found, by_columns, kind = np.lib.format.read_array_header_1_0(data)
    if by_columns or kind.hasobject:
        raise ValueError(f"the array {name!r} is no exported one")
    bits = np.frombuffer(data.getbuffer()[data.tell() :], kind).reshape(found)
    return jnp.asarray(bits.view(jnp.dtype(dtype)).reshape(shape))


def _exported(about: Mapping[str, Any], program: Mapping[str, Any], module: bytes, weights: Any) -> Any:
    """The exported function. One of the same signature is exported here, and the module put in its place: reading
    JAX's own format would need another package.
    """
    (rows,) = jax.export.symbolic_shape("n")

    def many(shape: Any, dtype: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((rows, *shape), dtype)

    def stand_in(weights: Any, carry: Any, obs: Any, seeds: Any) -> Any:
        count = carry[0].shape[0]
        return carry, {key: jnp.zeros((count, *one["shape"]), one["dtype"]) for key, one in about["act_space"].items()}

    obs = {key: many(one["shape"], one["dtype"]) for key, one in about["obs_space"].items()}
    exported = jax.export.export(jax.jit(stand_in), platforms=about["platforms"])(
        weights,
        [many(shape, dtype) for dtype, shape in about["carry"]],
        {**obs, "is_first": many((), bool)},
        jax.ShapeDtypeStruct((2, about["key_words"]), np.uint32),
    )
    return dataclasses.replace(
        exported,
        mlir_module_serialized=module,
        module_kept_var_idx=tuple(program["arguments"]),
        calling_convention_version=program["convention"],
    )
