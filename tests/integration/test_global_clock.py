"""Three replicas in three processes: all of them see the decisions of replica 0, call by call."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from dreamfleet.core.clock import GlobalClock, LocalClock
from support.cli_fleet import environment

CALLS = 1000
REPLICAS = 3

SCRIPT = """
import json, sys, threading
from dreamfleet.config.args import FleetArgs
from dreamfleet.core.clock import GlobalClock
from dreamfleet.core.context import RoleContext
from dreamfleet.roles.clocks import clock_board

address, replica, replicas, calls = sys.argv[1], *map(int, sys.argv[2:])
args = FleetArgs(clock_addr=address, replica=replica, replicas=replicas)
with clock_board(args, RoleContext()) as board:
    clocks = [GlobalClock(every, name, replica, replicas, board) for every, name in ((0.003, "log"), (0.011, "save"))]
    pace = threading.Event()
    answers = []
    for call in range(calls):
        answers.append([clock() for clock in clocks])
        if call % (replica + 2) == 0:
            pace.wait(0.0003 * (replica + 1))  # replicas run at different speeds
    print(json.dumps(answers), flush=True)
    sys.stdin.read()  # replica 0 answers until all are done
"""


def test_three_replicas_agree_on_a_thousand_calls(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/clock"
    replicas = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, address, str(replica), str(REPLICAS), str(CALLS)],
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for replica in range(REPLICAS)
    ]
    try:
        answers = [json.loads(replica.stdout.readline()) for replica in replicas if replica.stdout]
    finally:
        for replica in replicas:
            replica.communicate(timeout=30)
    assert [replica.returncode for replica in replicas] == [0, 0, 0]
    assert len(answers[0]) == CALLS
    assert answers[0] == answers[1] == answers[2]
    for clock in range(2):
        fired = [row[clock] for row in answers[0]]
        assert any(fired)
        assert not all(fired)


def test_one_replica_is_a_local_clock() -> None:
    times = [0.0, 0.4, 1.0, 1.1, 1.9, 2.0, 2.0, 5.0, 5.5, 6.0]
    for every in (1.0, 0.0, -1.0):
        local_times, global_times = iter([0.0, *times]), iter([0.0, *times])
        local = LocalClock(every, local_times.__next__)
        alone = GlobalClock(every, "log", time_fn=global_times.__next__)
        assert [alone() for _ in times] == [local() for _ in times]
