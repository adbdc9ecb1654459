"""Reasons for the failure of a run, as terminal messages and as flags for the supervisor."""

from __future__ import annotations

import traceback
from dataclasses import dataclass

from dreamfleet.core.errors import DreamfleetError, EnvFailed

OUT_OF_MEMORY = ("RESOURCE_EXHAUSTED", "CUDA_ERROR_OUT_OF_MEMORY", "out of memory")
LOWER = (
    "reduce batch_size or batch_length, set jax.accumulate=2 or more, choose a smaller agent.size for a new run, or "
    "end other programs on the GPU (see nvidia-smi); XLA_PYTHON_CLIENT_MEM_FRACTION limits the memory of JAX"
)


@dataclass(frozen=True)
class Failure:
    """The reason why a run fails: one line, and details that are printed above it."""

    role: str
    line: str
    details: str = ""
    bad_input: bool = False
    symptom: bool = False  # probably a consequence of another role's failure
    passing: bool = True  # a retry may succeed
    from_outside: bool = False  # the role was killed from outside, so the failure should not repeat

    @property
    def text(self) -> str:
        details = self.details.rstrip("\n")
        return f"{details}\ndreamfleet: {self.line}" if details else f"dreamfleet: {self.line}"


def details(error: DreamfleetError) -> str:
    """Return the text to print above the message: the traceback of a failed environment in any process."""
    lines = [f"{note}\n" for note in getattr(error, "__notes__", ())]
    if isinstance(error, EnvFailed) and error.__cause__:
        lines += traceback.format_exception(error.__cause__)
    return "".join(lines)


def explain(message: str) -> str:
    """Return the message in one line, with advice for known errors."""
    line = " ".join(message.split())
    if any(word in line for word in OUT_OF_MEMORY):
        return f"{line}: {LOWER}"
    return line
