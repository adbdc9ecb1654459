"""The contracts between the parts. Array dictionaries are the only currency.

An array dictionary is a flat `dict[str, np.ndarray]`; nested names are joined by "/". Batched ones have one leading
batch axis on every array, sequences a batch and a time axis.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from dreamfleet.core.spaces import Space

Arrays = dict[str, np.ndarray]
Carry = Any  # a pytree of arrays with a leading batch axis, owned by the agent


@runtime_checkable
class Env(Protocol):
    """One environment.

    The action has the keys of `act_space` plus the flag `reset`; the observation has the keys of `obs_space`, among
    them `reward`, `is_first`, `is_last`, `is_terminal`. A step with `reset`, or after a last step, starts an episode:
    its action is ignored, its reward is 0 and its `is_first` is true. `is_last` without `is_terminal` is a truncation.
    Keys under `log/` reach the logger only.
    """

    @property
    def obs_space(self) -> Mapping[str, Space]: ...

    @property
    def act_space(self) -> Mapping[str, Space]: ...

    def step(self, action: Mapping[str, Any]) -> Mapping[str, Any]: ...

    def close(self) -> None: ...


@runtime_checkable
class EnvBatch(Protocol):
    """Several environments that step together: as `Env`, but every action and observation has a leading axis of
    `num_envs` rows, `reset` among them.

    Some begin the next episode within the step that ends the last one. `step` then returns the last observation of such
    a row, `begun` is true for it, and `first` holds the row's first observation of the new episode. Whoever steps the
    batch asks the policy about that one too: the row's next action is the answer to it, and its `reset` is false.
    """

    @property
    def num_envs(self) -> int: ...

    @property
    def obs_space(self) -> Mapping[str, Space]: ...

    @property
    def act_space(self) -> Mapping[str, Space]: ...

    def step(self, actions: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]: ...

    def begun(self) -> np.ndarray:
        """Which rows have begun an episode that `step` has not returned anything of yet."""

    def first(self) -> Mapping[str, np.ndarray]:
        """The first observations of the rows that `begun` names; other rows are undefined."""

    def close(self) -> None: ...


@runtime_checkable
class Agent(Protocol):
    """What the fleet trains. The actor thread calls `policy` while the learner thread calls the rest.

    The carry of `init_policy` and `policy` is a tree of NumPy arrays, one row per environment: the actor keeps the rows
    of all environments in one table and cuts batches from it, unless the agent `HasDeviceCarries`. Carries of `train`
    and `report` may be anything.
    """

    def init_policy(self, n: int) -> Carry: ...

    def policy(self, carry: Carry, obs: Arrays, mode: str) -> tuple[Carry, Arrays, Arrays]:
        """Returns the next carry, the actions, and further outputs to store in replay beside them."""

    def init_train(self, n: int) -> Carry: ...

    def train(self, carry: Carry, batch: Arrays) -> tuple[Carry, dict[str, Any], Mapping[str, Any]]:
        """One update. `outs["replay"]`, if present, is written back into replay at its `stepid`."""

    def init_report(self, n: int) -> Carry: ...

    def report(self, carry: Carry, batch: Arrays) -> tuple[Carry, Mapping[str, Any]]: ...

    def stream(self, source: Iterator[Arrays]) -> Iterator[Arrays]:
        """Wraps the batches on their way to `train` and `report`, for example to move them to the device early."""

    def save(self) -> Arrays:
        """Return all that `load` needs. Floats must be finite: a snapshot with a NaN or an infinity is damaged."""

    def load(self, data: Mapping[str, np.ndarray], regex: str | None = None) -> None: ...


class Carries(Protocol):
    """The recurrent carries of all environments, by slot."""

    def take(self, slots: np.ndarray, size: int) -> Carry:
        """The carries of `slots`; `size` is the number of slots there are by now."""

    def put(self, slots: np.ndarray, carry: Carry) -> None: ...

    def save(self) -> Arrays: ...

    def load(self, data: Mapping[str, np.ndarray]) -> None: ...


@runtime_checkable
class HasDeviceCarries(Protocol):
    """An agent that keeps the carries of all environments where it computes, such as in a device's memory."""

    def carry_table(self) -> Carries: ...


