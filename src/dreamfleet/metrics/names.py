"""Names of metrics that the package writes and reads again."""

from __future__ import annotations


def device_metric(what: str) -> str:
    """Return the name for seconds of the training device, which `HasDeviceTimes.device_seconds` calls `what`."""
    return f"device/{what}_s"


DEVICE_BUSY_S, DEVICE_IDLE_S = device_metric("busy"), device_metric("idle")
