"""Run all probes concurrently, each with a deadline. A probe that fails or hangs is reported as a finding."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence

from dreamfleet.commands.doctor import devices, machine, rendering, sockets, software
from dreamfleet.commands.doctor.findings import NOTE, Finding

Probe = Callable[[], Sequence[Finding]]

PROBES: dict[str, Probe] = {
    "Python": software.python,
    "JAX": devices.jax,
    "GPU": devices.gpu,
    "cores": machine.cores,
    "memory": machine.memory,
    "disk": machine.disk,
    "compiled": machine.compiled,
    "shared memory": machine.shared_memory,
    "open files": machine.open_files,
    "sockets": sockets.sockets,
    "rendering": rendering.rendering,
    "video": rendering.video,
    "suites": software.suites,
}
DEADLINE_S = devices.JAX_DEADLINE_S + 1.0  # the longest deadline that a probe has of its own


def examine(probes: Mapping[str, Probe] = PROBES, deadline_s: float = DEADLINE_S) -> list[Finding]:
    """The findings in the order of the probes."""
    found: dict[str, Sequence[Finding]] = {}

    def run(item: str, probe: Probe) -> None:
        try:
            found[item] = probe()
        except Exception as error:  # whatever a probe of an unknown machine may raise
            reason = f"could not be looked at: {type(error).__name__}: {error}"
            found[item] = [Finding(item, NOTE, reason, "please report this together with your system's name")]

    threads = [
        threading.Thread(target=run, args=(item, probe), name=f"doctor-{item}", daemon=True)
        for item, probe in probes.items()
    ]
    ends = time.monotonic() + deadline_s
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, ends - time.monotonic()))
    return [finding for item in probes for finding in found.get(item) or [_hangs(item, deadline_s)]]


def _hangs(item: str, deadline_s: float) -> Finding:
    return Finding(item, NOTE, f"no answer within {deadline_s:g} s", "look for a network disk or a driver that hangs")
