"""Rounds in lock step, one at a time and without processes: the counting agent checks every step on its way."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from dreamfleet.checkpoint.manifest import read_manifest, seal
from dreamfleet.config.args import FleetArgs
from dreamfleet.core.errors import CheckpointMismatch, ConfigError, EnvFailed
from dreamfleet.roles.lockstep.envs import LockstepEnvs
from support import counting
from support.fake_envs import Breaking
from support.lockstep import BATCH, CONTEXT, ENVS, LENGTH, make_role


def updates_owed(steps: int, ratio: float) -> int:
    """From the definition of the limiter, in closed form.

    A balance of minus one batch of steps grows by ratio / LENGTH with every step from the one on that completes this
    batch. An update takes BATCH, and is allowed while more than minus 4 BATCH is left before it.
    """
    needed = BATCH * (LENGTH + CONTEXT)
    if steps < needed:
        return 0
    balance = -needed + (steps - needed + 1) * ratio / LENGTH
    return max(0, math.ceil((balance + 4 * BATCH) / BATCH))


@pytest.mark.parametrize("ratio", [2.0, 5.0, 8.0, 31.0])
def test_every_update_happens_at_the_step_that_the_train_ratio_says(tmp_path, ratio):
    role = make_role(tmp_path, train_ratio=ratio)
    for number in range(1, 100):
        role.round()
        assert role.learner.updates == updates_owed(number * ENVS, ratio), f"after {number * ENVS} steps"
    assert role.learner.updates > 0
    role.close()


def test_evaluation_steps_are_made_in_every_round_and_never_trained_on(tmp_path):
    agent = counting.make_agent()
    role = make_role(tmp_path, agent)
    for _ in range(100):
        role.round()
    role.close()
    assert len(role.replay.evaluation) == 2 * (100 - counting.REPORT_LENGTH - CONTEXT + 1)
    assert role.actor.steps == 100 * ENVS
    assert {env for env, _ in agent._stepid} == set(range(ENVS))
    assert agent._eval_steps > 0, "reports show evaluation steps"


@pytest.mark.parametrize("rounds", [1, 17, 40, 60])
def test_a_resumed_run_has_its_environments_carries_and_episodes_back(tmp_path, rounds):
    """The counting agent's carry knows the next count of its environment, and the environment its next action."""
    straight, stopped = (make_role(tmp_path / name) for name in ("straight", "stopped"))
    for _ in range(80):
        straight.round()
    for _ in range(rounds):
        stopped.round()
    stopped.learner.save()
    stopped.close()
    again = make_role(tmp_path / "stopped")
    again.restore()
    for _ in range(80 - rounds):
        again.round()
    sampled = [role.replay.train.sample(8, "train") for role in (straight, again)]
    for role in (straight, again):
        role.close()
    for key, value in sampled[0].items():
        np.testing.assert_array_equal(value, sampled[1][key], key)
    assert again.learner.updates == straight.learner.updates > 0
    assert again.replay.limiter.stats()["balance"] == straight.replay.limiter.stats()["balance"]
    assert again.logger.finished == straight.logger.finished
    assert again.logger.logger.step == straight.logger.logger.step == 80 * ENVS
    lines = [(tmp_path / name / "episodes.jsonl").read_text().count("\n") for name in ("straight", "stopped")]
    assert lines[0] == lines[1] == sum(straight.logger.finished.values())


class Chunked(counting.CountingAgent):
    """Notes which chunk of its window each batch is."""

    def __init__(self) -> None:
        super().__init__()
        self.chunks: list[int] = []

    def train(self, carry: Any, batch: Any) -> Any:
        self.chunks.append(int(batch["consec"][0]))
        return carry, {}, {}


