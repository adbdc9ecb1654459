"""A fleet over network namespaces whose replay is elsewhere too: roles there come back, and so does the run."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from cables import hold
from namespaces import LOST, Network, why_unavailable
from network_fleet import NetworkFleet
from support.fleet_probe import events_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(why_unavailable() is not None, reason=f"no network namespaces: {why_unavailable()}"),
]

BACK_WITHIN_S = 15.0
GOES_ON_WITHIN_S = 30.0


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NetworkFleet]:
    with Network() as network:
        joined = NetworkFleet(network, tmp_path_factory.mktemp("network"), remote_replay=True)
        yield joined
        code = joined.end()
        assert code == 130, joined.fleet.last_words()
        assert joined.replay
        assert joined.replay.process.returncode == 0, joined.replay.last_words()


def test_an_agent_that_is_killed_goes_on_from_its_snapshot_with_all_roles_elsewhere(fleet: NetworkFleet) -> None:
    for _ in range(2):
        agent = fleet.fleet.pids()["agent"]
        os.kill(agent, signal.SIGKILL)
        fleet.await_back(time.time(), GOES_ON_WITHIN_S, gone={agent})
    assert len(events_of(fleet.fleet.run, "restore")) == 2


@pytest.mark.parametrize("direction", ["from replay", "to replay", "both"])
def test_a_link_to_replay_that_is_half_open_or_cut_longer_than_a_peer_may_be_silent(
    fleet: NetworkFleet, direction: str
) -> None:
    assert fleet.replay
    if direction != "to replay":
        fleet.replay.host.sends = LOST
    if direction != "from replay":
        fleet.replay.host.receives = LOST
    hold(8.0)
    fleet.network.heal()
    fleet.await_back(time.time(), BACK_WITHIN_S)


def test_a_link_to_replay_that_is_cut_for_three_seconds(fleet: NetworkFleet) -> None:
    assert fleet.replay
    fleet.replay.host.cut()
    hold(3.0)
    fleet.network.heal()
    fleet.await_back(time.time(), BACK_WITHIN_S)


def test_a_replay_whose_host_vanishes_and_returns(fleet: NetworkFleet) -> None:
    fleet.vanish_replay()
    fleet.bring_replay_back()
    fleet.await_back(time.time(), GOES_ON_WITHIN_S)


def test_a_replay_that_dies_elsewhere_is_restarted_there(fleet: NetworkFleet) -> None:
    assert fleet.replay
    killed = fleet.replay.state()["pid"]
    os.kill(killed, signal.SIGKILL)
    fleet.await_back(time.time(), GOES_ON_WITHIN_S, gone={killed})


def test_a_worker_that_dies_elsewhere_is_restarted_there(fleet: NetworkFleet) -> None:
    worker = fleet.workers[0]
    killed = worker.state()["pid"]
    os.kill(killed, signal.SIGKILL)
    fleet.await_back(time.time(), BACK_WITHIN_S, gone={killed})
