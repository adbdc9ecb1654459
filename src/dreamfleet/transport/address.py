"""Addresses of servers: parsing, `{auto}` places, and which of a server's addresses this machine should use."""

from __future__ import annotations

import ipaddress
import itertools
import os
import re
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from dreamfleet.core.errors import AddressError

AUTO = "{auto}"
IPC_PATH_LIMIT = 107  # sun_path of a Unix socket, less its terminating zero
_HOST = re.compile(r"[A-Za-z0-9._-]+|\*|\[[0-9A-Fa-f:.]+\]")
_unique = itertools.count()


@dataclass(frozen=True)
class Address:
    """One parsed address; `str()` gives it in the form ZeroMQ takes."""

    scheme: str  # "ipc", "tcp" or "inproc"
    place: str  # a path, "host:port" or a name

    def __str__(self) -> str:
        return f"{self.scheme}://{self.place}"

    @property
    def is_local(self) -> bool:
        return self.scheme != "tcp"

    @property
    def is_ipv6(self) -> bool:
        """Whether the host is an IPv6 address; a host name and `*` stand for IPv4 addresses."""
        return self.scheme == "tcp" and self.place.startswith("[")

    @property
    def host(self) -> str:
        """Of a tcp address, without the brackets of IPv6."""
        return self.place.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        """Of a tcp address."""
        return int(self.place.rpartition(":")[2])

    @property
    def path(self) -> Path:
        """The socket file of an ipc address."""
        return Path(self.place)


def parse_address(text: str) -> Address:
    """Accepts "ipc://path", "tcp://host:port", "inproc://name" and the bare "host:port", which means tcp."""
    scheme, separator, place = text.strip().rpartition("://")
    scheme = scheme if separator else "tcp"
    if scheme == "tcp":
        _check_tcp(text, place)
        place = place.replace("localhost:", "127.0.0.1:") if place.startswith("localhost:") else place
    elif scheme == "ipc":
        _check_ipc(text, place)
    elif scheme != "inproc" or not place:
        raise AddressError(
            f"address {text!r} is malformed: write ipc://PATH, tcp://HOST:PORT, inproc://NAME or HOST:PORT"
        )
    return Address(scheme, place)


def is_local(address: str) -> bool:
    """Whether the address never leaves this machine, so that it needs no keys."""
    return parse_address(address).is_local


def split_addresses(addresses: str | Sequence[str]) -> list[str]:
    """The addresses of one server, written as a comma-separated text or as a list."""
    texts = addresses.split(",") if isinstance(addresses, str) else addresses
    found = [text.strip() for text in texts if text.strip()]
    if not found:
        raise AddressError(f"no address in {addresses!r}: give one such as tcp://127.0.0.1:{AUTO}")
    return found


def resolve_auto(address: str, socket_dir: str | Path, name: str) -> str:
    """Replaces `{auto}`: a socket file in `socket_dir`, a free port, or a name nobody else in this process has.

    `address` may hold several addresses, separated by commas. A port is free at the time of the call; binding soon
    keeps it.
    """
    return resolve_all({name: address}, socket_dir)[name]


def resolve_all(addresses: Mapping[str, str], socket_dir: str | Path, kept: ExitStack | None = None) -> dict[str, str]:
    """`resolve_auto` for several servers, given by name: no two of them get the same port.

    With `kept`, nobody is given one of these ports before it is closed, whether the servers are there or not; they bind
    them all the same. Only Linux can do that.
    """
    with ExitStack() as probes:
        resolved = {
            name: ",".join(_resolve_one(one, Path(socket_dir), name, probes) for one in split_addresses(address))
            for name, address in addresses.items()
        }
        if kept is not None and sys.platform == "linux":
            kept.enter_context(probes.pop_all())
        return resolved


def choose_address(addresses: str | Sequence[str]) -> Address:
    """Picks the address to connect to among those of one server.

    The first one wins, except that an ipc address is passed over when its folder is not on this machine: the server
    then runs elsewhere and a later tcp address reaches it.
    """
    parsed = [parse_address(text) for text in split_addresses(addresses)]
    for address in parsed:
        if address.scheme != "ipc" or address.path.parent.is_dir() or len(parsed) == 1:
            return address
    raise AddressError(f"none of {', '.join(map(str, parsed))} can be reached from this machine: add a tcp address")


def _resolve_one(address: str, socket_dir: Path, name: str, probes: ExitStack) -> str:
    if AUTO not in address:
        return str(parse_address(address))
    scheme = address.partition("://")[0] if "://" in address else "tcp"
    if scheme == "ipc":
        fill = str(socket_dir / name)
    elif scheme == "inproc":
        fill = f"{name}-{os.getpid()}-{next(_unique)}"
    else:
        ipv6 = address.rpartition("://")[2].startswith("[")
        fill = str(_free_port(probes, ipv6))
    return str(parse_address(address.replace(AUTO, fill)))


def _free_port(probes: ExitStack, ipv6: bool) -> int:
    """A port that stays taken, and so is not found twice, until `probes` is closed."""
    try:
        probe = probes.enter_context(make_probe(ipv6, shared=sys.platform == "linux"))
        probe.bind(("", 0))
    except OSError as error:
        raise AddressError(
            f"no free port of IPv{6 if ipv6 else 4} is found on this machine: {error.strerror}"
        ) from None
    port: int = probe.getsockname()[1]
    return port


def make_probe(ipv6: bool, shared: bool) -> socket.socket:
    """A socket that finds out whether a port is free; if it is `shared`, servers may bind that port as well."""
    probe = socket.socket(socket.AF_INET6 if ipv6 else socket.AF_INET)
    if shared:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if ipv6:  # as ZeroMQ has it: a server of [::] takes the port of IPv4 too
        probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    return probe


def _check_tcp(text: str, place: str) -> None:
    host, separator, port = place.rpartition(":")
    if not separator or not _HOST.fullmatch(host) or (host.startswith("[") and not _is_ipv6(host[1:-1])):
        raise AddressError(
            f"address {text!r} has no valid host: write tcp://HOST:PORT, for example tcp://127.0.0.1:5555 "
            "or tcp://[::1]:5555"
        )
    if port == AUTO:
        raise AddressError(f"address {text!r} still holds {AUTO}: it must be resolved before use")
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise AddressError(f"address {text!r} has no valid port: give a number from 1 to 65535")


def _is_ipv6(host: str) -> bool:
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        return False
    return True


def _check_ipc(text: str, place: str) -> None:
    if not place or place.endswith("/") or AUTO in place or "\0" in place:
        raise AddressError(f"address {text!r} names no socket file: write ipc:///path/of/the/socket")
    if len(os.fsencode(place)) > IPC_PATH_LIMIT:
        raise AddressError(
            f"address {text!r} is longer than {IPC_PATH_LIMIT} bytes: put the socket in a shorter folder"
        )
