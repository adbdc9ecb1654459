"""Makes what a factory returned into an environment of ours."""

from __future__ import annotations

from typing import Any

from dreamfleet.core.interfaces import Env, EnvBatch
from dreamfleet.envs.options import EnvOptions


def adapt(made: Any, name: str, options: EnvOptions, seed: int, notes: list[str]) -> Env | EnvBatch:
    """Accepts a `gymnasium.Env`, a `gymnasium.vector.VectorEnv`, or an `Env` or `EnvBatch` of our own."""
    return made  # type: ignore[no-any-return]
