from __future__ import annotations

import errno
import os
import socket
import sys
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import pytest

from dreamfleet.core.errors import AddressError
from dreamfleet.transport.address import (
    choose_address,
    is_local,
    parse_address,
    resolve_all,
    resolve_auto,
    split_addresses,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ipc:///tmp/a", "ipc:///tmp/a"),
        ("tcp://10.0.0.1:80", "tcp://10.0.0.1:80"),
        ("tcp://[::1]:80", "tcp://[::1]:80"),
        ("inproc://name", "inproc://name"),
        ("node-3:5000", "tcp://node-3:5000"),
        ("localhost:5000", "tcp://127.0.0.1:5000"),
        ("tcp://*:5000", "tcp://*:5000"),
    ],
)
def test_an_address_is_brought_into_zeromq_form(text: str, expected: str) -> None:
    assert str(parse_address(text)) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "host",
        "tcp://host",
        "tcp://host:0",
        "tcp://host:70000",
        "tcp://host:x",
        "tcp://:80",
        "tcp://a b:80",
        "ipc://",
        "ipc:///tmp/",
        "ipc:///tmp/" + "x" * 120,
        "inproc://",
        "udp://host:1",
        "http://host:80",
        "tcp://host:{auto}",
        "tcp://[:::]:80",
        "tcp://[1.2.3.4]:80",
        "tcp://::1:80",
    ],
)
def test_a_malformed_address_is_refused_with_its_text(text: str) -> None:
    with pytest.raises(AddressError, match="address"):
        parse_address(text)


def test_auto_places_are_filled_in(tmp_path: Path) -> None:
    text = "ipc://{auto}, tcp://127.0.0.1:{auto}, localhost:{auto}, inproc://{auto}"
    ipc, tcp, bare, inproc = split_addresses(resolve_auto(text, "/run/df", "actor"))
    assert ipc == "ipc:///run/df/actor"
    assert 0 < int(tcp.removeprefix("tcp://127.0.0.1:")) < 65536
    assert 0 < int(bare.removeprefix("tcp://127.0.0.1:")) < 65536
    assert inproc.startswith("inproc://actor")
    assert resolve_auto("inproc://{auto}", tmp_path, "actor") != resolve_auto("inproc://{auto}", tmp_path, "actor")


def test_a_port_that_is_kept_is_given_to_nobody_else_but_its_servers_bind_it(tmp_path: Path) -> None:
    def bind(server: bool) -> None:
        with socket.socket() as made:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, server)
            made.bind(("127.0.0.1", port))
            made.listen()

    with ExitStack() as kept:
        address = resolve_all({"actor": "tcp://127.0.0.1:{auto}"}, tmp_path, kept)["actor"]
        port = int(address.rpartition(":")[2])
        for _ in range(2):  # a server that comes back
            with pytest.raises(OSError, match="in use") if sys.platform == "linux" else nullcontext():
                bind(server=False)
            bind(server=True)
    bind(server=False)


def test_a_machine_without_ipv6_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(family: int = socket.AF_INET) -> Any:
        raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))

    monkeypatch.setattr("dreamfleet.transport.address.socket.socket", refuse)
    with pytest.raises(AddressError, match="no free port of IPv6 is found on this machine: Address family"):
        resolve_auto("tcp://[::1]:{auto}", tmp_path, "actor")


def test_an_address_without_auto_is_kept(tmp_path: Path) -> None:
    assert resolve_auto("tcp://10.1.1.1:99", tmp_path, "actor") == "tcp://10.1.1.1:99"


def test_an_empty_list_of_addresses_is_refused() -> None:
    with pytest.raises(AddressError, match="no address"):
        split_addresses(" , ")


def test_only_tcp_leaves_the_machine() -> None:
    assert [is_local(a) for a in ("ipc:///tmp/a", "inproc://a", "tcp://127.0.0.1:1", "host:1")] == [
        True,
        True,
        False,
        False,
    ]


def test_a_client_prefers_the_first_address_its_machine_has(tmp_path: Path) -> None:
    here, elsewhere, tcp = f"ipc://{tmp_path}/a", "ipc:///no/such/folder/a", "tcp://10.0.0.1:80"
    assert str(choose_address(f"{here},{tcp}")) == here
    assert str(choose_address([elsewhere, tcp])) == tcp
    assert str(choose_address(elsewhere)) == elsewhere
    with pytest.raises(AddressError, match="add a tcp address"):
        choose_address([elsewhere, elsewhere])
