"""Compiles a function before it is needed, and says what that took."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from dreamfleet.core.context import current_context


def use_cache(folder: str) -> None:
    """Keeps compiled functions on disk, so that the next run with the same sizes starts at once."""
    path = Path(folder).expanduser()
    path.mkdir(parents=True, exist_ok=True)
    jax.config.update("jax_compilation_cache_dir", str(path))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 1.0)


def compile_now(name: str, function: Callable[..., Any], *args: Any, **jit_options: Any) -> tuple[Any, float]:
    """A function that takes arguments of exactly these shapes and never compiles again, and the seconds it took."""
    begun = time.monotonic()
    compiled = jax.jit(function, **jit_options).lower(*args).compile()
    seconds = time.monotonic() - begun
    memory = compiled.memory_analysis()
    size = sum(getattr(memory, f"{part}_size_in_bytes", 0) for part in ("argument", "output", "temp"))
    size -= getattr(memory, "alias_size_in_bytes", 0)
    sys.stderr.write(f"compiled {name} in {seconds:.1f} s; it takes {size / 1e9:.2f} GB of device memory\n")
    current_context().report.event("compile", {"function": name, "seconds": round(seconds, 2), "bytes": size})
    return compiled, seconds
