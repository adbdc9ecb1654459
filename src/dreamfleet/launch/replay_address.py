"""Addresses of a remote replay: where other roles connect, and what the replay binds."""

from __future__ import annotations

import contextlib
import ipaddress
import socket

from dreamfleet.core.errors import AddressError
from dreamfleet.transport.address import AUTO, is_local, parse_address, split_addresses

EVERY_INTERFACE = ("*", "0.0.0.0", "::")


def remote_only(addresses: str) -> str:
    """Return replay's addresses that other machines can reach. `{auto}` is only possible for this machine."""
    remote = [text for text in split_addresses(addresses) if not is_local(text.replace(AUTO, "1"))]
    if not remote:
        raise AddressError("run.remote_replay needs a tcp address: set run.replay_addr=tcp://HOST:PORT")
    for text in remote:
        if AUTO in text and not is_of_this_machine(host := host_of(text)):
            raise AddressError(
                f"run.replay_addr: cannot choose a free port of {host}: set one, such as tcp://{host}:5555"
            )
    return ",".join(remote)


def unheard_replay(replay: str, logger: str) -> str:
    """Return a warning if a remote replay cannot reach the logger, or an empty text."""
    hosts = [host_of(text) for text in split_addresses(replay)]
    open_to_others = [text for text in split_addresses(logger) if not is_local(text) and not _is_loopback(text)]
    if open_to_others or all(map(is_of_this_machine, hosts)):
        return ""
    return (
        f"replay on {hosts[0]} cannot reach the logger, so its metrics will be missing in metrics.jsonl: "
        "set run.logger_addr='ipc://{auto},tcp://0.0.0.0:{auto}'"
    )


def addresses_to_bind(addresses: list[str]) -> str:
    """Return the addresses to bind so that clients can connect to `addresses`.

    If the host is a name, or not the address of a local interface (for example, that of a router), the port is bound on
    all interfaces.
    """
    bound = [_address_to_bind(text) for text in addresses]
    return ",".join(dict.fromkeys(bound))


def is_of_this_machine(host: str) -> bool:
    if host in ("localhost", *EVERY_INTERFACE):
        return True
    with contextlib.suppress(ValueError):
        return _has_interface(host)
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return all(_has_interface(str(place[0])) for *_, place in found)


def host_of(address: str) -> str:
    """Return the host of an address. `localhost` is resolved to its number."""
    return parse_address(address.replace(AUTO, "1")).place.rpartition(":")[0].strip("[]")


def _address_to_bind(address: str) -> str:
    host, port = host_of(address), parse_address(address).place.rpartition(":")[2]
    with contextlib.suppress(ValueError):
        if host in EVERY_INTERFACE or _has_interface(host):
            return address
    return f"tcp://[::]:{port}" if ":" in host else f"tcp://0.0.0.0:{port}"


def _is_loopback(address: str) -> bool:
    host = host_of(address)
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    return False


def _has_interface(number: str) -> bool:
    """Return whether an interface has the address. Raise a ValueError for a name."""
    family = socket.AF_INET6 if ipaddress.ip_address(number.partition("%")[0]).version == 6 else socket.AF_INET
    with socket.socket(family) as probe:
        try:
            probe.bind((number, 0))
        except OSError:
            return False
    return True
