"""An error of a constructor in words about the environment, whichever process wanted to have one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dreamfleet.core.error_origin import headline, told
from dreamfleet.core.errors import DreamfleetError, EnvFailed
from dreamfleet.envs.render.backend import hint


@contextmanager
def construction(name: str) -> Iterator[None]:
    try:
        yield
    except DreamfleetError:
        raise
    except Exception as error:
        raise EnvFailed(f"{name} cannot be made: {told(error)}{hint(headline(error))}", passing=True) from error
