"""Gymnasium environments with one mistake each, as users write them; on the command line `support.faulty_envs:NAME`."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Correct(gymnasium.Env[Any, Any]):
    """Episodes of ten steps that are truncated. Subclasses change what it returns."""

    observation_space: Any = spaces.Box(-1.0, 1.0, (3,), np.float32)
    action_space: Any = spaces.Discrete(2)
    length = 10

    def __init__(self) -> None:
        self.taken = 0  # steps over all episodes
        self._in_episode = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._in_episode = 0
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        self.taken += 1
        self._in_episode += 1
        return self.observe(), 1.0, False, self._in_episode >= self.length, {"speed": 2}

    def observe(self) -> Any:
        return self.np_random.uniform(-1, 1, 3).astype(np.float32)


class WrongDtype(Correct):
    def observe(self) -> Any:
        return super().observe().astype(np.float64)


class WrongShape(Correct):
    def observe(self) -> Any:
        return super().observe()[:2]


class OutOfBounds(Correct):
    def observe(self) -> Any:
        return super().observe() + np.float32([0, 5, 0])


class NotANumber(Correct):
    def observe(self) -> Any:
        observed = super().observe()
        observed[1] = np.nan if self.taken > 7 else 0
        return observed


class List(Correct):
    def observe(self) -> Any:
        return [0.0, 0.0, 0.0]


class Parts(Correct):
    observation_space = spaces.Dict(
        {"near": spaces.Discrete(3), "far": spaces.Tuple([spaces.MultiBinary(2), spaces.MultiDiscrete([2, 3])])}
    )

    def observe(self) -> Any:
        return {"near": 2, "far": (np.array([True, False]), np.array([1, 2]))}


class PartMissing(Parts):
    def observe(self) -> Any:
        observed = super().observe()
        observed["extra"] = observed.pop("near")
        return observed


class PartOutOfBounds(Parts):
    def observe(self) -> Any:
        return {"near": 3.0, "far": (np.array([2, 0]), np.array([1, 3]))}


class PartTooLarge(Parts):
    def observe(self) -> Any:
        return {"near": 2, "far": (np.array([1, 0]), np.array([1, 3]))}


class OldReset(Correct):
    def reset(self, **kwargs: Any) -> Any:
        return super().reset(**kwargs)[0]


class ResetWithoutSeed(Correct):
    def reset(self) -> Any:  # type: ignore[override]
        return super().reset()


class OldStep(Correct):
    def step(self, action: Any) -> Any:
        obs, reward, _, truncated, info = super().step(action)
        return obs, reward, truncated, info


class ThreeValues(Correct):
    def step(self, action: Any) -> Any:
        return super().step(action)[:3]


class NoReward(Correct):
    def step(self, action: Any) -> Any:
        obs, _, terminated, truncated, info = super().step(action)
        return obs, None, terminated, truncated, info


class RewardArray(Correct):
    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, np.array([reward]), terminated, truncated, info


class InfiniteReward(Correct):
    def step(self, action: Any) -> Any:
        obs, _, terminated, truncated, info = super().step(action)
        return obs, np.inf, terminated, truncated, info


class FlagIsNone(Correct):
    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, terminated, truncated or None, info


class InfoIsNone(Correct):
    def step(self, action: Any) -> Any:
        return (*super().step(action)[:4], None)


class Endless(Correct):
    length = 10**9


class TimeIsTermination(Correct):
    length = 60

    def step(self, action: Any) -> Any:
        obs, reward, _, over, info = super().step(action)
        return obs, reward, over, False, info


class Unseeded(Correct):
    def observe(self) -> Any:
        return np.random.default_rng().uniform(-1, 1, 3).astype(np.float32)


class FlagIsText(Correct):
    def step(self, action: Any) -> Any:
        obs, reward, terminated, _, info = super().step(action)
        return obs, reward, terminated, "no", info


class InfoIsText(Correct):
    def step(self, action: Any) -> Any:
        return *super().step(action)[:4], "fine"


class StepRaises(Correct):
    def step(self, action: Any) -> Any:
        if self.taken == 6:
            raise RuntimeError("the robot fell over")
        return super().step(action)


class EveryStepRaises(Correct):
    """Of each worker's environments, and of each life of one."""

    def step(self, action: Any) -> Any:
        raise RuntimeError("the simulator has no licence")


