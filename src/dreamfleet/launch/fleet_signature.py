"""The signature of `fleet.json`, with which remote roles verify that the file was written by its run.

It is an HMAC with a secret shared by the run and the role, derived from the role's key pair.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dreamfleet.core.errors import BadInput, SecurityError
from dreamfleet.core.files.bounded import read_json
from dreamfleet.transport.security import WORKER, derive_secret

FLEET_FORMAT = 2
UNSIGNED_FORMAT = 1
MAX_BYTES = 1 << 20
READERS = (WORKER, "replay")  # names of keys
_SIGNATURES = "signatures"


def sign(fleet: Mapping[str, Any], keys: Path) -> dict[str, Any]:
    """Add a signature for each key of a remote role."""
    return {**fleet, _SIGNATURES: {key: _signature(fleet, keys, key) for key in READERS}}


def read_signed(path: Path, key: str) -> dict[str, Any]:
    """Read a fleet file and verify its signature for `key` in the folder `keys/` next to it."""
    try:
        data = read_json(path, MAX_BYTES)
    except (OSError, ValueError) as error:
        raise BadInput(f"cannot read the fleet file {path}: {error}") from error
    found = data.get("format") if isinstance(data, dict) else None
    if found == UNSIGNED_FORMAT:
        raise BadInput(
            f"{path} was written by an earlier version and is not signed: resume the run with this version, "
            f"then copy fleet.json and keys/{key}.json again"
        )
    if found != FLEET_FORMAT:
        raise BadInput(
            f"{path} has the fleet file format {found}, this version reads {FLEET_FORMAT}: use "
            "the same version as the run"
        )
    signatures = data.pop(_SIGNATURES, None)
    signature = signatures.get(key) if isinstance(signatures, dict) else None
    expected = _signature(data, path.absolute().parent / "keys", key)
    if not isinstance(signature, str) or not hmac.compare_digest(signature.encode(), expected.encode()):
        raise SecurityError(
            f"{path} was modified or does not belong to keys/{key}.json: copy both again from the run folder"
        )
    return dict(data)


def _signature(fleet: Mapping[str, Any], keys: Path, key: str) -> str:
    plain = json.loads(json.dumps(fleet))  # as read back from JSON, with tuples as lists
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    return hmac.new(derive_secret(keys, key, "fleet.json"), text.encode(), "sha256").hexdigest()
