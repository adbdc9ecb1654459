"""What an agent cannot take of a Gymnasium observation is left out or brought to a fixed shape.

`env.drop` leaves parts out, `env.text` turns texts into bits, `env.pad` sequences into arrays with a mask, and
`env.clip` brings numbers into their bounds. All of it is planned once from the space; a step only runs the plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gymnasium import spaces as gym
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

from dreamfleet.core.errors import ConfigError, EnvError, SpaceMismatch
from dreamfleet.envs.clip import make_clip
from dreamfleet.envs.gym.observations import Path, children, key_of, leaves
from dreamfleet.envs.gym.text import hashed_words
from dreamfleet.envs.gym.unsupported import is_text
from dreamfleet.envs.key_patterns import select, select_sizes
from dreamfleet.envs.options import EnvOptions

MASK = "/mask"
Convert = Callable[[Any], Any]


@dataclass(frozen=True)
class Source:
    """Where an array comes from: the path in the environment's own observation, and what is done to what is there."""

    path: Path = ()
    how: Mapping[str, Any] = field(default_factory=dict)  # as `agent.export.policy_file` takes it; empty: nothing


@dataclass(frozen=True)
class EncodedPart:
    """What a part of an observation becomes, or one of several things, whose names differ by `suffix`."""

    space: Any
    convert: Convert | None = None  # None: the value stays as it is
    sources: Mapping[Path, Source] = field(default_factory=lambda: {(): Source()})  # by path in `space`
    suffix: str = ""

    def __call__(self, value: Any) -> Any:
        return value if self.convert is None else self.convert(value)


Field = tuple[Any, Any, EncodedPart]  # its name in the environment's observation, its name now, and what it becomes


class Encoding:
    """Calling it turns an observation of the space `original` into one of `space`, or a batch of `rows` of them.

    What does not have the structure of its space passes unchanged, for the adapter behind to name.
    """

    def __init__(self, original: Any, name: str, options: EnvOptions, rows: int | None = None) -> None:
        self._name = name
        self._clip = options.clip
        found = [(key_of(path), space) for path, space in _walk(original)]
        texts = [key for key, space in found if is_text(space)]
        sequences = [key for key, space in found if isinstance(space, gym.Sequence)]
        self._dropped = select("env.drop", options.drop, [key for key, _ in found], f"observation of {name}")
        self._bits = select_sizes("env.text", options.text, texts, f"text of {name}")
        self._lengths = select_sizes("env.pad", options.pad, sequences, f"Sequence space of {name}")
        parts = self._plan(original, (), rows)
        if not parts:
            raise ConfigError(f"env.drop={list(options.drop)} leaves no observation of {name}: keep one of them")
        self._part = parts[0] if len(parts) == 1 else self._split(original, parts)
        self.space, self.sources = self._part.space, self._part.sources

    def __call__(self, obs: Any) -> Any:
        return self._part(obs)

    def _plan(self, space: Any, path: Path, rows: int | None) -> list[EncodedPart]:
        """Return what a part becomes: nothing if it is dropped."""
        key = key_of(path)
        if key in self._dropped:
            return []
        if isinstance(space, gym.Dict | gym.Tuple) and children(space):
            planned = [(name, self._plan(inner, (*path, name), rows)) for name, inner in children(space)]
            return [self._join(space, path, planned)] if any(parts for _, parts in planned) else []
        if is_text(space) and key in self._bits:
            return [self._encode_text(key, self._bits[key], rows)]
        if isinstance(space, gym.Sequence) and key in self._lengths:
            return self._pad(space, path, self._lengths[key], rows)
        return [EncodedPart(space, self._clipping(space, rows))]

    def _join(self, space: Any, path: Path, planned: list[tuple[Any, list[EncodedPart]]]) -> EncodedPart:
        """A Tuple whose parts are not the same in number becomes a Dict, with the numbers as names."""
        is_tuple = isinstance(space, gym.Tuple)
        as_it_was = all(len(parts) == 1 for _, parts in planned)
        fields: list[Field] = []
        for name, parts in planned:
            new = str(name) if is_tuple and not as_it_was else name
            fields += [(name, f"{new}{part.suffix}" if part.suffix else new, part) for part in parts]
        names = [new for _, new, _ in fields]
        for new in names:
            if names.count(new) > 1:
                raise EnvError(f"{self._name}: observation {key_of((*path, new))!r} is there twice: rename one of them")
        sources = {
            (new, *rest): Source((name, *source.path), source.how)
            for name, new, part in fields
            for rest, source in part.sources.items()
        }
        if as_it_was and all(part.convert is None for _, _, part in fields):
            return EncodedPart(space, None, sources)
        spaces = {new: part.space for _, new, part in fields}
        if not is_tuple:
            return EncodedPart(gym.Dict(spaces), _convert_dict(set(space.spaces), fields), sources)
        left = gym.Tuple(list(spaces.values())) if as_it_was else gym.Dict(spaces)
        return EncodedPart(left, _convert_tuple(len(space.spaces), fields, as_it_was), sources)

    def _split(self, original: Any, parts: list[EncodedPart]) -> EncodedPart:
        """An observation that is one sequence, and so becomes several things."""
        part = self._join(gym.Dict({"obs": original}), (), [("obs", parts)])
        sources = {path: Source(source.path[1:], source.how) for path, source in part.sources.items()}
        return EncodedPart(part.space, lambda value: part({"obs": value}), sources)

    def _encode_text(self, key: str, bits: int, rows: int | None) -> EncodedPart:
        def encode(value: Any) -> np.ndarray:
            if not isinstance(value, str):
                raise SpaceMismatch(f"{self._name}: observation {key!r} is a {type(value).__name__}: return text")
            return hashed_words(value, bits)

        space = gym.MultiBinary(bits)
        return EncodedPart(space, self._by_row(encode, space, key, rows), {(): Source((), {"bits": bits})})

    def _pad(self, space: Any, path: Path, length: int, rows: int | None) -> list[EncodedPart]:
        """The first elements, with zeros behind them, and a mask that is true where there is an element."""
        key = key_of(path)
        if isinstance(space.feature_space, gym.Sequence):
            raise ConfigError(
                f"{self._name}: observation {key!r} is a Sequence of Sequences, which env.pad does not take: leave it "
                f"out with env.drop=[{key}], or change it with env.wrappers=[module:Class]"
            )
        element = next(iter(self._plan(space.feature_space, path, None)), None)
        if element is None:
            return []
        list(leaves(element.space, f"{self._name}: observation_space", path))  # raises for what no agent can use
        fill = _fill(element.space)

        def pad(value: Any) -> Any:
            items = [element(item) for item in _elements(space, value)[:length]]
            return _stack(element.space, [*items, *[fill] * (length - len(items))])

        def mask(value: Any) -> np.ndarray:
            return np.arange(length) < len(_elements(space, value))

        padded, present = batch_space(element.space, length), gym.MultiBinary(length)
        about = {"length": length, "stacked": space.stack}
        sources = {
            part: Source((), {**about, "within": source.path, "each": source.how, "fill": _follow(fill, part).tolist()})
            for part, source in element.sources.items()
        }
        within = next(iter(element.sources.values())).path
        return [
            EncodedPart(padded, self._by_row(pad, padded, key, rows), sources),
            EncodedPart(
                present, self._by_row(mask, present, key, rows), {(): Source((), {**about, "within": within})}, MASK
            ),
        ]

    def _by_row(self, convert: Convert, space: Any, key: str, rows: int | None) -> Convert:
        """Apply it to the value of one environment, or of each row, and name the observation that it fails for."""

        def converted(value: Any) -> Any:
            try:
                if rows is None:
                    return convert(value)
                if len(value) != rows:
                    raise ValueError(f"{len(value)} rows instead of {rows}")
                return _stack(space, [convert(row) for row in value])
            except (TypeError, ValueError, LookupError) as error:
                raise SpaceMismatch(
                    f"{self._name}: observation {key!r} is not a value of its space: {error}: return what "
                    "observation_space declares"
                ) from error

        return converted

    def _clipping(self, space: Any, rows: int | None) -> Convert | None:
        limits = bounds(space) if self._clip else None
        return limits and make_clip(*limits, space.shape if rows is None else (rows, *space.shape))


