"""Environments as other people's packages build them: nothing is wrong with them, but they differ from Gymnasium's."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

BOX = spaces.Box(-1.0, 1.0, (3,), np.float32)


class Pool:
    """A batch whose `observation_space` is that of one row, as in EnvPool. Its rows end after 10 steps."""

    metadata: ClassVar = {"autoreset_mode": AutoresetMode.NEXT_STEP}
    observation_space = single_observation_space = BOX
    action_space = single_action_space = spaces.Discrete(2)

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self._steps = 0
        return self._observe(), {}

    def step(self, actions: Any) -> Any:
        self._steps += 1
        ends = self._steps % 11 == 10
        return self._observe(), np.ones(self.num_envs), *np.full((2, self.num_envs), [[False], [ends]]), {}

    def close(self) -> None:
        pass

    def _observe(self) -> np.ndarray:
        return self._rng.uniform(-1, 1, (self.num_envs, 3)).astype(np.float32)


class Pure:
    """The environment of another library, which takes a key where Gymnasium's take a seed."""

    def reset(self, key: int) -> int:
        return key


class Keyed(gymnasium.Env[Any, Any]):
    """Stands for a `Pure`, and calls it `unwrapped`, as Jumanji's wrapper does. Its first seed counts for good."""

    observation_space = BOX
    action_space = spaces.Discrete(2)

    def __init__(self) -> None:
        self._rng = np.random.default_rng()
        self._steps = 0

    @property
    def unwrapped(self) -> Any:
        return Pure()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self._steps = 0
        return self._observe(), {}

    def step(self, action: Any) -> Any:
        self._steps += 1
        return self._observe(), 1.0, False, self._steps >= 10, {}

    def _observe(self) -> Any:
        return self._rng.uniform(-1, 1, 3).astype(np.float32)


class DeviceArray:
    """As JAX and PyTorch have them: NumPy can read it, and it is none of NumPy's."""

    def __init__(self, value: Any) -> None:
        self._value = np.asarray(value)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self._value, dtype)

    def __bool__(self) -> bool:
        return bool(self._value)


class OnDevice(Keyed):
    """All that it returns are arrays of a device."""

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, _ = super().step(action)
        return obs, *(DeviceArray(value) for value in (reward, terminated, truncated)), {"speed": DeviceArray(2.0)}

    def _observe(self) -> Any:
        return DeviceArray(super()._observe())


class OnJax(Keyed):
    """As `OnDevice`, with the arrays of JAX."""

    def step(self, action: Any) -> Any:
        import jax.numpy as jnp

        obs, reward, terminated, truncated, _ = super().step(action)
        return obs, jnp.float32(reward), jnp.bool_(terminated), jnp.bool_(truncated), {"speed": jnp.float32(2)}

    def _observe(self) -> Any:
        import jax.numpy as jnp

        return jnp.asarray(super()._observe())
