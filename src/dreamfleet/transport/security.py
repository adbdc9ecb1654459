"""CURVE keys of a run and how sockets use them. Who is let in is decided in `gate`.

A run has one key pair for its servers and one for its clients, kept in `<run>/keys/`. A role on another machine needs
`client.json` and the server's public key, nothing else.
"""

from __future__ import annotations

import json
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path

import zmq

from dreamfleet.core.errors import SecurityError

_KEY_CHARS = 40  # Z85 text of 32 bytes


@dataclass(frozen=True)
class ServerSecurity:
    """What a server needs: its own pair and the client keys it admits."""

    public: str
    secret: str = field(repr=False)
    allowed: frozenset[str]


@dataclass(frozen=True)
class ClientSecurity:
    """What a client needs: the key of the server it will talk to, and its own pair."""

    server_public: str
    public: str
    secret: str = field(repr=False)

    def apply(self, socket: zmq.Socket[bytes]) -> None:
        socket.curve_serverkey = self.server_public.encode()
        socket.curve_publickey = self.public.encode()
        socket.curve_secretkey = self.secret.encode()


def create_keys(folder: str | Path) -> None:
    """Writes `server.json` and `client.json` with a fresh pair each; pairs that exist already are kept."""
    folder = Path(folder)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
        for name in ("server", "client"):
            _create_pair(folder / f"{name}.json")
    except OSError as error:
        raise SecurityError(f"cannot write keys to {folder}: {error.strerror}") from error


def load_server(folder: str | Path) -> ServerSecurity:
    server, client = _load_pair(Path(folder) / "server.json"), _load_pair(Path(folder) / "client.json")
    return ServerSecurity(server["public"], server["secret"], frozenset({client["public"]}))


def load_client(folder: str | Path, server_public: str | None = None) -> ClientSecurity:
    """Reads the client pair. `server_public` serves where `server.json` is absent: on another machine."""
    if server_public is None:
        server_public = _load_pair(Path(folder) / "server.json")["public"]
    client = _load_pair(Path(folder) / "client.json")
    return ClientSecurity(server_public, client["public"], client["secret"])


def _create_pair(path: Path) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return
    public, secret = zmq.curve_keypair()
    with os.fdopen(descriptor, "w") as file:
        json.dump({"public": public.decode(), "secret": secret.decode()}, file)


def _load_pair(path: Path) -> dict[str, str]:
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        text = path.read_text()
    except OSError as error:
        raise SecurityError(f"cannot read key {path}: {error.strerror}") from error
    if mode & 0o077:
        raise SecurityError(f"key {path} can be read by others (mode {mode:04o}): run chmod 600 {path}")
    try:
        pair = json.loads(text)
        valid = all(len(pair[part]) == _KEY_CHARS for part in ("public", "secret"))
    except (ValueError, KeyError, TypeError):
        valid = False
    if not valid:
        raise SecurityError(f"key {path} is damaged: delete it and start the run again to get a new one")
    return {"public": str(pair["public"]), "secret": str(pair["secret"])}
