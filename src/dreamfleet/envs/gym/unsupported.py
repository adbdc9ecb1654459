"""Spaces that no agent can use as they are: which these are, and what a user can do about each."""

from __future__ import annotations

from typing import Any, NamedTuple

from gymnasium import spaces as gym

from dreamfleet.core.errors import EnvError
from dreamfleet.envs.catalog import task_of_gym

WRAP = "env.wrappers=[module:Class]"


class Refusal(NamedTuple):
    reason: str
    remedy: str  # in code
    option: str = ""  # what a configuration can do


REFUSED = {
    gym.Text: Refusal(
        "text has no fixed number of values",
        "encode it as numbers of a fixed shape",
        "encode it with env.text={{{key}: 128}}",
    ),
    gym.Sequence: Refusal(
        "its length changes from step to step", "pad it to a fixed shape", "pad it with env.pad={{{key}: 16}}"
    ),
    gym.Graph: Refusal("its size changes from step to step", "pad nodes and edges to fixed shapes"),
    gym.OneOf: Refusal("which space holds changes from step to step", "use a Dict of all of them"),
}
USABLE = gym.Box | gym.Discrete | gym.MultiDiscrete | gym.MultiBinary


def is_text(space: Any) -> bool:
    """Whether its values are texts: also of a package's own space, such as Minigrid's missions."""
    return isinstance(space, gym.Text) or getattr(getattr(space, "dtype", None), "kind", "") == "U"


def check_usable(space: Any, what: str, place: str, key: str) -> None:
    """Raise `EnvError` for a space, none of Dict and Tuple, that no agent can use, with all that can be done about it.

    `what` begins the message: "NAME: observation_space" or "NAME: action_space". `place` says where in that space, and
    `key` is the name of the observation.
    """
    kind = f"{type(space).__module__}.{type(space).__qualname__}"
    for refused, (reason, remedy, option) in REFUSED.items():
        if isinstance(space, refused):
            ways = _ways(what, place, key, option or f"{remedy} with {WRAP}", f"{remedy} with {WRAP}")
            raise EnvError(f"{place} is {refused.__name__}, which an agent cannot use: {reason}: {ways}")
    if is_text(space):
        reason, remedy, option = REFUSED[gym.Text]
        ways = _ways(what, place, key, option, f"{remedy} with {WRAP}")
        raise EnvError(f"{place} is text ({kind}), which an agent cannot use: {reason}: {ways}")
    if not isinstance(space, USABLE):
        use = "use a space of gymnasium.spaces (Box, Discrete, MultiDiscrete, ...)"
        raise EnvError(f"{place} is a {kind}: {_ways(what, place, key, use, use)}")
    if space.shape is None or 0 in space.shape:
        raise EnvError(
            f"{place} has shape {space.shape}, which holds nothing: {_ways(what, place, key, *['remove it'] * 2)}"
        )


def _ways(what: str, place: str, key: str, observed: str, acted: str) -> str:
    """What to do about an observation, or about an action, which cannot be left out."""
    name, _, role = what.rpartition(": ")
    if role != "observation_space":
        return acted
    ways = [observed.format(key=key)]
    if place != what:
        ways.append(f"leave it out with env.drop=[{key}]")
    if WRAP not in ways[0]:
        ways.append(f"change it with {WRAP}")
    bundled = task_of_gym(name)
    if bundled:
        ways.append(f"take {bundled}, the same task as an agent can use it")
    return f"{', '.join(ways[:-1])}, or {ways[-1]}" if len(ways) > 1 else ways[0]
