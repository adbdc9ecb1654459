"""What goes wrong with the cable of one host, for a random time."""

from __future__ import annotations

import random
import threading

from namespaces import LOST, Host, Quality

CUT_S = (0.5, 5.0)
HALF_OPEN_S = (8.0, 12.0)  # longer than a peer may be silent
IMPAIRED_S = (4.0, 8.0)
AWAY_S = (0.5, 8.0)  # of a host without power
FLAPS, FLAP_S = 6, (0.1, 1.5)
LOSSY, SLOW = Quality(loss=0.1), Quality(delay_s=0.1)

# What the host sends, what it receives, and for how long.
IMPAIRMENTS: dict[str, tuple[Quality, Quality, tuple[float, float]]] = {
    "cut": (LOST, LOST, CUT_S),
    "half-open from the worker": (LOST, Quality(), HALF_OPEN_S),
    "half-open to the worker": (Quality(), LOST, HALF_OPEN_S),
    "lossy": (LOSSY, LOSSY, IMPAIRED_S),
    "slow": (SLOW, SLOW, IMPAIRED_S),
}


def hold(seconds: float) -> None:
    """Keeps a fault for a time that is the point of it, such as a link that is cut for three seconds."""
    threading.Event().wait(seconds)


def impair(host: Host, sends: Quality, receives: Quality, seconds: float) -> None:
    """The caller heals it."""
    host.sends, host.receives = sends, receives
    hold(seconds)


def flap(host: Host, rng: random.Random) -> None:
    for _ in range(FLAPS):
        host.cut()
        hold(rng.uniform(*FLAP_S))
        host.heal()
        hold(rng.uniform(*FLAP_S))
