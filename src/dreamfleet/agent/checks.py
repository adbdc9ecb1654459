"""What the Dreamer agent can take. Without JAX: it is asked before there is an agent."""

from __future__ import annotations

from collections.abc import Mapping

from dreamfleet.core.errors import EnvError, SpaceMismatch
from dreamfleet.core.spaces import MAX_ONE_HOT, Space, is_image, observed, without_log
from dreamfleet.model.spaces import Spaces, class_counts, width


def finite(obs_space: Mapping[str, Space]) -> dict[str, Space]:
    """What may come with a step: an infinity in it would make the loss one."""
    return {key: space.finite() for key, space in without_log(obs_space).items()}


def check_spaces(obs_space: Mapping[str, Space], act_space: Mapping[str, Space]) -> tuple[Spaces, Spaces]:
    """What is encoded and what is chosen. Raises for what the agent cannot take."""
    obs = observed(obs_space)
    act = {key: space for key, space in act_space.items() if key != "reset"}
    if not obs:
        raise EnvError("the environment has no observation besides reward and flags: there is nothing to learn from")
    if not act:
        raise EnvError("the environment has no action besides reset: there is nothing to choose")
    for key, space in {**obs, **act}.items():
        if 0 in space.shape:
            raise SpaceMismatch(f"{key!r} has the shape {space.shape} and so no element: leave it out")
    for key, space in obs.items():
        if space.discrete and not is_image(space) and width(space) > MAX_ONE_HOT:
            raise SpaceMismatch(
                f"{key!r} has {width(space)} classes in all, which is too many, more than {MAX_ONE_HOT}: declare the "
                f"range that its values have, or make it numbers: env.read={{{key}: numbers}}, or a Space of float32"
            )
    for key, space in act.items():
        if space.discrete and min(class_counts(space)) < 2:
            raise SpaceMismatch(f"the action {key!r} has an element with one choice only: leave it out")
        if space.discrete and width(space) > MAX_ONE_HOT:
            raise SpaceMismatch(
                f"the action {key!r} has {width(space)} choices in all, which is too many, more than {MAX_ONE_HOT}: "
                "offer fewer, make several small choices of one large one (MultiDiscrete), or take a number in a Box "
                "of floats and round it"
            )
    return Spaces(obs), Spaces(act)
