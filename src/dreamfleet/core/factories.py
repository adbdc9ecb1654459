"""Factories on their way from a launcher to the process that calls them."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from dreamfleet.core.interfaces import Agent, Arrays, Env, EnvBatch, Logger, Replay

T = TypeVar("T")
Factory = Callable[..., T] | bytes


@dataclass(frozen=True)
class Factories:
    """Everything a fleet is built from. Each one is called in the process of the role that needs it."""

    make_agent: Callable[[], Agent]
    make_replay_train: Callable[[], Replay]
    make_replay_eval: Callable[[], Replay]
    make_env_train: Callable[..., Env | EnvBatch]  # see roles.env_worker.role
    make_env_eval: Callable[..., Env | EnvBatch]
    make_stream: Callable[[Replay, str], Iterator[Arrays]]
    make_logger: Callable[[], Logger]


def unpack(factory: Factory[T]) -> Callable[..., T]:
    """Accepts a callable, or one that the caller has cloudpickled itself. Never used on anything from a socket or a
    file.
    """
    if isinstance(factory, bytes):
        loaded: Any = pickle.loads(factory)
        return loaded  # type: ignore[no-any-return]
    return factory
