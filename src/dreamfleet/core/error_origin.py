"""Where an error comes from: its type and message in one line, and the line of a user's code that raised it."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path

PACKAGE = str(Path(__file__).parents[1])
LIBRARY = sysconfig.get_path("stdlib")


def headline(error: BaseException) -> str:
    """The error's type and message in one line, without its notes."""
    words = traceback.TracebackException.from_exception(error, limit=0)
    words.__notes__ = None
    return " ".join(list(words.format_exception_only())[-1].split())


def told(error: BaseException) -> str:
    """The headline, with the place if the error was raised."""
    place = raised_at(error)
    return f"{headline(error)}, raised at {place}" if place else headline(error)


def raised_at(error: BaseException) -> str:
    """The innermost line of the user's own code, or the innermost of all where only libraries are involved."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if is_own_code(frame.filename)]
    if not frames:
        return ""
    frame = own[-1] if own else frames[-1]
    return f"{frame.filename}:{frame.lineno} in {frame.name}"


def is_own_code(filename: str) -> bool:
    """Whether a file is the user's and not of a library."""
    return not filename.startswith((PACKAGE, LIBRARY, "<")) and "site-packages" not in filename
