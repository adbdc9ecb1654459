"""How much memory and disk a replay will come to take, from what a step looks like. Looks at no machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dreamfleet.core.spaces import Space, without_log
from dreamfleet.replay.columns import Column, Layout, step_bytes
from dreamfleet.replay.store import ReplayOptions

# Per window: where it begins, and what a snapshot needs for a moment to list it; selectors keep more.
INDEX_BYTES = 64
SELECTOR_BYTES = {"uniform": 0, "priority": 26, "recency": 48}


@dataclass(frozen=True)
class Projection:
    """What a replay holds at its fullest."""

    steps: int
    memory_bytes: int
    disk_bytes: int

    def __add__(self, other: Projection) -> Projection:
        return Projection(
            self.steps + other.steps,
            self.memory_bytes + other.memory_bytes,
            self.disk_bytes + other.disk_bytes,
        )


def stored_layout(obs_space: Mapping[str, Space], act_space: Mapping[str, Space]) -> Layout:
    """What replay keeps of a step, without the agent's latents."""
    kept = without_log(obs_space)
    kept.update({key: space for key, space in act_space.items() if key != "reset"})
    return {key: Column(space.dtype, space.shape) for key, space in kept.items()}


def project(layout: Layout, options: ReplayOptions, steps: int, streams: int, latent_bytes: int = 0) -> Projection:
    """The replay of a run that collects `steps` steps with `streams` environments.

    On disk, a snapshot writes new latents before the old ones go. Chunks that were evicted since the last snapshot come
    on top: how many depends on the speed of the run.
    """
    size = step_bytes(layout) + latent_bytes
    held = _held_steps(options, steps, streams, size)
    windows = min(held, options.capacity)
    index = INDEX_BYTES + sum(SELECTOR_BYTES[name] for name, share in options.fracs.items() if share > 0)
    return Projection(held, held * size + windows * index, held * (size + latent_bytes) + windows * 16)


def chunk_bytes(layout: Layout, options: ReplayOptions, latent_bytes: int = 0) -> int:
    return max(options.chunksize, options.length) * (step_bytes(layout) + latent_bytes)


def _held_steps(options: ReplayOptions, steps: int, streams: int, size: int) -> int:
    """A full replay also has, for each stream, chunks that are partly evicted and partly empty."""
    held = steps
    if steps > options.capacity:
        chunksize = max(options.chunksize, options.length)
        run = -(-options.capacity // max(1, streams)) + options.length - 1  # consecutive steps of one stream
        chunks = (run + chunksize - 2) // chunksize + 1
        held = min(steps, max(1, streams) * chunks * chunksize)
    if options.size_bytes:
        held = min(held, options.size_bytes // max(1, size))
    return held