def test_windows_of_several_batches_are_used_up_within_a_round(tmp_path):
    """A snapshot between two rounds would lose the rest of one."""
    agent = Chunked()
    role = make_role(tmp_path, agent, consec_train=3, train_ratio=48.0)
    for _ in range(80):
        role.round()
        assert agent.chunks == [0, 1, 2] * (len(agent.chunks) // 3)
    assert agent.chunks
    role.close()


@pytest.mark.parametrize(
    ("changes", "words"), [({"seed": 1}, "set seed=0"), ({"envs": 2}, "set run.envs=3"), ({"eval_envs": 0}, "=2")]
)
def test_other_environments_than_those_of_the_snapshot_are_refused(tmp_path, changes, words):
    role = make_role(tmp_path)
    for _ in range(30):
        role.round()
    role.learner.save()
    role.close()
    other = make_role(tmp_path, **changes)
    with pytest.raises(CheckpointMismatch, match=words):
        other.restore()
    other.close()


def test_a_row_after_a_resume_at_its_step_begins_empty(tmp_path):
    role = make_role(tmp_path, log_every_steps=30, report_every_steps=0)
    for _ in range(40):
        role.round()
    role.learner.save()
    role.close()
    again = make_role(tmp_path, log_every_steps=30, report_every_steps=0)
    again.restore()
    assert again.actor.steps == 120
    assert not again.logger._fresh["train"]
    again.close()


class Loads(counting.CountingAgent):
    loaded = False

    def load(self, data: Any, regex: str | None = None) -> None:
        self.loaded = True
        super().load(data, regex)


def test_another_runs_agent_is_where_it_begins(tmp_path):
    role = make_role(tmp_path / "one")
    for _ in range(60):
        role.round()
    role.learner.save()
    role.close()
    agent = Loads()
    other = make_role(tmp_path / "other", agent, from_checkpoint=str(tmp_path / "one"))
    other.restore()
    other.close()
    assert agent.loaded


class Resets(Loads):
    """Asks for all that it could load to stay as it is."""

    def optimizer_to_reset(self, taken):
        return set(taken)


def test_the_agent_decides_which_arrays_stay_new(tmp_path):
    role = make_role(tmp_path / "one")
    for _ in range(60):
        role.round()
    role.learner.save()
    role.close()
    other = make_role(tmp_path / "other", Resets(), from_checkpoint=str(tmp_path / "one"))
    with pytest.raises(
        CheckpointMismatch, match="the optimiser's state can be loaded only together with every array that it trains"
    ):
        other.restore()
    other.close()


class Unrepeatable(counting.CountingEnv):
    """Its episodes are longer every time it is made."""

    made = 0

    def __init__(self, index: int) -> None:
        super().__init__(index)
        Unrepeatable.made += 1
        self._length += Unrepeatable.made // 10


def test_an_environment_that_does_not_depend_on_its_seed_alone_is_refused(tmp_path):
    role = make_role(tmp_path, make_env=Unrepeatable)
    for _ in range(60):
        role.round()
    role.learner.save()
    role.close()
    Unrepeatable.made = 100
    again = make_role(tmp_path, make_env=Unrepeatable)
    with pytest.raises(CheckpointMismatch, match="cannot be brought back"):
        again.restore()
    again.close()


def test_a_snapshot_of_a_fleet_is_refused(tmp_path):
    role = make_role(tmp_path)
    role.round()
    role.learner.save()
    role.close()
    (part,) = tmp_path.glob("snapshots/*/single.safetensors")
    part.unlink()
    seal(part.parent, read_manifest(part.parent))
    again = make_role(tmp_path)
    with pytest.raises(CheckpointMismatch, match="or choose another --run-dir"):
        again.restore()
    again.close()


class Pair(counting.CountingEnv):
    num_envs = 1

    def begun(self) -> Any: ...

    def first(self) -> Any: ...


def test_vectorised_environments_are_refused():
    with pytest.raises(ConfigError, match=r"env\.vector=false"):
        LockstepEnvs(Pair, 2, "train", FleetArgs())


def test_environments_have_the_same_seeds_in_every_life():
    lives: list[int] = []

    def make(index: int, life: int = 0) -> counting.CountingEnv:
        lives.append(life)
        return counting.CountingEnv(index)

    LockstepEnvs(make, 2, "train", FleetArgs(life=7))
    assert lives == [0, 0]


class Looking(counting.CountingAgent):
    """Takes batches ahead, as an agent with a device does."""

    taken = 0

    def stream(self, source: Any) -> Any:
        ahead = None
        for batch in source:
            self.taken += 1
            if ahead is not None:
                yield ahead
            ahead = batch
        if ahead is not None:
            yield ahead


def test_an_agent_that_looks_ahead_gets_no_batch_before_its_time(tmp_path):
    agent = Looking()
    role = make_role(tmp_path, agent, eval_envs=0, report_every_steps=0)
    for _ in range(60):
        role.round()
        assert agent.taken == agent._updates
    assert agent.taken > 0
    role.close()


def test_an_environment_that_fails_is_named_with_the_line():
    envs = LockstepEnvs(lambda index: Breaking(index, (0,) if index else ()), 2, "train", FleetArgs())
    envs.begin(np.arange(2))
    with pytest.raises(
        EnvFailed, match=r"^train environment 1 \(Breaking\) failed: RuntimeError: .*fake_envs\.py:\d+ in"
    ):
        envs.step()
