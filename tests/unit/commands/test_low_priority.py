"""The pauses of an evaluation beside a live run."""

import os
import subprocess
import sys
import time

import pytest

from dreamfleet.commands.evaluate import low_priority

WORK = """
import sys, time
from dreamfleet.commands.evaluate.low_priority import take_pauses
take_pauses(float(sys.argv[1]))
until = time.process_time() + 0.3
while time.process_time() < until:
    sum(range(10_000))
"""


@pytest.mark.parametrize("share", [0.5, 0.1])
def test_works_for_its_share_of_the_time(share: float) -> None:
    before = os.times()
    begun = time.monotonic()
    subprocess.run([sys.executable, "-c", WORK, str(share)], check=True, timeout=60)
    seconds = time.monotonic() - begun
    after = os.times()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    assert used >= 0.3
    # It begins its pauses 20 ms later at most, and the last stretch of work has no pause behind it.
    assert seconds >= (0.3 - 2 * low_priority.WORKED_S) / share


def test_takes_no_pauses_with_cores_enough() -> None:
    code = "import signal, sys\nfrom dreamfleet.commands.evaluate.low_priority import take_pauses\ntake_pauses(1.5)\n"
    asked = "sys.exit(signal.getitimer(signal.ITIMER_PROF) != (0.0, 0.0))"
    assert subprocess.run([sys.executable, "-c", code + asked], timeout=60).returncode == 0