def bounds(space: Any) -> tuple[Any, Any] | None:
    """Lowest and highest value, both allowed; None for a space without any."""
    if isinstance(space, gym.Discrete):
        return space.start, space.start + space.n - 1
    if isinstance(space, gym.MultiDiscrete):
        start = getattr(space, "start", 0)  # which older versions of Gymnasium do not have
        return start, start + space.nvec - 1
    if isinstance(space, gym.MultiBinary):
        return 0, 1
    return (space.low, space.high) if isinstance(space, gym.Box) else None


def _walk(space: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Every part that has a name, sequences also as a whole."""
    if isinstance(space, gym.Dict | gym.Tuple) and children(space):
        for name, inner in children(space):
            yield from _walk(inner, (*path, name))
        return
    yield path, space
    if isinstance(space, gym.Sequence):
        yield from _walk(space.feature_space, path)


def _convert_dict(declared: set[Any], fields: list[Field]) -> Convert:
    def convert(value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        result = {name: inner for name, inner in value.items() if name not in declared}
        for name, new, part in fields:
            if name in value:
                result[new] = part(value[name])
        return result

    return convert


def _convert_tuple(count: int, fields: list[Field], stays: bool) -> Convert:
    def convert(value: Any) -> Any:
        if not isinstance(value, tuple | list) or len(value) != count:
            return value
        parts = {new: part(value[place]) for place, new, part in fields}
        return tuple(parts.values()) if stays else parts

    return convert


def _elements(space: Any, value: Any) -> list[Any]:
    if space.stack:
        return list(iterate(space.stacked_feature_space, value))
    if not isinstance(value, tuple | list | np.ndarray):
        raise TypeError(f"a {type(value).__name__} instead of a tuple")
    return list(value)


def _stack(space: Any, values: list[Any]) -> Any:
    out: Any = create_empty_array(space, len(values))
    return concatenate(space, values, out)


def _fill(space: Any) -> Any:
    """Zeros, or what the space has closest to them."""
    if isinstance(space, gym.Dict):
        return {name: _fill(inner) for name, inner in space.spaces.items()}
    if isinstance(space, gym.Tuple):
        return tuple(_fill(inner) for inner in space.spaces)
    low, high = bounds(space) or (0, 0)
    return np.clip(np.zeros(space.shape), low, high).astype(space.dtype)


def _follow(value: Any, path: Path) -> Any:
    for part in path:
        value = value[part]
    return value
