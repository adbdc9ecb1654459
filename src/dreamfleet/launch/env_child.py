"""A short-lived process for an environment. It receives a JSON request on standard input.

Simulators may crash, or hold memory, a display or a device until their process ends. The launcher therefore never
creates an environment itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, TextIO

import dreamfleet.launch
from dreamfleet.config.schema import Config


@contextlib.contextmanager
def env_child(
    module: str, fds: Sequence[int] = (), stderr: int | IO[str] = subprocess.PIPE
) -> Iterator[subprocess.Popen[str]]:
    """Run `module` as a process. Kill it and all processes of the environment at the end of the block.

    The process inherits the descriptors `fds` and receives their numbers as arguments.
    """
    source = str(Path(dreamfleet.launch.__file__).parents[2])
    with subprocess.Popen(
        [sys.executable, "-P", "-m", module, *(str(fd) for fd in fds)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu", "PYTHONPATH": source},
        start_new_session=True,
        pass_fds=fds,
    ) as child:
        try:
            yield child
        finally:
            with contextlib.suppress(OSError):
                os.killpg(child.pid, signal.SIGKILL)


def question(config: Config, **more: Any) -> str:
    return json.dumps({"config": config.model_dump(), "sys_path": sys.path, **more})


@contextlib.contextmanager
def asked() -> Iterator[tuple[dict[str, Any], Config, TextIO]]:
    """Yield the request, its configuration and the file for the answer, in the child process.

    Standard output is redirected to standard error, because environments may print.
    """
    with os.fdopen(os.dup(1), "w") as answer:
        os.dup2(2, 1)
        question = json.load(sys.stdin)
        sys.path[:] = question["sys_path"]
        yield question, Config.model_validate(question["config"]), answer


def last_line(text: str, otherwise: str) -> str:
    return next(iter(reversed(text.strip().splitlines())), otherwise)
