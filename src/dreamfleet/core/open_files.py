"""How many files and connections this process may have open at once."""

from __future__ import annotations

import errno
import resource

NATIVE = f"(os error {errno.EMFILE})"
MOST_FILES = 1 << 20  # more than any role needs; some programs walk through all numbers up to the limit


def raise_open_files_limit() -> None:
    """Raise the soft limit to the hard one: every connection to a server takes a descriptor of its process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def is_out_of_files(error: BaseException | None) -> bool:
    """Whether a descriptor was lacking, also where another error was raised from that one. It passes: connections end.

    Errors of ZeroMQ have such numbers too, and native libraries only a text.
    """
    while error is not None:
        if getattr(error, "errno", None) in (errno.EMFILE, errno.ENFILE) or NATIVE in str(error):
            return True
        error = error.__cause__
    return False
