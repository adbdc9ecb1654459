"""Gymnasium spaces in words that `agent.export.policy_file` follows without Gymnasium."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from dreamfleet.envs.options import EnvOptions


class Observed(NamedTuple):
    """By the key that the agent sees."""

    paths: dict[str, list[Any]]  # the way to it in the environment's observation
    layouts: dict[str, dict[str, Any]]  # how those that are images lie in memory
    encodings: dict[str, dict[str, Any]]  # what is done to texts and sequences


def describe_observation(space: Any, name: str, options: EnvOptions) -> Observed:
    from dreamfleet.envs.gym.encoders import Encoding
    from dreamfleet.envs.gym.observations import Observations, leaves
    from dreamfleet.envs.gym.readers import IMAGE
    from dreamfleet.envs.images import ImageLayout

    encoding = Encoding(space, name, options)
    found = leaves(encoding.space, f"{name}: observation_space")
    readings = Observations(encoding.space, name, options, []).readings
    paths: dict[str, list[Any]] = {}
    layouts, encodings = {}, {}
    for reading, (path, leaf) in zip(readings.values(), found, strict=True):
        source = encoding.sources[path]
        paths[reading.key] = list(source.path)
        if source.how:
            encodings[reading.key] = dict(source.how)
        if reading.kind != IMAGE:
            continue
        layout = ImageLayout(leaf.shape)
        if layout.changes or reading.range:
            layouts[reading.key] = {
                "shape": list(leaf.shape),
                "dtype": reading.declared.dtype,
                "range": reading.range,
                "flat": layout.flat,
                "channels_first": layout.channels_first,
                "frames": bool(layout.frames),
            }
    return Observed(paths, layouts, encodings)


def describe_action(space: Any, name: str) -> dict[str, Any]:
    from dreamfleet.envs.gym.actions import Actions
    from dreamfleet.envs.gym.observations import leaves

    paths = [path for path, _ in leaves(space, f"{name}: action_space")]
    keys = dict(zip(paths, Actions(space, name).spaces, strict=True))
    return _tree(space, (), keys)


def _tree(space: Any, path: tuple[Any, ...], keys: Mapping[tuple[Any, ...], str]) -> dict[str, Any]:
    from dreamfleet.envs.gym.observations import children

    if path in keys:
        return {"key": keys[path], "dtype": np.dtype(space.dtype).name, **_bounds(space)}
    inner = {part: _tree(below, (*path, part), keys) for part, below in children(space)}
    return {"dict": inner} if _is_dict(space) else {"tuple": list(inner.values())}


def _bounds(space: Any) -> dict[str, Any]:
    from gymnasium import spaces as gym

    from dreamfleet.envs.action_scale import open_bound

    if isinstance(space, gym.Discrete | gym.MultiDiscrete):
        return {"start": np.asarray(getattr(space, "start", 0)).tolist()}
    kind = np.dtype(space.dtype).kind
    if isinstance(space, gym.MultiBinary) or kind == "b":
        return {}
    if kind == "f":
        low, high = (open_bound(bound, space.shape).tolist() for bound in (space.low, space.high))
        return {"low": low, "high": high}
    return {"start": space.low.astype(np.int64).tolist()}


def _is_dict(space: Any) -> bool:
    from gymnasium import spaces as gym

    return isinstance(space, gym.Dict)
