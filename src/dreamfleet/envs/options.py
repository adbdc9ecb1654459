"""What a run may set for any environment, whichever suite it comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class EnvOptions:
    """An unset option leaves the choice to the suite."""

    size: tuple[int, int] | None = None  # height and width of images
    resize: str | None = None  # "area" or "bilinear"
    repeat: int = 0  # steps of the environment per action; 0: the suite's own, elsewhere 1
    time_limit: int = 0  # agent steps after which an episode is cut (a truncation); 0: none of ours
    vector: bool = False  # gym:ID is made by gymnasium.make_vec
    read: Mapping[str, str] = field(
        default_factory=dict
    )  # how an observation of Gymnasium is read, by key: see `readings`
