"""Agents by name, and checks of whether they support the spaces of an environment."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dreamfleet.config.schema import Config
from dreamfleet.core.errors import ConfigError, EnvError
from dreamfleet.core.import_path import import_factory
from dreamfleet.core.interfaces import Agent
from dreamfleet.core.spaces import Space, without_log
from dreamfleet.launch.dreamer import check_dreamer

BUILT_IN_AGENTS = ("dreamer", "random")


def find_agent(name: str) -> Callable[..., Agent]:
    if ":" not in name:
        known = " or ".join(f"agent={known}" for known in BUILT_IN_AGENTS)
        raise ConfigError(f"unknown agent {name!r}: use {known}, or agent=package.module:factory for your own agent")
    return import_factory("agent", name)


def why_unsuitable(config: Config, obs_space: Mapping[str, Space], act_space: Mapping[str, Space]) -> str | None:
    """Return why the agent does not support the spaces, or None. Custom agents may define `check_spaces`."""
    reason = _reason(config, obs_space, act_space)
    return f"does not suit agent={config.agent.name}: {reason}" if reason else None


def expect_suitable(config: Config, obs_space: Mapping[str, Space], act_space: Mapping[str, Space]) -> None:
    if reason := why_unsuitable(config, obs_space, act_space):
        raise ConfigError(f"environment {config.env.name!r} {reason}")


def _reason(config: Config, obs_space: Mapping[str, Space], act_space: Mapping[str, Space]) -> str | None:
    seen = without_log(obs_space)
    if config.agent.name == "dreamer":
        try:
            check_dreamer(config, seen, act_space)
        except (EnvError, ConfigError) as error:
            return str(error)
    elif config.agent.name not in BUILT_IN_AGENTS:
        check = getattr(find_agent(config.agent.name), "check_spaces", None)
        try:
            if check is not None:
                check(seen, act_space)
        except Exception as error:  # raised by user code
            return str(error) or repr(error)
    return None
