"""How many files and connections this process may have open at once."""

from __future__ import annotations

import contextlib
import errno
import resource
import time
from collections.abc import Callable

RETRY_S = 1.0
NATIVE = f"(os error {errno.EMFILE})"
MAX_FILES = 1 << 20  # more than any role needs; some programs walk through all numbers up to the limit


def raise_open_files_limit() -> None:
    """Raise the soft limit to the hard one: every connection to a server takes a descriptor of its process.

    Some systems name no hard limit and allow less all the same: then the limit becomes half of it, or a quarter, and so
    on, and where none is allowed it stays as it is.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_FILES)
    while soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            return resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        wanted //= 2


def retry_without_files(call: Callable[[], None], timeout_s: float) -> None:
    """Call it again as long as it fails for want of a descriptor: connections without a key end after a few seconds."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return call()
        except Exception as error:
            if not is_out_of_files(error) or time.monotonic() >= deadline:
                raise
        time.sleep(RETRY_S)


def is_out_of_files(error: BaseException | None) -> bool:
    """Whether a descriptor was lacking, also where another error was raised from that one. It passes: connections end.

    Errors of ZeroMQ have such numbers too, and native libraries only a text.
    """
    while error is not None:
        if getattr(error, "errno", None) in (errno.EMFILE, errno.ENFILE) or NATIVE in str(error):
            return True
        error = error.__cause__
    return False
