"""What is known of an address on another machine."""

from __future__ import annotations

import socket

import pytest

from dreamfleet.core.errors import AddressError
from dreamfleet.launch.replay_address import addresses_to_bind, is_of_this_machine, remote_only, unheard_replay

ELSEWHERE = "192.0.2.7"  # for documentation: nobody has it
LOCAL, OPEN = "ipc:///tmp/gone/logger,tcp://127.0.0.1:5003", "ipc:///tmp/gone/logger,tcp://0.0.0.0:5003"


@pytest.mark.parametrize(
    ("host", "own"),
    [("127.0.0.1", True), ("localhost", True), ("0.0.0.0", True), ("*", True), (ELSEWHERE, False)],
)
def test_which_hosts_are_this_machine(host: str, own: bool) -> None:
    assert is_of_this_machine(host) == own


def test_names_are_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def look_up(host: str, *_: object, **__: object) -> list[object]:
        if host == "nowhere":
            raise socket.gaierror("no such name")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.1.1" if host == "here" else ELSEWHERE, 0))]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    assert [is_of_this_machine(host) for host in ("here", "there", "nowhere")] == [True, False, False]


def test_a_port_is_chosen_for_this_machine_alone() -> None:
    assert remote_only("ipc://{auto},tcp://127.0.0.1:{auto}") == "tcp://127.0.0.1:{auto}"
    assert remote_only(f"tcp://{ELSEWHERE}:5555") == f"tcp://{ELSEWHERE}:5555"
    with pytest.raises(AddressError, match=r"set one, such as tcp://192\.0\.2\.7:5555"):
        remote_only(f"tcp://{ELSEWHERE}:{{auto}}")
    with pytest.raises(AddressError, match="remote_replay needs a tcp address"):
        remote_only("ipc://{auto}")


def test_a_role_binds_its_own_address_or_else_every_interface() -> None:
    own = ["tcp://127.0.0.1:1", "tcp://0.0.0.0:2", "tcp://*:3"]
    assert addresses_to_bind(own) == ",".join(own)
    assert addresses_to_bind([f"tcp://{ELSEWHERE}:5555", "tcp://big-memory:5555"]) == "tcp://0.0.0.0:5555"
    assert addresses_to_bind(["tcp://[2001:db8::7]:5555"]) == "tcp://[::]:5555"


def test_a_replay_elsewhere_that_cannot_reach_the_logger_is_said() -> None:
    elsewhere = f"tcp://{ELSEWHERE}:5555"
    assert "replay on 192.0.2.7 cannot reach the logger" in unheard_replay(elsewhere, LOCAL)
    assert not unheard_replay(elsewhere, OPEN)
    assert not unheard_replay("tcp://127.0.0.1:5555", LOCAL)
