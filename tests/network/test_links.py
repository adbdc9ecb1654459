"""A fleet over network namespaces: workers elsewhere lose their connection in every way, and are back when it is."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cables import hold
from namespaces import LOST, Network, Quality, why_unavailable
from network_fleet import Elsewhere, NetworkFleet
from support.addresses import expect_ipv6
from support.fleet_probe import wait_until

pytestmark = pytest.mark.skipif(why_unavailable() is not None, reason=f"no network namespaces: {why_unavailable()}")

BACK_WITHIN_S = 15.0
GOES_ON_WITHIN_S = 30.0


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NetworkFleet]:
    with Network() as network:
        joined = NetworkFleet(network, tmp_path_factory.mktemp("network"))
        yield joined
        code = joined.end()
        assert code == 130, joined.fleet.last_words()
        assert [worker.process.returncode for worker in joined.workers] == [0, 0]


@pytest.fixture
def worker(fleet: NetworkFleet) -> Iterator[Elsewhere]:
    """One that has a fault in the test; the other one has none."""
    yield fleet.workers[0]
    fleet.network.heal()


def expect_the_others_go_on(fleet: NetworkFleet) -> None:
    fleet.fleet.await_running(time.time(), set(), GOES_ON_WITHIN_S)


def test_a_cut_link_a_host_that_vanishes_and_a_killed_agent_cost_no_worker_its_place(
    fleet: NetworkFleet, worker: Elsewhere
) -> None:
    """One test, so that a suite in several processes makes one fleet."""
    worker.host.cut()
    hold(3.0)
    worker.host.heal()
    fleet.await_back(time.time(), BACK_WITHIN_S)

    fleet.vanish(worker)
    expect_the_others_go_on(fleet)
    fleet.come_back(worker)
    fleet.await_back(time.time(), GOES_ON_WITHIN_S)

    agent = fleet.fleet.pids()["agent"]
    os.kill(agent, signal.SIGKILL)
    fleet.await_back(time.time(), GOES_ON_WITHIN_S, gone={agent})


@pytest.mark.slow
@pytest.mark.parametrize("direction", ["from the worker", "to the worker", "both"])
def test_a_link_that_is_half_open_longer_than_a_peer_may_be_silent(
    fleet: NetworkFleet, worker: Elsewhere, direction: str
) -> None:
    before = len(worker.events("disconnect"))
    if direction != "to the worker":
        worker.host.sends = LOST
    if direction != "from the worker":
        worker.host.receives = LOST
    wait_until(lambda: len(worker.events("disconnect")) > before, 12.0, "a worker that notices")
    expect_the_others_go_on(fleet)
    worker.host.heal()
    fleet.await_back(time.time(), BACK_WITHIN_S)


@pytest.mark.slow
def test_a_link_that_is_cut_and_healed_again_and_again(fleet: NetworkFleet, worker: Elsewhere) -> None:
    for number in range(8):
        worker.host.cut()
        hold(0.3 + 0.2 * number)
        worker.host.heal()
        hold(0.5)
    fleet.await_back(time.time(), BACK_WITHIN_S)


@pytest.mark.slow
@pytest.mark.parametrize(
    "quality",
    [Quality(loss=0.1), Quality(delay_s=0.1), Quality(loss=0.05, delay_s=0.05)],
    ids=["lossy", "slow", "both"],
)
def test_a_link_that_is_lossy_or_slow_costs_time_only(fleet: NetworkFleet, worker: Elsewhere, quality: Quality) -> None:
    before = len(worker.events("disconnect"))
    worker.host.sends = worker.host.receives = quality
    for _ in range(3):
        fleet.await_back(time.time(), GOES_ON_WITHIN_S)
    assert len(worker.events("disconnect")) == before
    worker.host.heal()
    fleet.await_back(time.time(), BACK_WITHIN_S)


@pytest.mark.slow
def test_a_fleet_that_is_cut_off_from_all_workers(fleet: NetworkFleet) -> None:
    fleet.server.cut()
    hold(10.0)
    fleet.network.heal()
    fleet.await_back(time.time(), BACK_WITHIN_S)


@pytest.mark.slow
def test_a_fleet_over_ipv6(tmp_path: Path) -> None:
    expect_ipv6()
    with Network() as network:
        fleet = NetworkFleet(network, tmp_path, ipv6=True)
        fleet.workers[0].host.cut()
        hold(3.0)
        network.heal()
        fleet.await_back(time.time(), BACK_WITHIN_S)
        assert fleet.end() == 130
