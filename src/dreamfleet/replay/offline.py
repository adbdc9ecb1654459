"""Episodes from files into a replay: one `.npz` each, checked against the environment's spaces.

A file has every key that replay stores of a step (observation and action, without the agent's latents), each as one
array with a leading time axis. `is_first` is true at the first step and nowhere else, `is_last` at most at the last.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path

import numpy as np

from dreamfleet.core.errors import BadInput
from dreamfleet.core.files.bounded import MB
from dreamfleet.core.interfaces import Arrays
from dreamfleet.core.spaces import Space, without_log
from dreamfleet.replay.npz import NpzFile, is_array
from dreamfleet.replay.store import ReplayStore

MAX_BYTES = 1024 * MB  # of one episode's arrays, or, in a larger file,
MAX_TIMES = 10  # as many times its size
AT_ONCE = 16  # episodes inserted side by side: a batch of steps costs little more than one step


def read_episode(path: Path, spaces: Mapping[str, Space]) -> Arrays:
    """What a file holds under the keys of `spaces`. Keys for the logger (`log/...`) may be there and are dropped."""
    found = _load(path, spaces)
    steps = len(found["is_first"])
    for key, space in spaces.items():
        _check_values(path, key, found[key], space, steps)
    _check_flags(path, found)
    return found


def insert_episodes(
    store: ReplayStore, paths: Sequence[Path], spaces: Mapping[str, Space], latents: Mapping[str, Space] | None = None
) -> None:
    """Every episode becomes a stream of its own, numbered from 0; no window crosses from one to the next.

    What the agent would have stored with its steps, `latents`, is zero until it has trained on them.
    """
    numbered = enumerate(paths)
    while group := list(itertools.islice(numbered, AT_ONCE)):
        episodes = [(number, read_episode(path, spaces)) for number, path in group]
        for rows in _steps(episodes):
            count = len(rows["stream"])
            zeros = {key: np.zeros((count, *space.shape), space.dtype) for key, space in (latents or {}).items()}
            store.add_batch({**rows, **zeros})


def _steps(episodes: Sequence[tuple[int, Arrays]]) -> Iterator[Arrays]:
    """Step by step through episodes that may end at different times."""
    for step in range(max(len(episode["is_first"]) for _, episode in episodes)):
        alive = [(number, episode) for number, episode in episodes if step < len(episode["is_first"])]
        rows = {key: np.stack([episode[key][step] for _, episode in alive]) for key in alive[0][1]}
        yield {"stream": np.array([number for number, _ in alive], np.int64), **rows}


def _load(path: Path, spaces: Mapping[str, Space]) -> Arrays:
    """Looks at names and shapes first, and reads nothing else than what belongs to steps."""
    try:
        if is_array(path):
            raise BadInput(f"{path} is one array and not an .npz file: write it with np.savez(path, key=array, ...)")
        with NpzFile(path) as file:
            found = without_log(file.headers)
            _check_keys(path, found.keys(), spaces)
            first = found["is_first"][0]
            if not first or not first[0]:
                raise BadInput(f"{path}: 'is_first' has no steps: every key needs a leading time axis")
            steps = first[0]
            for key, space in spaces.items():
                if (shape := found[key][0]) != (steps, *space.shape):
                    expected = f"{(steps, *space.shape)}: expected {steps} steps of {space}"
                    raise BadInput(f"{path}: {key!r} has shape {shape} instead of {expected}")
            return file.read(found, max(MAX_BYTES, MAX_TIMES * path.stat().st_size))
    except (OSError, ValueError) as error:
        raise BadInput(f"{path} cannot be read as an .npz file: {error}") from error


def _check_keys(path: Path, found: Set[str], spaces: Mapping[str, Space]) -> None:
    missing, unknown = sorted(spaces.keys() - found), sorted(found - spaces.keys())
    if missing or unknown:
        problems = [f"lacks {missing}"] * bool(missing)
        problems += [f"has {unknown}, which the environment has not"] * bool(unknown)
        raise BadInput(f"{path} {' and '.join(problems)}: expected the keys {sorted(spaces)}")


def _check_values(path: Path, key: str, values: np.ndarray, space: Space, steps: int) -> None:
    whole = Space(space.dtype, (steps, *space.shape), space.low, space.high)
    if violation := whole.violation(values):
        raise BadInput(f"{path}: {key!r} has {violation}: expected {steps} steps of {space}")


def _check_flags(path: Path, episode: Arrays) -> None:
    first, last = np.flatnonzero(episode["is_first"]), np.flatnonzero(episode["is_last"][:-1])
    if first.tolist() != [0]:
        raise BadInput(
            f"{path}: 'is_first' is true at the steps {first[:5].tolist()}: expected [0], one episode in each file"
        )
    if len(last):
        raise BadInput(
            f"{path}: 'is_last' is true at step {last[0]}, before the end: expected one episode in each file"
        )
