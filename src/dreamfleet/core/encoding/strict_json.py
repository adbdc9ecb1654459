"""Strict JSON of values of any kind, for records and pipes that other programs read."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any


def encode(report: Mapping[str, Any]) -> bytes:
    """One line of strict JSON; what JSON has no word for becomes null (NaN) or text."""
    try:
        text = json.dumps(report, default=_plain, skipkeys=True, allow_nan=False)
    except ValueError:
        text = json.dumps(_finite(report), default=_plain, skipkeys=True)
    return text.encode() + b"\n"


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if hasattr(value, "tolist"):  # NumPy scalars and arrays, without importing NumPy for them
        return _finite(value.tolist())
    return str(value)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    if hasattr(value, "tolist"):
        return _finite(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value
