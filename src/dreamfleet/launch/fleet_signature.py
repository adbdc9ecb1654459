"""The signature of `fleet.json`: a role on another machine uses nothing of a file that its run has not written.

It is an HMAC, under a secret that the run and the role both have: that of the pair which the role shows to the run.
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
READERS = (WORKER, "replay")  # by the names of their keys
_SIGNATURES = "signatures"


def sign(fleet: Mapping[str, Any], keys: Path) -> dict[str, Any]:
    """Adds a signature for each key that a role elsewhere may have."""
    return {**fleet, _SIGNATURES: {key: _signature(fleet, keys, key) for key in READERS}}


def read_signed(path: Path, key: str) -> dict[str, Any]:
    """Reads a fleet file that is signed for the pair `key` in the folder `keys/` beside it, or raises BadInput."""
    try:
        data = read_json(path, MAX_BYTES)
    except (OSError, ValueError) as error:
        raise BadInput(f"cannot read the fleet file {path}: {error}") from error
    found = data.get("format") if isinstance(data, dict) else None
    if found == UNSIGNED_FORMAT:
        raise BadInput(
            f"{path} was written by an earlier version, which did not sign it: continue the run with this version, "
            f"then copy fleet.json and keys/{key}.json again"
        )
    if found != FLEET_FORMAT:
        raise BadInput(f"{path} is a fleet file of format {found}, this version reads {FLEET_FORMAT}")
    signatures = data.pop(_SIGNATURES, None)
    signature = signatures.get(key) if isinstance(signatures, dict) else None
    expected = _signature(data, path.absolute().parent / "keys", key)
    if not isinstance(signature, str) or not hmac.compare_digest(signature.encode(), expected.encode()):
        raise SecurityError(
            f"{path} was changed, or belongs to another run than keys/{key}.json: copy both again from the run's folder"
        )
    return dict(data)


def _signature(fleet: Mapping[str, Any], keys: Path, key: str) -> str:
    plain = json.loads(json.dumps(fleet))  # as a reader gets it: a tuple is a list by then
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    return hmac.new(derive_secret(keys, key, "fleet.json"), text.encode(), "sha256").hexdigest()
