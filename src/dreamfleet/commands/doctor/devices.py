"""JAX and the devices it finds, asked in a process of its own: a broken driver may hang or crash whoever loads it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from dreamfleet.commands.doctor.findings import NOTE, OK, PROBLEM, Finding
from dreamfleet.launch.env_child import last_line

JAX_DEADLINE_S = 15.0
SMI_DEADLINE_S = 5.0
LITTLE_GPU_MB = 4000
TRY_JAX = """
import json, jax, jax.numpy as jnp
found = jax.devices()
x = jnp.ones((64, 64))
assert float((x @ x)[0, 0]) == 64
print(json.dumps({
    "version": jax.__version__, "backend": jax.default_backend(), "kinds": [device.device_kind for device in found],
}))
"""
INSTALL_CUDA = "pip install 'dreamfleet[cuda]'"


def jax(program: str = TRY_JAX, deadline_s: float = JAX_DEADLINE_S) -> list[Finding]:
    """Whether it finds a device and computes on it."""
    # Else it would take most of a GPU's memory, also from a run that is there.
    code, answer, said = run([sys.executable, "-c", program], deadline_s, {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"})
    if code is None:
        fix = "try JAX_PLATFORMS=cpu; if that works, the GPU's driver hangs: see what nvidia-smi says"
        return [
            Finding("JAX", PROBLEM, f"no answer within {deadline_s:g} s: it hangs, or this machine is very busy", fix)
        ]
    if code:
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        reason = last_line(said, how)
        if "ModuleNotFoundError" in reason:
            fix = "pip install dreamfleet"
        else:
            fix = f"train with jax.platform=cpu, or install JAX for this machine's GPU: {INSTALL_CUDA}"
        return [Finding("JAX", PROBLEM, f"does not work: {reason}", fix)]
    return [jax_finding(json.loads(last_line(answer, "{}")), smi_lines())]


def jax_finding(answer: Mapping[str, Any], gpus: Sequence[str]) -> Finding:
    kinds = answer["kinds"]
    text = f"{answer['version']} on {answer['backend']}: {len(kinds)} x {kinds[0]}"
    if answer["backend"] == "cpu" and gpus and "CUDA_VISIBLE_DEVICES" not in os.environ:
        return Finding("JAX", NOTE, f"{text}, though this machine has a GPU", INSTALL_CUDA)
    return Finding("JAX", OK, text)


def gpu() -> list[Finding]:
    return gpu_findings(smi_lines())


def gpu_findings(lines: Sequence[str]) -> list[Finding]:
    """From lines of nvidia-smi: name, all memory and free memory in MB."""
    if not lines:
        fix = "small agents learn on a CPU too: dreamfleet train cpu agent.size=tiny ..."
        return [Finding("GPU", NOTE, "no NVIDIA GPU found", fix)]
    findings = []
    for line in lines:
        name, total, free = (part.strip() for part in line.rsplit(",", 2))
        text = f"{name}: {_gb(free)} of {_gb(total)} free"
        if free.isdigit() and int(free) < LITTLE_GPU_MB:
            fix = "end what uses it (nvidia-smi shows it), or set jax.prealloc=false and a smaller agent.size"
            findings.append(Finding("GPU", NOTE, text, fix))
        else:
            findings.append(Finding("GPU", OK, text))
    return findings


def smi_lines() -> list[str]:
    """What nvidia-smi says of each GPU; nothing where there is none."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    query = [program, "--query-gpu=name,memory.total,memory.free", "--format=csv,noheader,nounits"]
    code, answer, _ = run(query, SMI_DEADLINE_S)
    return [line for line in answer.splitlines() if line.count(",") >= 2] if code == 0 else []


def run(
    command: Sequence[str], deadline_s: float, changes: Mapping[str, str] | None = None
) -> tuple[int | None, str, str]:
    """Exit code, output and errors of a command that does not outlive its deadline; no code if it had to be killed."""
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env={**os.environ, **(changes or {})},
        start_new_session=True,
    ) as child:
        try:
            answer, said = child.communicate(timeout=deadline_s)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(OSError):
                os.killpg(child.pid, signal.SIGKILL)
            return None, "", ""
    return child.returncode, answer, said


def _gb(megabytes: str) -> str:
    return f"{int(megabytes) / 1024:.1f} GiB" if megabytes.isdigit() else megabytes
