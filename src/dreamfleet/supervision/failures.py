"""Why a run fails, in words for the terminal, and what the supervisor has to know to act on it."""

from __future__ import annotations

import traceback
from dataclasses import dataclass

from dreamfleet.core.errors import DreamfleetError, EnvFailed

OUT_OF_MEMORY = ("RESOURCE_EXHAUSTED", "CUDA_ERROR_OUT_OF_MEMORY", "out of memory")
LOWER = (
    "lower batch_size or batch_length, set jax.accumulate=2 or more, choose a smaller agent.size for a new run, or end "
    "what else uses the GPU (nvidia-smi shows it); XLA_PYTHON_CLIENT_MEM_FRACTION says how much of it JAX may take"
)


@dataclass(frozen=True)
class Failure:
    """Why a run fails: one line for everybody, and details that are printed above it."""

    role: str
    line: str
    details: str = ""
    bad_input: bool = False
    symptom: bool = False  # likely the consequence of another role's failure
    passing: bool = True  # may be gone with another try
    from_outside: bool = False  # somebody ended the role: nothing that would come back by itself

    @property
    def text(self) -> str:
        details = self.details.rstrip("\n")
        return f"{details}\ndreamfleet: {self.line}" if details else f"dreamfleet: {self.line}"


def details(error: DreamfleetError) -> str:
    """What to print above the message: the traceback of an environment that failed, here or in another process."""
    lines = [f"{note}\n" for note in getattr(error, "__notes__", ())]
    if isinstance(error, EnvFailed) and error.__cause__:
        lines += traceback.format_exception(error.__cause__)
    return "".join(lines)


def explain(message: str) -> str:
    """The message in one line, with what to do about it where that is known and it does not say so itself."""
    line = " ".join(message.split())
    if any(word in line for word in OUT_OF_MEMORY):
        return f"{line}: {LOWER}"
    return line
