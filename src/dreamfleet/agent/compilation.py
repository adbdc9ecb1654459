"""Compiles a function before it is needed, and says what that took."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import jax

from dreamfleet.core.context import current_context
from dreamfleet.core.events import Event
from dreamfleet.core.files.disk import writable_folder


def use_cache(folder: str) -> str:
    """Keep compiled functions on disk, so that the next run with the same sizes starts at once.

    Return a warning if the folder cannot be written, and keep none then.
    """
    try:
        path = writable_folder(folder)
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return (
            f"compiled functions are not kept, so that the next start takes as long: jax.cache={folder} cannot be "
            f"written: {error}: set jax.cache to a folder that can be written, or jax.cache='' to keep none"
        )
    jax.config.update("jax_compilation_cache_dir", str(path))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 1.0)
    return ""


def compile_now(name: str, function: Callable[..., Any], *args: Any, **jit_options: Any) -> tuple[Any, float]:
    """A function that takes arguments of exactly these shapes and never compiles again, and the seconds it took."""
    begun = time.monotonic()
    compiled = jax.jit(function, **jit_options).lower(*args).compile()
    seconds = time.monotonic() - begun
    memory = compiled.memory_analysis()
    size = sum(getattr(memory, f"{part}_size_in_bytes", 0) for part in ("argument", "output", "temp"))
    size -= getattr(memory, "alias_size_in_bytes", 0)
    sys.stderr.write(f"compiled {name} in {seconds:.1f} s; it takes {size / 1e9:.2f} GB of device memory\n")
    current_context().report.event(Event.COMPILE, {"function": name, "seconds": round(seconds, 2), "bytes": size})
    return compiled, seconds
