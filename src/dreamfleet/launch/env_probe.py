"""Determine an environment's spaces in a short-lived process, which runs this module."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from dreamfleet.config.schema import Config
from dreamfleet.core.errors import BadInput, ConfigError, EnvError, EnvFailed
from dreamfleet.core.spaces import Space
from dreamfleet.launch.env_child import asked, env_child, last_line, question
from dreamfleet.supervision.reports import describe_error


class EnvSpaces(NamedTuple):
    obs: dict[str, Space]
    act: dict[str, Space]
    notes: tuple[str, ...] = ()  # for the user, such as that images are resized
    readings: Mapping[str, Any] = MappingProxyType({})  # for Gymnasium environments, see `envs.gym.readers`
    variables: Mapping[str, str] = MappingProxyType({})  # rendering settings for other processes


def ask_spaces(config: Config, timeout_s: float) -> EnvSpaces:
    """Return the spaces and related facts of the environment.

    Raises:
        EnvFailed: The constructor raised an error. The traceback is attached as a note.
        ConfigError: The configuration of the environment is invalid.
        EnvError: The process did not answer. The message contains its last line of output.
    """
    with env_child("dreamfleet.launch.env_probe") as child:
        try:
            answer, said = child.communicate(question(config), timeout_s)
        except subprocess.TimeoutExpired as error:
            raise EnvError(f"environment {config.env.name!r} was not made within {timeout_s:g} s") from error
    if child.returncode:
        reason = last_line(said, f"exit code {child.returncode}")
        raise EnvError(f"environment {config.env.name!r} cannot be made: {reason}")
    described = json.loads(answer)
    if "bad_input" in described:
        raise ConfigError(described["bad_input"])
    if "failed" in described:
        failure = EnvFailed(described["failed"])
        failure.add_note(described["traceback"])
        raise failure
    obs, act = ({key: Space(**space) for key, space in described[part].items()} for part in ("obs", "act"))
    return EnvSpaces(obs, act, tuple(described["notes"]), described["readings"], described["variables"])


def main() -> None:
    with asked() as (_, config, answer):
        try:
            described = describe_spaces(config)
        except EnvFailed as error:
            described = {"failed": str(error), "traceback": describe_error(error)["traceback"].rstrip()}
        except (BadInput, EnvError) as error:  # an EnvError here concerns the declared spaces
            described = {"bad_input": str(error)}
        json.dump(described, answer)


def describe_spaces(config: Config) -> dict[str, Any]:
    from dreamfleet.envs.render.backend import chosen
    from dreamfleet.launch.factories import make_env

    notes: list[str] = []
    env = make_env(config, "train", 0, notes=notes)
    try:
        parts = {"obs": env.obs_space, "act": env.act_space}
        spaces = {part: {key: space.to_json() for key, space in found.items()} for part, found in parts.items()}
        readings = {key: reading.to_json() for key, reading in getattr(env, "readings", {}).items()}
        return {**spaces, "notes": notes, "readings": readings, "variables": chosen()}
    finally:
        with contextlib.suppress(Exception):
            env.close()


if __name__ == "__main__":
    main()
