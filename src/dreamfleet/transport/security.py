"""CURVE keys of a run, what each of them may do, and how sockets use them. Clients are admitted in `authenticator`.

`<run>/keys/` has a file for each pair. Every server has its own: who holds one cannot pose as another server. Env
workers share `worker.json`, and the run itself calls its servers with `owner.json`. A role on another machine needs the
file of its own pair alone; the public keys of others are no secret and stand in `fleet.json`.
"""

from __future__ import annotations

import hmac
import json
import os
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import zmq

from dreamfleet.core.errors import SecurityError

OWNER, WORKER = "owner", "worker"
Methods = frozenset[str] | None  # None: all there are
# The keys that a server admits, each with the methods that it may call.
ADMITTED: dict[str, dict[str, Methods]] = {
    "actor": {OWNER: None, WORKER: frozenset({"join", "act", "act_eval", "add"})},
    "replay": {OWNER: None},
    "logger": {OWNER: None, "replay": frozenset({"add"})},
    "clock": {OWNER: None},
}
PAIRS = (*ADMITTED, OWNER, WORKER)
_KEY_CHARS = 40  # Z85 text of 32 bytes
_OLD_CLIENT = "client.json"


@dataclass(frozen=True)
class ServerSecurity:
    """What a server needs: its own pair, and the client keys it admits with the methods that each may call."""

    public: str
    secret: str = field(repr=False)
    allowed: Mapping[str, Methods]


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


def create_keys(folder: str | Path) -> dict[str, str]:
    """Writes a file for each of `PAIRS`; those that exist are kept. Returns the public keys by name."""
    folder = Path(folder)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
        for name in PAIRS:
            _create_pair(folder / f"{name}.json")
    except OSError as error:
        raise SecurityError(f"cannot write keys to {folder}: {error.strerror}") from error
    return {name: _load_pair(folder, name)["public"] for name in PAIRS}


def load_server(folder: str | Path, server: str, public_keys: Mapping[str, str] | None = None) -> ServerSecurity:
    """Reads the pair of this server. Public keys that are not given are read from the folder too."""
    own = _load_pair(folder, server)
    allowed = {_public_key(folder, name, public_keys): methods for name, methods in ADMITTED[server].items()}
    return ServerSecurity(own["public"], own["secret"], allowed)


def load_client(
    folder: str | Path, server: str, key: str = OWNER, public_keys: Mapping[str, str] | None = None
) -> ClientSecurity:
    """Reads the pair `key`, to call this server with. A public key that is not given is read from the folder too."""
    own = _load_pair(folder, key)
    return ClientSecurity(_public_key(folder, server, public_keys), own["public"], own["secret"])


def derive_secret(folder: str | Path, key: str, purpose: str) -> bytes:
    """A secret that everybody who has this pair can compute, for another use than connections."""
    return hmac.digest(_load_pair(folder, key)["secret"].encode(), purpose.encode(), "sha256")


def _create_pair(path: Path) -> None:
    """The file gets its name when it is whole and on disk: a key cut short would have to be replaced everywhere."""
    if path.exists():
        return
    public, secret = zmq.curve_keypair()
    descriptor, name = tempfile.mkstemp(prefix=f".{path.stem}-", dir=path.parent)  # readable by its owner alone
    aside = Path(name)
    try:
        with os.fdopen(descriptor, "w") as file:
            json.dump({"public": public.decode(), "secret": secret.decode()}, file)
            file.flush()
            os.fsync(descriptor)
        try:
            path.hardlink_to(aside)
        except FileExistsError:  # another process was faster
            pass
        except OSError:  # a file system without hard links
            aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


def _public_key(folder: str | Path, name: str, public_keys: Mapping[str, str] | None) -> str:
    if public_keys:
        if name not in public_keys:
            raise SecurityError(f"the public key of {name!r} is not among args.public_keys: pass all of create_keys")
        return public_keys[name]
    return _load_pair(folder, name)["public"]


def _load_pair(folder: str | Path, name: str) -> dict[str, str]:
    path = Path(folder) / f"{name}.json"
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        text = path.read_text()
    except OSError as error:
        old = (
            f" ({_OLD_CLIENT}, of an earlier version, is not admitted)" if (path.parent / _OLD_CLIENT).exists() else ""
        )
        raise SecurityError(
            f"cannot read key {path}: {error.strerror}: copy keys/{path.name} of the run folder there{old}"
        ) from error
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
