"""Several machines on one: network namespaces and a switch whose cables can be cut, lossy or slow, in each direction.

    with Network() as network:
        server, worker = network.add(), network.add()
        process = subprocess.Popen(server.command("python3", "-m", "http.server"))
        worker.cut()   # like a pulled cable: no packet passes and no connection is closed
        worker.heal()

The switch is a thread of this process. It carries the Ethernet frames between one network card (TAP) of each namespace,
so nothing but Linux, `nsenter` and /dev/net/tun is needed. Root has plain namespaces, anybody else has them in user
namespaces. A namespace belongs to a process that ends with this one, and kills whatever runs there: nothing is left
behind, also after SIGKILL.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import heapq
import itertools
import os
import random
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

NEW_NETWORK, NEW_USER = 0x40000000, 0x10000000  # CLONE_NEWNET, CLONE_NEWUSER
TUN_SET_INTERFACE = 0x400454CA  # TUNSETIFF
TAP_WITHOUT_HEADER = 0x0002 | 0x1000  # IFF_TAP | IFF_NO_PI
GET_FLAGS, SET_FLAGS, SET_ADDRESS, SET_NETMASK, SET_HARDWARE, GET_INDEX = 0x8913, 0x8914, 0x8916, 0x891C, 0x8924, 0x8933
UP = 0x1
ETHERNET = 1
CARD = b"eth0"
FRAMES_AT_ONCE = 64
ENDS_WITHIN_S = 10.0
LOOK_EVERY_S = 0.02  # for hosts that came or went


class Unavailable(Exception):
    """Namespaces cannot be made here; says why."""


@dataclass(frozen=True)
class Quality:
    """One direction of a cable: the share of packets that is lost, and how long the others take."""

    loss: float = 0.0
    delay_s: float = 0.0


GOOD, LOST = Quality(), Quality(loss=1.0)


class Host:
    """A namespace with one network card, held by a process of its own."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.address, self.address6 = f"10.77.0.{number}", f"fd77::{number}"
        self.sends = self.receives = GOOD
        self._control, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, __file__, str(theirs.fileno()), str(number)]
            silent = subprocess.DEVNULL
            # A session of its own: Ctrl-C in a terminal must not take the namespace away before its processes.
            self._holder = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=silent, start_new_session=True)
        told, fds, _, _ = socket.recv_fds(self._control, 1024, 1)
        if not fds:
            self._control.close()
            self._holder.wait(ENDS_WITHIN_S)
            raise Unavailable(told.decode(errors="replace") or "the process that makes a namespace ended")
        self.card = fds[0]
        os.set_blocking(self.card, False)
        as_user = ["--user", "--preserve-credentials"] if told == b"user" else []
        self._enter = ["nsenter", "--target", str(self._holder.pid), *as_user, "--net", "--"]

    def command(self, *words: str) -> list[str]:
        """Runs there; the process has the id of the one that is started."""
        return [*self._enter, *words]

    def cut(self) -> None:
        self.sends = self.receives = LOST

    def heal(self) -> None:
        self.sends = self.receives = GOOD

    def close(self) -> None:
        """Cuts the cable and kills whatever runs there: the others see a machine that has lost its power."""
        self.cut()
        self._control.close()
        self._holder.wait(ENDS_WITHIN_S)


class Network:
    """The switch, and the hosts that are joined to it; all are gone when the block ends."""

    def __init__(self, seed: int = 0) -> None:
        if reason := why_unavailable():
            raise Unavailable(reason)
        self.hosts: dict[int, Host] = {}
        self._random = random.Random(seed)
        self._lock = threading.Lock()  # guards the cards: none is closed while the switch uses it
        self._late: list[tuple[float, int, int, bytes]] = []  # when due, a number that keeps the order, host, frame
        self._order = itertools.count()
        self._ended = False
        self._thread = threading.Thread(target=self._switch, name="switch", daemon=True)
        self._thread.start()

    def __enter__(self) -> Network:
        return self

    def __exit__(self, *error: object) -> None:
        with contextlib.ExitStack() as every:
            for host in list(self.hosts.values()):
                every.callback(self.remove, host)
        self._ended = True
        self._thread.join(ENDS_WITHIN_S)

    def add(self, number: int | None = None) -> Host:
        """Another host, or one that was removed: it has the addresses that go with its number."""
        number = number or max(self.hosts, default=0) + 1
        host = Host(number)
        with self._lock:
            self.hosts[number] = host
        return host

    def remove(self, host: Host) -> None:
        host.close()
        with self._lock:
            del self.hosts[host.number]
            os.close(host.card)

    def heal(self) -> None:
        for host in self.hosts.values():
            host.heal()

    def _switch(self) -> None:
        while not self._ended:
            with self._lock:
                cards = {host.card: host for host in self.hosts.values()}
            poll = select.poll()
            for card in cards:
                poll.register(card, select.POLLIN)
            due_s = self._late[0][0] - time.monotonic() if self._late else LOOK_EVERY_S
            ready = poll.poll(1000 * min(LOOK_EVERY_S, max(0.0, due_s)))
            with self._lock:
                for card, _ in ready:  # unless its host was removed meanwhile
                    if self.hosts.get(cards[card].number) is cards[card]:
                        self._carry_from(cards[card])
                while self._late and self._late[0][0] <= time.monotonic():
                    _, _, number, frame = heapq.heappop(self._late)
                    self._deliver(number, frame)

    def _carry_from(self, host: Host) -> None:
        for _ in range(FRAMES_AT_ONCE):
            try:
                frame = os.read(host.card, 65536)
            except OSError:  # nothing more, or the namespace is gone
                return
            single = frame[:5] == hardware_address(0)[:5]
            receivers = [frame[5]] if single else [number for number in self.hosts if number != host.number]
            for number in receivers:
                if number in self.hosts:
                    self._pass(host.sends, self.hosts[number].receives, number, frame)

    def _pass(self, sends: Quality, receives: Quality, number: int, frame: bytes) -> None:
        if any(quality.loss and self._random.random() < quality.loss for quality in (sends, receives)):
            return
        delay_s = sends.delay_s + receives.delay_s
        if delay_s:
            heapq.heappush(self._late, (time.monotonic() + delay_s, next(self._order), number, frame))
        else:
            self._deliver(number, frame)

    def _deliver(self, number: int, frame: bytes) -> None:
        with contextlib.suppress(OSError, KeyError):  # its queue is full, or the host is gone: the packet is lost
            os.write(self.hosts[number].card, frame)