class EveryStepAborts(Correct):
    """Ends its process, as a library of another language does."""

    def step(self, action: Any) -> Any:
        os.abort()


class ResetRaises(Correct):
    def reset(self, **kwargs: Any) -> Any:
        raise RuntimeError("no level left")


class CloseRaises(Correct):
    def close(self) -> None:
        raise RuntimeError("already closed")


class MakingRaises(Correct):
    def __init__(self) -> None:
        raise RuntimeError("no display")


class Several(OutOfBounds):
    """Wrong in two ways at once."""

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, np.array([reward]), terminated, truncated, info


class WithText(Correct):
    observation_space = spaces.Text(5)


class Hangs(Correct):
    def step(self, action: Any) -> Any:
        if self.taken == 11:
            self.wait()
        return super().step(action)

    def wait(self) -> None:
        threading.Event().wait()


class FirstHangs(Correct):
    """Of all that have the same file, the one that begins an episode first never comes back from it."""

    def __init__(self, file: str) -> None:
        super().__init__()
        self._file = Path(file)

    def reset(self, **kwargs: Any) -> Any:
        with contextlib.suppress(FileExistsError):
            self._file.touch(exist_ok=False)
            threading.Event().wait()
        return super().reset(**kwargs)


class Dies(Correct):
    def step(self, action: Any) -> Any:
        if self.taken == 4:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


class Exits(Correct):
    def step(self, action: Any) -> Any:
        sys.stderr.write("licence expired\n")
        sys.exit(3)


class LateWrongShape(Correct):
    """As many small steps before as a run takes in its first moments."""

    def observe(self) -> Any:
        return super().observe()[: 2 if self.taken == 700 else 3]


class Large(Correct):
    """Nothing is wrong with it, but its images have to be resized."""

    observation_space = spaces.Box(0, 255, (210, 160, 3), np.uint8)

    def observe(self) -> Any:
        return np.full((210, 160, 3), self.taken % 256, np.uint8)


class Moves(Large):
    """Takes its process to another folder, as simulators do that look for their files there."""

    def __init__(self, to: str) -> None:
        super().__init__()
        os.chdir(to)


class Empty(Correct):
    observation_space = spaces.Box(-1.0, 1.0, (0,), np.float32)


class OneChoice(Correct):
    action_space = spaces.Discrete(1)


class Board(Correct):
    """Nothing is wrong with it: a board of six kinds of pieces, and a code of too many classes."""

    observation_space = spaces.Dict(
        {"board": spaces.Box(0, 5, (4, 4, 3), np.uint8), "code": spaces.Box(0, 255, (300,), np.uint8)}
    )

    def observe(self) -> Any:
        return {"board": np.full((4, 4, 3), self.taken % 6, np.uint8), "code": np.zeros(300, np.uint8)}


class BoardOutOfBounds(Board):
    def observe(self) -> Any:
        observed = super().observe()
        observed["board"][1, 2, 0] = 200 if self.taken == 300 else 5
        return observed


class ManyActions(Correct):
    action_space = spaces.Discrete(10**6)


class Growing(Correct):
    """Its observations have as many elements as a variable of the process says: another number in the next run."""

    size = int(os.environ.get("FAULTY_ENVS_SIZE", "3"))
    observation_space = spaces.Box(-1.0, 1.0, (size,), np.float32)

    def observe(self) -> Any:
        return np.zeros(self.size, np.float32)


def nothing() -> None:
    return None


def vectorised(num_envs: int, wrong: str = "") -> gymnasium.vector.VectorEnv[Any, Any, Any]:
    made = gymnasium.vector.SyncVectorEnv([Correct] * num_envs)
    return WrongRows(made, wrong) if wrong else made


class WrongRows(gymnasium.vector.VectorWrapper):
    def __init__(self, env: Any, wrong: str) -> None:
        super().__init__(env)
        self._wrong = wrong

    def step(self, actions: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(actions)
        obs = np.array(obs)
        if self._wrong == "bounds":
            obs[1, 2] = 7
        return obs, reward[:, None] if self._wrong == "reward" else reward, terminated, truncated, info