@runtime_checkable
class AsyncPolicy(Protocol):
    """An agent whose actions are computed elsewhere, such as on a GPU, while the thread that asks does other things."""

    def start_policy(self, carry: Carry, obs: Arrays, mode: str) -> Callable[[], tuple[Carry, Arrays, Arrays]]:
        """As `policy`, but what it returns waits for the result."""


@runtime_checkable
class HasRowSpace(Protocol):
    """An agent that knows all that comes with a step, beyond what it looks at. The actor accepts no other rows.

    Of an agent without it, the actor knows the keys in `obs_space`, if it has that, as well as reward and flags.
    """

    @property
    def row_space(self) -> Mapping[str, Space]: ...


@runtime_checkable
class DelaysReplayUpdates(Protocol):
    """An agent whose `train` returns what an update has for replay with a later one, so that it need not wait."""

    def take_held_back(self) -> Arrays:
        """What the last update has for replay, waited for: `train` does not return it again. Empty if there is none."""


@runtime_checkable
class ResetsOptimizer(Protocol):
    """An agent with an optimiser whose state fits only the arrays that it has trained."""

    def optimizer_to_reset(self, taken: Set[str]) -> set[str]:
        """Return which of the arrays `taken` from another agent must stay as in a new one, by their names."""


@runtime_checkable
class UpgradesArrays(Protocol):
    """An agent that can read arrays saved by earlier versions of itself."""

    def upgrade_arrays(self, data: Mapping[str, np.ndarray]) -> Arrays:
        """Return the saved arrays under the names of this version, with those that an earlier one did not save."""


@runtime_checkable
class HasDescription(Protocol):
    """An agent that has something to say about itself at the start of a run: see `agent_lines` of the banner."""

    def describe(self) -> Mapping[str, Any]:
        """Some of `parameters` (a number), `parts` (numbers by name), `devices` (words) and `compile_s`."""


@runtime_checkable
class HasDeviceTimes(Protocol):
    """An agent whose updates are computed elsewhere, such as on a GPU, and which knows when that has work."""

    def device_seconds(self) -> Mapping[str, float]:
        """Return the seconds `busy` with updates and reports and the seconds `idle` since the first of them."""


@runtime_checkable
class Replay(Protocol):
    """Stores steps by stream and hands out windows of consecutive steps."""

    def add_batch(self, data: Arrays) -> None:
        """Appends one step to each stream named in `data["stream"]`."""

    def sample(self, n: int, mode: str) -> Arrays:
        """`n` windows, each key with a batch and a time axis, plus `stepid`."""

    def update(self, data: Arrays) -> int:
        """Overwrites the other keys of `data` at its `stepid`; returns how many steps were gone already."""

    def begin_save(self) -> ReplaySave:
        """Fix what a save holds: inserts before this call are part of it, later ones are not.

        Inserts and training samples wait meanwhile. They go on while the save is written, which is always the next
        step.
        """

    def committed(self) -> None:
        """What was saved last is on disk for good; what nothing needs any more may go."""

    def load(self, data: Mapping[str, np.ndarray]) -> None: ...

    def close(self) -> None: ...

    def stats(self) -> dict[str, float]: ...

    def __len__(self) -> int: ...


class ReplaySave(Protocol):
    """A save of a replay that has begun."""

    def write(self) -> Arrays:
        """Return what `load` needs, with the files it may have written itself. Called once, by any thread."""


@runtime_checkable
class FileBackedReplay(Protocol):
    """A replay whose saves are made up of files in a folder of its own, which several snapshots may share."""

    def saved_files(self) -> dict[Path, int]:
        """The files of what was saved last, with their sizes."""

    def keep_files(self, needed: Iterable[Path]) -> None:
        """Earlier snapshots that are kept need these: `committed` and `load` leave them where they are."""

    def put_off_writes(self, when: Callable[[], bool]) -> None:
        """While `when` says so, such as on a disk that is nearly full, nothing is written but by a save."""


@runtime_checkable
class Logger(Protocol):
    """Collects metrics and writes them to its sinks."""

    step: int

    def add(self, metrics: Mapping[str, Any], prefix: str | None = None) -> None: ...

    def write(self) -> None: ...