@cache
def why_unavailable() -> str | None:
    """What keeps this process from making namespaces, if anything does."""
    if sys.platform != "linux":
        return "network namespaces need Linux"
    if not shutil.which("nsenter"):
        return "nsenter is missing: install util-linux"
    try:
        host = Host(254)
    except Unavailable as error:
        return str(error)
    try:
        entered = subprocess.run(host.command("true"), capture_output=True, text=True, check=False)
        return entered.stderr.strip() if entered.returncode else None
    finally:
        host.close()
        os.close(host.card)


def hardware_address(number: int) -> bytes:
    return bytes([2, 0, 0, 0, 0x77, number])


def hold(control: socket.socket, number: int) -> None:
    """Makes a namespace, sends its card to the parent, and keeps it until the parent closes the connection or dies."""
    try:
        kind = _leave_namespaces()
        card = _make_card(number)
    except OSError as error:
        control.send(f"cannot make a network namespace: {error}".encode())
        return
    socket.send_fds(control, [kind], [card])
    os.close(card)  # the device lives as long as the parent's descriptor
    control.recv(1)
    _end_all()


def _end_all() -> None:
    """Kills what runs in this process's namespace, but for itself."""
    own = _namespace("self")
    while pids := [
        int(path.name)
        for path in Path("/proc").iterdir()
        if path.name.isdigit() and int(path.name) != os.getpid() and _namespace(path.name) == own
    ]:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def _namespace(process: str) -> str | None:
    try:
        return str(Path(f"/proc/{process}/ns/net").readlink())
    except OSError:
        return None


def _leave_namespaces() -> bytes:
    """Root needs no user namespace; anybody else has the rights for a network in one."""
    if not _unshare(NEW_NETWORK):
        return b"root"
    user, group = os.geteuid(), os.getegid()
    if failed := _unshare(NEW_USER | NEW_NETWORK):
        raise OSError(failed, os.strerror(failed))
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    return b"user"


def _unshare(flags: int) -> int:
    return ctypes.get_errno() or errno.EPERM if ctypes.CDLL(None, use_errno=True).unshare(flags) else 0


def _make_card(number: int) -> int:
    card = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
    fcntl.ioctl(card, TUN_SET_INTERFACE, struct.pack("16sH22x", CARD, TAP_WITHOUT_HEADER))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as ipv4:
        _configure(ipv4, SET_HARDWARE, CARD, struct.pack("H6s16x", ETHERNET, hardware_address(number)))
        _configure(ipv4, SET_ADDRESS, CARD, _socket_address(f"10.77.0.{number}"))
        _configure(ipv4, SET_NETMASK, CARD, _socket_address("255.255.255.0"))
        with contextlib.suppress(OSError):  # else the IPv6 address can be used only after a second
            Path("/proc/sys/net/ipv6/conf/eth0/accept_dad").write_text("0")
        for name in (b"lo", CARD):
            (flags,) = struct.unpack("16xH22x", fcntl.ioctl(ipv4, GET_FLAGS, struct.pack("16s24x", name)))
            _configure(ipv4, SET_FLAGS, name, struct.pack("H22x", flags | UP))
        (index,) = struct.unpack("16xi20x", fcntl.ioctl(ipv4, GET_INDEX, struct.pack("16s24x", CARD)))
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as ipv6:  # where there is IPv6
        address = socket.inet_pton(socket.AF_INET6, f"fd77::{number}")
        fcntl.ioctl(ipv6, SET_ADDRESS, struct.pack("16sIi", address, 64, index))
    return card


def _configure(control: socket.socket, request: int, name: bytes, value: bytes) -> None:
    fcntl.ioctl(control, request, struct.pack("16s24s", name, value))


def _socket_address(address: str) -> bytes:
    return struct.pack("HH4s16x", socket.AF_INET, 0, socket.inet_aton(address))


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as made:
        hold(made, int(sys.argv[2]))
