"""Two clients of one GPU, so that acting does not wait for the update under way.

A JAX client has one queue for a device: what is started while an update is computed, is computed after it. A second
client has a queue of its own, and the GPU works on both at once. JAX loads it, as it loads any plugin, when the
environment names one. The learner gets the second, because arrays can be passed to the first one without a copy.
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dreamfleet.core.errors import ConfigError

NAME = "learner"
PLUGINS = "PJRT_NAMES_AND_LIBRARY_PATHS"  # where JAX looks for them
SHARE = 0.75  # of the GPU's memory, JAX's own default
FALSE = ("false", "0")
CHANGED = (PLUGINS, "JAX_PLATFORMS", "XLA_PYTHON_CLIENT_PREALLOCATE")


def open_second_client() -> None:
    """Before anything else asks JAX for its devices. Without a GPU that can have one, nothing happens."""
    platforms = os.environ.get("JAX_PLATFORMS", "")
    library = _cuda_library()
    if library is None or (platforms and "cuda" not in platforms.split(",")) or PLUGINS in os.environ or not _has_gpu():
        return
    with tempfile.TemporaryDirectory() as folder, _environment_kept():
        file = Path(folder) / "client.json"
        file.write_text(json.dumps({"library_path": str(library), "create_options": _memory_options()}))
        os.environ[PLUGINS] = f"{NAME}:{file}"
        os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # for the first client, which needs little
        if platforms:
            os.environ["JAX_PLATFORMS"] = f"{platforms},{NAME}"
        logging.getLogger("jax._src.xla_bridge").addFilter(_is_no_news)
        import jax

        try:
            jax.devices()
        except RuntimeError as error:
            raise ConfigError(f"the GPU has no room for a second client: set jax.concurrent=false ({error})") from error


def in_second_client(device: Any) -> Any:
    """The same device there; None if there is no second client."""
    import jax

    try:
        found = jax.devices(NAME)
    except RuntimeError:
        return None
    return next((other for other in found if other.local_hardware_id == device.local_hardware_id), None)


@contextmanager
def _environment_kept() -> Iterator[None]:
    """JAX reads it once. Processes that are started later must find it as it was."""
    before = {name: os.environ.get(name) for name in CHANGED}
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def _memory_options() -> dict[str, Any]:
    """What JAX would read from the environment for the first client."""
    wanted = os.environ.get("XLA_CLIENT_MEM_FRACTION") or os.environ.get("XLA_PYTHON_CLIENT_MEM_FRACTION")
    preallocate = os.environ.get("XLA_PYTHON_CLIENT_PREALLOCATE", "true").lower() not in FALSE
    allocator = os.environ.get("XLA_PYTHON_CLIENT_ALLOCATOR", "default").lower()
    return {
        "platform_name": "cuda",
        "allocator": allocator,
        "memory_fraction": float(wanted or SHARE),
        "preallocate": preallocate,
    }


def _cuda_library() -> Path | None:
    spec = find_spec("jax_plugins")
    folders = spec.submodule_search_locations if spec else None
    found = [file for folder in folders or () for file in Path(folder).glob("xla_cuda*/xla_cuda_plugin.so")]
    return found[0] if len(found) == 1 else None


def _has_gpu() -> bool:
    return os.environ.get("CUDA_VISIBLE_DEVICES") != "" and any(Path("/dev").glob("nvidia[0-9]*"))


def _is_no_news(record: logging.LogRecord) -> bool:
    """JAX calls every plugin experimental that it does not know by name, this one too."""
    return f"'{NAME}' is experimental" not in record.getMessage()
