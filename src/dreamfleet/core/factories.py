"""Factories of everything that a fleet is built from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

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
