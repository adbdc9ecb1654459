"""Words for whoever started the command, if there is still somebody."""

from __future__ import annotations

import contextlib
import sys


def say(line: str) -> None:
    """A terminal that is gone ends nothing."""
    with contextlib.suppress(OSError):
        sys.stderr.write(line + "\n")
        sys.stderr.flush()
