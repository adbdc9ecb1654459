"""Words for whoever started the command, if there is still somebody."""

from __future__ import annotations

import contextlib
import sys


def print_line(line: str) -> None:
    """Write the line without what would control the terminal. One that is gone ends nothing."""
    shown = "".join(char if char.isprintable() or char in "\n\t" else "?" for char in line)
    with contextlib.suppress(OSError):
        sys.stderr.write(shown + "\n")
        sys.stderr.flush()
