"""Messages on the terminal."""

from __future__ import annotations

import contextlib
import sys


def print_line(line: str) -> None:
    """Print the line without control characters. Ignore errors of a closed terminal."""
    shown = "".join(char if char.isprintable() or char in "\n\t" else "?" for char in line)
    with contextlib.suppress(OSError):
        sys.stderr.write(shown + "\n")
        sys.stderr.flush()
