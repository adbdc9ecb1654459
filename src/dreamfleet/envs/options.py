"""What a run may set for any environment, whichever suite it comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class EnvOptions:
    """An unset option leaves the choice to the suite."""

    size: tuple[int, int] | None = None  # height and width of images
    resize: str | None = None  # "area" or "bilinear"
    repeat: int = 0  # steps of the environment per action; 0: the suite's own, elsewhere 1
    time_limit: int = 0  # agent steps after which an episode is cut (a truncation); 0: none of ours
    vector: bool = False  # gym:ID is made by gymnasium.make_vec
    read: Mapping[str, str] = field(default_factory=dict)  # reading of an observation by key: see `readings`
    drop: tuple[str, ...] = ()  # observations to leave out, by name or glob
    text: Mapping[str, int] = field(default_factory=dict)  # texts to encode, and in how many bits
    pad: Mapping[str, int] = field(default_factory=dict)  # Sequence spaces to pad, and to how many elements
    clip: bool = False  # observations into their bounds
    reward_weights: tuple[float, ...] = ()  # of a reward with several parts
    wrappers: tuple[str | Mapping[str, Mapping[str, Any]], ...] = ()  # Gymnasium's, the innermost first
