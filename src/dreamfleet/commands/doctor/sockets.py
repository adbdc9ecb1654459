"""Whether processes of this machine can talk to each other the way the roles of a fleet do."""

from __future__ import annotations

import contextlib

import zmq

from dreamfleet.commands.doctor.findings import OK, PROBLEM, Finding
from dreamfleet.core.errors import RunFolderError
from dreamfleet.runs.socket_folder import SocketFolder

DEADLINE_S = 3.0


def sockets() -> list[Finding]:
    try:
        folder = SocketFolder()
    except RunFolderError as error:
        return [Finding("sockets", PROBLEM, str(error), "set XDG_RUNTIME_DIR to a short path that you can write")]
    with folder:
        return [*_tried("ipc", f"ipc://{folder.path}/doctor"), *_tried("loopback", "tcp://127.0.0.1:*")] or [
            Finding("sockets", OK, f"ipc in {folder.path.parent} and loopback work")
        ]


def _tried(kind: str, address: str) -> list[Finding]:
    fix = {
        "ipc": "set XDG_RUNTIME_DIR to a folder on a local disk",
        "loopback": "allow connections to 127.0.0.1: look at the firewall and at `ip link show lo`",
    }[kind]
    reason = exchange(address)
    return [Finding("sockets", PROBLEM, f"{kind} does not work: {reason}", fix)] if reason else []


def exchange(address: str, deadline_s: float = DEADLINE_S) -> str | None:
    """Sends a message there and back; what kept it from arriving."""
    timeout_ms = int(1e3 * deadline_s)
    with contextlib.ExitStack() as stack:
        context = stack.enter_context(zmq.Context())
        server, client = stack.enter_context(context.socket(zmq.PAIR)), stack.enter_context(context.socket(zmq.PAIR))
        for socket in (server, client):
            socket.linger = 0
            socket.rcvtimeo = socket.sndtimeo = timeout_ms
        try:
            server.bind(address)
            client.connect(server.get_string(zmq.LAST_ENDPOINT))
            client.send(b"there")
            server.send(server.recv() + b" and back")
            return None if client.recv() == b"there and back" else "a message came back changed"
        except zmq.Again:
            return f"no message arrives within {deadline_s:g} s"
        except zmq.ZMQError as error:
            return str(error.strerror)
