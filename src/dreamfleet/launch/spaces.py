"""An environment's spaces, asked of one that lives for a moment in a process whose main module this is.

A simulator may take memory, a display or a device for as long as its process lives: the launcher makes none itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import dreamfleet.launch
from dreamfleet.config.schema import Config
from dreamfleet.core.errors import EnvError
from dreamfleet.core.spaces import Space


class Spaces(NamedTuple):
    obs: dict[str, Space]
    act: dict[str, Space]


def ask_spaces(config: Config, timeout_s: float) -> Spaces:
    """Raises `EnvError` with the last line of what the environment said if it cannot be made."""
    asked = json.dumps({"config": config.model_dump(), "sys_path": sys.path})
    source = str(Path(dreamfleet.launch.__file__).parents[2])
    child = subprocess.Popen(
        [sys.executable, "-P", "-m", "dreamfleet.launch.spaces"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu", "PYTHONPATH": source},
        start_new_session=True,
    )
    try:
        answer, said = child.communicate(asked, timeout_s)
    except subprocess.TimeoutExpired as error:
        raise EnvError(f"environment {config.env.name!r} was not made within {timeout_s:g} s") from error
    finally:
        with contextlib.suppress(OSError):
            os.killpg(child.pid, signal.SIGKILL)  # also whatever the environment has left running
        child.communicate()
    if child.returncode:
        reason = next(iter(reversed(said.strip().splitlines())), f"exit code {child.returncode}")
        raise EnvError(f"environment {config.env.name!r} cannot be made: {reason}")
    described = json.loads(answer)
    return Spaces(*({key: Space(**space) for key, space in described[part].items()} for part in ("obs", "act")))


def main() -> None:
    with os.fdopen(os.dup(1), "w") as answer:
        os.dup2(2, 1)  # the environment may print
        asked = json.load(sys.stdin)
        sys.path[:] = asked["sys_path"]
        json.dump(describe_spaces(Config.model_validate(asked["config"])), answer)


def describe_spaces(config: Config) -> dict[str, dict[str, object]]:
    from dreamfleet.envs.registry import make_env

    env = make_env(config.env.name, 0, config.seed, config.env.kwargs)
    try:
        parts = {"obs": env.obs_space, "act": env.act_space}
        return {part: {key: space.to_json() for key, space in spaces.items()} for part, spaces in parts.items()}
    finally:
        env.close()


if __name__ == "__main__":
    main()
