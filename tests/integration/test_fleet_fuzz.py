"""Garbage against every server of a live fleet changes nothing but an error counter.

`DREAMFLEET_FUZZ` sets the number of frames per server.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import zmq

from dreamfleet.transport.codec import REQUEST, encode
from support.cli_fleet import CliFleet

FRAMES = int(os.environ.get("DREAMFLEET_FUZZ", "100000"))
METHODS = {"actor": "act", "replay": "add_batch", "logger": "tran"}


def garbage(rng: np.random.Generator, method: str) -> list[bytes]:
    """Random bytes, or a real request cut short, in one or more frames."""
    if rng.random() < 0.5:
        return [rng.bytes(int(rng.integers(0, 200))) for _ in range(rng.integers(1, 4))]
    arrays = {"stream": np.zeros(2, np.int64), "image": np.zeros((2, 8, 8, 3), np.uint8)}
    whole = b"".join(bytes(frame) for frame in encode(REQUEST, 7, method, arrays))
    return [whole[: int(rng.integers(1, len(whole)))]]


def malformed(fleet: CliFleet, server: str) -> int:
    status = fleet.role("agent")["actor"] if server == "actor" else fleet.role(server)
    return int(status["server"]["malformed"])


@pytest.mark.timeout(600)
def test_garbage_changes_nothing_but_the_error_counters(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    with zmq.Context() as context, CliFleet(tmp_path, "run.envs=2", "run.log_every=0") as fleet:
        fleet.wait_training()
        addresses = json.loads((tmp_path / "fleet.json").read_text())["addresses"]
        for server, method in METHODS.items():
            with context.socket(zmq.DEALER) as attacker:
                attacker.linger = -1
                attacker.rcvhwm = 0
                attacker.connect(addresses[server][0])
                for _ in range(FRAMES):
                    attacker.send_multipart(garbage(rng, method))
                fleet.wait(lambda name=server: malformed(fleet, name) == FRAMES, f"{server} to count them all", 300)
        step, updates = fleet.step(), fleet.updates()
        fleet.wait(lambda: fleet.step() > step + 100 and fleet.updates() > updates, "steps and updates as before")
        assert [malformed(fleet, server) for server in METHODS] == [FRAMES] * 3
        assert fleet.role("agent")["actor"]["server"]["errors"] == 0
        assert not [key for key in ("add_batch", "update") if fleet.role("replay")["server"][f"{key}/errors"]]
        assert fleet.stop()[0] == 130
