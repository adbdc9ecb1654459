"""Observations of Gymnasium as ours: nested spaces become flat keys, each value the dtype and layout the agent takes.

The work is planned once from the space; a step only runs the plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces as gym

from dreamfleet.core.errors import EnvError, SpaceMismatch
from dreamfleet.core.spaces import LOG_PREFIX, STEP_KEYS, Space
from dreamfleet.envs.checks import TAKEN
from dreamfleet.envs.clip import ADVICE, advice
from dreamfleet.envs.gym.readers import (
    IMAGE,
    INT32,
    Declared,
    Reading,
    choose_readings,
    declared,
    rule_of,
    scale_to_bytes,
)
from dreamfleet.envs.gym.unsupported import check_usable
from dreamfleet.envs.gym.value_types import conversion
from dreamfleet.envs.images import ImageLayout, choose_size, make_resize
from dreamfleet.envs.options import EnvOptions

# Keys of a step that are not the environment's: its own of the same name move below `obs/`.
OWN_KEYS = {*STEP_KEYS, "reset", *TAKEN}
OWN_PREFIXES = (LOG_PREFIX, "dyn/", "action")
MAX_FLOAT = float(np.finfo(np.float32).max)

Path = tuple[Any, ...]
Convert = Callable[[Any], Any]
Flatten = Callable[[Any, dict[str, Any]], None]


def leaves(space: Any, what: str, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """The spaces inside Dict and Tuple, with the way to them; `what` begins the message about one we cannot use."""
    place = f"{what}{' at ' + repr(join(path)) if path else ''}"
    if isinstance(space, gym.Dict | gym.Tuple):
        parts = children(space)
        if not parts:
            raise EnvError(f"{place} is an empty {type(space).__name__}: remove it or put something in")
        for key, part in parts:
            yield from leaves(part, what, (*path, key))
        return
    check_usable(space, what, place, key_of(path))
    yield path, space


def children(space: Any) -> list[tuple[Any, Any]]:
    return list(space.spaces.items()) if isinstance(space, gym.Dict) else list(enumerate(space.spaces))


def join(path: Path) -> str:
    return "/".join(str(part) for part in path)


def key_of(path: Path) -> str:
    """The name of an observation, which is not one that the fleet needs itself."""
    key = join(path) or "obs"
    return f"obs/{key}" if key in OWN_KEYS or key.startswith(OWN_PREFIXES) else key


def unique(keys: list[str], what: str) -> list[str]:
    twice = sorted({key for key in keys if keys.count(key) > 1})
    if twice:
        raise EnvError(f"{what} has two parts that are both called {twice[0]!r} here: rename one of them")
    return keys


class Observations:
    """Calling it turns an observation of the environment into a flat dictionary, with one row more where `rows` is set.

    Shapes are never changed to fit: what does not match is left for the space checks to name, or named here where a
    conversion would hide it.
    """

    def __init__(self, space: Any, name: str, options: EnvOptions, notes: list[str], rows: int | None = None) -> None:
        self._name = name
        self._notes = notes  # takes what is found out later, too
        self._lead = () if rows is None else (rows,)
        found = list(leaves(space, f"{name}: observation_space"))
        parts = [
            declared(leaf, f"{name}: observation {join(path) or 'obs'!r}", str(path[-1]) if path else "obs")
            for path, leaf in found
        ]
        keys = [_key(path, part) for (path, _), part in zip(found, parts, strict=True)]
        unique(keys, f"{name}: observation_space")
        self.readings = choose_readings(dict(zip(keys, parts, strict=True)), name, options.read, notes)
        shown = {key: each.declared.shape for key, each in self.readings.items() if each.kind == IMAGE}
        layouts = {key: ImageLayout(shape) for key, shape in shown.items()}
        size = choose_size({key: layout.shape[:2] for key, layout in layouts.items()}, options, notes)
        if options.size and not layouts:
            notes.append(f"env.size={options.size[0]},{options.size[1]} changes nothing: {name} has no images")
        self.spaces: dict[str, Space] = {}
        converts: dict[Path, tuple[str, Convert]] = {}
        for key, (path, leaf) in zip(keys, found, strict=True):
            values = self.readings[key].values(f"{name}: observation {key!r}")
            if key in layouts:
                convert = self._image(self.readings[key], leaf, values, layouts[key], size, options.resize)
            else:
                self.spaces[key] = values
                convert = self._cast(key, leaf, self.spaces[key])
            converts[path] = (key, convert)
        self._flatten = self._plan(space, (), converts)

    def __call__(self, obs: Any) -> dict[str, Any]:
        result: dict[str, Any] = {}
        self._flatten(obs, result)
        return result

    def _plan(self, space: Any, path: Path, converts: Mapping[Path, tuple[str, Convert]]) -> Flatten:
        if path in converts:
            key, convert = converts[path]

            def take(value: Any, result: dict[str, Any]) -> None:
                result[key] = convert(value)

            return take
        parts = [(part, self._plan(inner, (*path, part), converts)) for part, inner in children(space)]
        kind = (dict, Mapping) if isinstance(space, gym.Dict) else (tuple, list)

        def descend(value: Any, result: dict[str, Any]) -> None:
            if not isinstance(value, kind) or len(value) != len(parts):
                raise self._differs(path, space, value)
            try:
                for part, take in parts:
                    take(value[part], result)
            except KeyError:
                if isinstance(value, Mapping) and all(part in value for part, _ in parts):
                    raise
                raise self._differs(path, space, value) from None

        return descend

    def _differs(self, path: Path, space: Any, value: Any) -> SpaceMismatch:
        where = f"observation at {join(path)!r}" if path else "observation"
        kind = type(space).__name__
        if isinstance(value, Mapping) and isinstance(space, gym.Dict):
            differ = sorted(map(str, value.keys() ^ space.spaces.keys()))
            return SpaceMismatch(f"{self._name}: {where} and its Dict space differ in the keys {differ}")
        got = f"{type(value).__name__} of {len(value)}" if hasattr(value, "__len__") else type(value).__name__
        expected = "dict" if isinstance(space, gym.Dict) else "tuple"
        return SpaceMismatch(
            f"{self._name}: {where} is a {got} instead of a {expected} of {len(space.spaces)}: its space is a {kind}"
        )

    def _image(
        self,
        reading: Reading,
        leaf: Any,
        values: Space,
        layout: ImageLayout,
        size: tuple[int, int] | None,
        method: str | None,
    ) -> Convert:
        key, expected = reading.key, (*self._lead, *leaf.shape)
        shape = layout.shape if size is None else (*size, layout.shape[2])
        self.spaces[key] = Space(np.uint8, shape)
        to_bytes = self._to_bytes(reading, leaf, values)
        resize = None if shape == layout.shape else make_resize(shape[:2], method)
        batched = bool(self._lead)
        if not layout.changes and resize is None:
            return to_bytes

        def convert(value: Any) -> np.ndarray:
            image: np.ndarray = to_bytes(value)
            if image.shape != expected:
                raise SpaceMismatch(
                    f"{self._name}: observation {key!r} has shape {image.shape} instead of {expected}: "
                    "return what observation_space declares"
                )
            image = layout(image)
            if resize is None:
                return image
            return np.stack([resize(row) for row in image]) if batched else resize(image)

        return convert

    def _to_bytes(self, reading: Reading, leaf: Any, values: Space) -> Convert:
        """Values from 0 to 255 without a change of layout or size. Others are checked here: scaling hides them."""
        key = reading.key
        if reading.range is None:
            return self._cast(key, leaf, Space(np.uint8, leaf.shape))
        cast, scale = self._cast(key, leaf, values), scale_to_bytes(*reading.range)

        def convert(value: Any) -> np.ndarray:
            image = cast(value)
            if violation := self._violation(values, image):
                raise SpaceMismatch(
                    f"{self._name}: observation {key!r} has {violation}: return what observation_space declares, {leaf}"
                    f"{advice(violation)}"
                )
            return scale(image)

        return convert

    def _violation(self, space: Space, value: np.ndarray) -> str | None:
        if not self._lead or value.shape != (*self._lead, *space.shape):
            return space.violation(value)
        found = ((row, space.violation(part)) for row, part in enumerate(value))
        return next((f"{violation} in row {row}" for row, violation in found if violation), None)

    def _cast(self, key: str, leaf: Any, space: Space) -> Convert:
        """Changes the dtype where no value is lost by it."""
        dtype, scalar = space.dtype, space.dtype.type
        usual = {scalar, int, np.int64} if dtype.kind == "i" else {scalar, float, np.float64, int, np.int64}
        low, high = (int(INT32.min), int(INT32.max)) if dtype.kind == "i" else (-MAX_FLOAT, MAX_FLOAT)

        noted = False

        def cast(value: Any) -> Any:
            if type(value) is np.ndarray and value.dtype == dtype:
                return value
            return convert(value)

        def convert(value: Any) -> Any:
            nonlocal noted
            try:
                array = np.asarray(value)
            except ValueError:  # rows of unequal lengths
                array = np.asarray(None)
            if array.dtype.kind not in ("biuf" if dtype.kind == "f" else "biu"):
                raise SpaceMismatch(
                    f"{self._name}: observation {key!r} has dtype {array.dtype}, which is not a value of its space "
                    f"{leaf}: return that dtype, or declare what step returns"
                )
            with np.errstate(over="ignore"):  # becomes infinite, as its bounds do
                result = array.astype(dtype)
            if dtype.kind != "f" and (result != array).any():
                raise SpaceMismatch(
                    f"{self._name}: observation {key!r} has value {array[result != array].flat[0]}, which is not a "
                    f"value of its space {leaf}: return one that is, or widen the space, or {ADVICE}"
                )
            if not noted and (form := conversion(value, array, leaf)):
                noted = True
                self._notes.append(f"observation {key!r} comes as {form} at every step")
            return result

        def cast_scalar(value: Any) -> Any:
            if type(value) in usual and low <= value <= high:
                return scalar(value)
            return convert(value)

        return cast if space.shape or self._lead or dtype.kind == "b" else cast_scalar


def _key(path: Path, leaf: Declared) -> str:
    return "image" if not path and rule_of(leaf).reading == IMAGE else key_of(path)
