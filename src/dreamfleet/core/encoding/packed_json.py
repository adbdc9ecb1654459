"""JSON as an array of bytes, for what goes into array dictionaries and is not numbers."""

from __future__ import annotations

import json
from typing import Any

import numpy as np


def pack_json(value: Any, *, compact: bool = False) -> np.ndarray:
    return np.frombuffer(json.dumps(value, separators=(",", ":") if compact else None).encode(), np.uint8)


def unpack_json(array: np.ndarray) -> Any:
    return json.loads(array.tobytes())
