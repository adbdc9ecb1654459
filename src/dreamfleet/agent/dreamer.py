"""The Dreamer agent: parameters on the device, compiled functions, and how data gets there and back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dreamfleet.agent.checks import check_spaces, finite
from dreamfleet.agent.compilation import compile_now, use_cache
from dreamfleet.agent.device.batches import BatchForm, DeviceBatch
from dreamfleet.agent.device.busy_time import DeviceTime
from dreamfleet.agent.device.carry_table import CarryRows, DeviceCarries
from dreamfleet.agent.device.packed_state import PackedState
from dreamfleet.agent.device.pinned_buffers import on_host
from dreamfleet.agent.device.placement import DeviceLayout, DeviceOptions
from dreamfleet.agent.finite_check import FiniteCheck
from dreamfleet.agent.parameters import count_parameters, leaf_names, load_leaves, optimizer_to_reset, upgrade_arrays
from dreamfleet.agent.policy_calls import PolicyCalls
from dreamfleet.agent.report_step import make_video, report_step
from dreamfleet.agent.train_step import Recipe, TrainCarry, TrainState, init_carry, init_state, sizes, train_step
from dreamfleet.core.context import current_context
from dreamfleet.core.errors import CheckpointError, ConfigError
from dreamfleet.core.hyperparameters import DreamerOptions
from dreamfleet.core.interfaces import Arrays
from dreamfleet.core.spaces import Space
from dreamfleet.model.dreamer_model import ComputeSettings

UNROLL_GPU = (8, 5)  # more takes longer to compile and gains little; on a CPU there is nothing to gain
SIZES = ("opt/param_rms", "opt/update_rms")  # metrics that are computed when somebody looks at them
DTYPES = {"bfloat16": jnp.bfloat16, "float32": jnp.float32, "float16": jnp.float16}


PolicyCarry = DeviceCarries | CarryRows  # all rows of a table, or some


@dataclass(frozen=True)
class DreamerShape:
    """The batches that the agent is compiled for."""

    batch_size: int = 16
    batch_length: int = 64
    report_length: int = 32  # 0: the agent never reports
    replay_context: int = 1
    policy_rows: tuple[int, ...] = (1, 2, 4, 8)  # every size that a batch of observations may have
    slots: int = 256  # environments that the table has room for from the start


@dataclass(frozen=True)
class ComputeOptions:
    dtype: str = "bfloat16"
    rng: str = "unsafe_rbg"
    unroll_observe: int = 0  # steps of a loop compiled as one; 0: as suits the device
    unroll_imagine: int = 0
    kernels: bool = True
    accumulate: int = 1
    priorities: bool = False  # of every step trained on, for a replay that draws by them
    best_eval_action: bool = False
    cache: str = ""  # folder for compiled functions
    devices: DeviceOptions = field(default_factory=DeviceOptions)


class Metrics(Mapping[str, float]):
    """Numbers still on the device: fetched together, when somebody looks at one. `more` is computed only then."""

    def __init__(self, names: list[str], values: jax.Array, more: Callable[[], jax.Array]) -> None:
        self._names = names
        self._values = values
        self._more = more
        self._fetched: dict[str, float] = {}

    def __getitem__(self, key: str) -> float:
        if not self._fetched:
            values = [*np.asarray(self._values).tolist(), *np.asarray(self._more()).tolist()]
            self._fetched = dict(zip(self._names, values, strict=True))
        return self._fetched[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class DreamerAgent:
    """Parameters live on the training devices as a list of arrays, see `PackedState`, donated to every update.

    An update also returns a copy of what acting needs, for `PolicyCalls`. The actor thread calls `policy`, the learner
    thread everything else.
    """

    def __init__(
        self,
        obs_space: Mapping[str, Space],
        act_space: Mapping[str, Space],
        options: DreamerOptions,
        shape: DreamerShape,
        compute: ComputeOptions,
        seed: int = 0,
        folder: Path | None = None,
    ) -> None:
        if shape.batch_size % compute.accumulate:
            raise ConfigError(f"batch_size={shape.batch_size} cannot be split into {compute.accumulate} equal parts")
        self.obs_space, self.act_space = check_spaces(obs_space, act_space)
        self.row_space = finite(obs_space)
        self.shape = shape
        self.compute = compute
        self.layout = DeviceLayout(compute.devices, shape.batch_size)
        kernels = compute.kernels and self.layout.mesh.size == 1  # they are not split over devices
        if compute.cache and (warning := use_cache(compute.cache)):
            current_context().warn(warning)
        unroll = UNROLL_GPU if jax.default_backend() == "gpu" else (1, 1)
        unroll = (compute.unroll_observe or unroll[0], compute.unroll_imagine or unroll[1])
        settings = ComputeSettings(DTYPES[compute.dtype], *unroll, kernels)
        context, parts = shape.replay_context, compute.accumulate
        self.recipe = Recipe(options, settings, self.obs_space, self.act_space, context, parts, compute.priorities)
        init_key, train_key = jax.random.split(jax.random.key(seed, impl=compute.rng))
        spec = jax.eval_shape(self._initial, init_key)
        self.names = leaf_names(spec)
        self.spec, self._structure = jax.tree.flatten(spec)
        self._packed_state = PackedState(self.spec, self.layout)
        self._packed: list[jax.Array] = jax.jit(
            lambda key: self._packed_state.pack(jax.tree.leaves(self._initial(key))),
            out_shardings=self._packed_state.shardings,
        )(init_key)
        self._train_key = jax.device_put(train_key, self.layout.whole)
        self._late: tuple[np.ndarray, dict[str, jax.Array]] | None = None
        self.compile_seconds: dict[str, float] = {}
        self._forms: dict[int, BatchForm] = {}
        self._policy_calls = PolicyCalls(self.recipe, spec.world, self.layout, compute.rng, seed, self._compile_now)
        self._compile()
        self._finite_check = FiniteCheck(self._health_names, folder)
        self._device_time = DeviceTime()
        self._publish()

    # Acting

    def init_policy(self, n: int) -> DeviceCarries:
        return self._policy_calls.make_table(n)

    def carry_table(self) -> DeviceCarries:
        """Keeps the recurrent states of all environments on the device; its rows are the carries of `policy`."""
        return self._policy_calls.make_table(self.shape.slots)

    def policy(self, carry: PolicyCarry, obs: Arrays, mode: str) -> tuple[PolicyCarry, Arrays, Arrays]:
        return self.start_policy(carry, obs, mode)()

    def start_policy(
        self, carry: PolicyCarry, obs: Arrays, mode: str
    ) -> Callable[[], tuple[PolicyCarry, Arrays, Arrays]]:
        """What it returns waits for the actions; meanwhile there is time for something else."""
        rows = len(obs["is_first"])
        table, slots = carry if isinstance(carry, CarryRows) else (carry, np.arange(rows, dtype=np.int32))
        seen = {key: obs[key] for key in (*self.obs_space, "is_first")}
        fetch = self._policy_calls.start(table, slots, seen, mode == "eval" and self.compute.best_eval_action)
        return lambda: (carry, *fetch())

    # Learning

    def init_train(self, n: int) -> TrainCarry:
        return jax.device_put(init_carry(n, self.recipe), self.layout.batch)

    def train(self, carry: TrainCarry, batch: Any) -> tuple[TrainCarry, dict[str, Any], Mapping[str, Any]]:
        """Returns the latents, and priorities if any, of the update before this one: they are on the host by now."""
        batch = batch if isinstance(batch, DeviceBatch) else self._put(batch)
        begun = self._device_time.now()
        self._packed, carry, latents, metrics, health, actor = self._train(
            self._packed, carry, batch.data, self._train_key
        )
        self._device_time.dispatched(begun, health)
        if not self._written_to_host:
            health.copy_to_host_async()
        self._finite_check.add(health, batch.arrays)
        held_back = self.take_held_back()  # which waits for the update before this one
        with self._policy_calls.lock:
            self._policy_calls.parameters.stage(actor)
        outs: dict[str, Any] = {"replay": held_back} if held_back else {}
        self._late = (batch.stepid[:, self.shape.replay_context :], latents)
        # The sizes are those of the newest update by the time that somebody looks: before the next call of `train`.
        return carry, outs, Metrics(self._metric_names, metrics, lambda: self._sizes(self._packed))

    def take_held_back(self) -> Arrays:
        """Waits for the last update, with which acting goes on from here."""
        late, self._late = self._late, None
        if late is None:
            return {}
        stepid, latents = late
        held_back = {"stepid": stepid, **{key: np.asarray(value) for key, value in latents.items()}}
        with self._policy_calls.lock:
            self._policy_calls.parameters.flush()
        return held_back

    def init_report(self, n: int) -> TrainCarry:
        return self.init_train(n)

    def report(self, carry: TrainCarry, batch: Any) -> tuple[TrainCarry, Mapping[str, Any]]:
        if not self.shape.report_length:
            return carry, {}
        batch = batch if isinstance(batch, DeviceBatch) else self._put(batch)
        begun = self._device_time.now()
        carry, metrics, predicted = self._report(self._packed, carry, batch.data, self._train_key)
        self._device_time.dispatched(begun, jax.tree.leaves(metrics)[0])
        found: dict[str, Any] = {key: float(value) for key, value in jax.device_get(metrics).items()}
        seen = batch.arrays() if predicted else {}
        for key, images in jax.device_get(predicted).items():
            truth = seen[key][:, self.shape.replay_context :]
            found[f"openloop/{key}"] = make_video(truth, images)
        return carry, found

    def stream(self, source: Iterator[Arrays]) -> Iterator[Any]:
        """One batch is on its way to the device while the one before it is trained on."""
        ahead: DeviceBatch | None = None
        for batch in source:
            sent = self._put(batch)
            if ahead is not None:
                yield ahead
            ahead = sent
        if ahead is not None:
            yield ahead

    def describe(self) -> Mapping[str, Any]:
        parts = count_parameters(self.names, self.spec)
        compile_s = sum(self.compile_seconds.values())
        total = {"parameters": sum(parts.values()), "parts": parts}
        return {**total, "devices": self.layout.describe(), "compile_s": compile_s}

    def device_seconds(self) -> Mapping[str, float]:
        return self._device_time.totals()

    # Saving

    def fetch_leaves(self) -> list[np.ndarray]:
        """All arrays that training changes, on the host, in the order of `names` and `spec`."""
        return self._packed_state.fetch(self._packed)

    def save(self) -> Arrays:
        """Raise `NonFinite` if a loss or gradient of any update so far is not finite."""
        self._finite_check.drain()
        return {
            **dict(zip(self.names, self.fetch_leaves(), strict=True)),
            "acted": np.array(self._policy_calls.acted, np.int64),
        }

    def load(self, data: Mapping[str, np.ndarray], regex: str | None = None) -> None:
        if regex is None and "acted" not in data:
            raise CheckpointError("the checkpoint lacks the agent's counter of actions, 'acted': it is not of an agent")
        self._packed = self._packed_state.put(load_leaves(self.names, self.fetch_leaves(), data, regex))
        if regex is None:
            self._policy_calls.acted = int(data["acted"])
        self._publish()

    def optimizer_to_reset(self, taken: Set[str]) -> set[str]:
        return optimizer_to_reset(self.names, taken)

    def upgrade_arrays(self, data: Mapping[str, np.ndarray]) -> Arrays:
        return upgrade_arrays(data, self.names)

    # Set-up

    def _initial(self, key: jax.Array) -> TrainState:
        return init_state(key, self.recipe)

    def _put(self, batch: Mapping[str, np.ndarray]) -> DeviceBatch:
        length = batch["is_first"].shape[1] - self.shape.replay_context
        return self._form(length).put(batch)

    def _form(self, length: int) -> BatchForm:
        """Of batches of so many steps. Reports may have another length, also if the agent makes none of them."""
        if length not in self._forms:
            self._forms[length] = BatchForm(self.shape.batch_size, length, self.recipe, self.layout)
        return self._forms[length]

    def _publish(self) -> None:
        copy = jax.jit(lambda packed: self._policy_calls.parameters.copy(self._state(packed).world))(self._packed)
        with self._policy_calls.lock:
            self._policy_calls.parameters.activate(jax.block_until_ready(copy))

    def _state(self, packed: Sequence[jax.Array]) -> TrainState:
        state: TrainState = jax.tree.unflatten(self._structure, self._packed_state.unpack(packed))
        return state

    def _compile(self) -> None:
        shape = self.shape
        batch = self._form(shape.batch_length).spec
        carry = jax.eval_shape(lambda: init_carry(shape.batch_size, self.recipe))
        split = jax.tree.map(lambda _: self.layout.batch, carry)
        self._train_spec = (
            [jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding) for x in self._packed],
            jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=self.layout.batch), carry),
            batch,
            self._train_key,
        )
        state, carry = self._train_spec[:2]
        latents, health = on_host(self.layout.batch), on_host(self.layout.whole)
        self._written_to_host = health != self.layout.whole
        out = (self._packed_state.shardings, split, latents, None, health, None)
        self._train = self._compile_now(
            "train", self._train_flat, *self._train_spec, donate_argnums=(0, 1), out_shardings=out
        )
        self._sizes = self._compile_now("sizes", self._sizes_flat, state)
        if shape.report_length:
            report = self._form(shape.report_length).spec
            self._report = self._compile_now("report", self._report_flat, state, carry, report, self._train_key)
        for best in {False, self.compute.best_eval_action}:
            for rows in shape.policy_rows:
                self._policy_calls.prepare(rows, shape.slots, best)

    def _compile_now(self, name: str, function: Any, *args: Any, **options: Any) -> Any:
        compiled, self.compile_seconds[name] = compile_now(name, function, *args, **options)
        return compiled

    def train_jaxpr(self) -> Any:
        """What an update computes, for counting its arithmetic."""
        return jax.make_jaxpr(self._train_flat)(*self._train_spec)

    def _train_flat(self, packed: Any, carry: Any, data: Any, key: Any) -> Any:
        step = train_step(
            self._state(packed), carry, self._form(self.shape.batch_length).unpack(data), key, self.recipe
        )
        self._metric_names, self._health_names = [*step.metrics, *SIZES], step.health_names
        actor = self._policy_calls.parameters.copy(step.state.world)
        metrics = jnp.stack([value.astype(jnp.float32) for value in step.metrics.values()])
        state = self._packed_state.pack(jax.tree.leaves(step.state))
        return state, step.carry, step.latents, metrics, step.health, actor

    def _sizes_flat(self, packed: Any) -> Any:
        found = sizes(self._state(packed), self.recipe)
        return jnp.stack([found[name] for name in SIZES])

    def _report_flat(self, packed: Any, carry: Any, data: Any, key: Any) -> Any:
        return report_step(
            self._state(packed), carry, self._form(self.shape.report_length).unpack(data), key, self.recipe
        )
