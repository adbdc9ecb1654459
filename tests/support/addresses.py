"""What a machine's network offers."""

from __future__ import annotations

import socket

import pytest


def expect_ipv6() -> None:
    """Skips the test where this machine has no IPv6."""
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError as error:
        pytest.skip(f"this machine has no IPv6 loopback: {error.strerror}")
