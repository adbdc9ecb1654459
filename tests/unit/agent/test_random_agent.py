"""The random agent."""

from __future__ import annotations

import numpy as np

from dreamfleet.agent.random_agent import RandomAgent
from dreamfleet.core.interfaces import Agent
from dreamfleet.core.spaces import Space

SPACES = {
    "turn": Space(np.int32, (), 0, 4),
    "push": Space(np.float32, (2,), -1, 1),
    "reset": Space(bool),
}


def observe(rows: int) -> dict[str, np.ndarray]:
    return {"is_first": np.zeros(rows, bool)}


def test_follows_the_agent_protocol() -> None:
    assert isinstance(RandomAgent(SPACES), Agent)


def test_acts_within_the_spaces_and_never_resets() -> None:
    agent = RandomAgent(SPACES)
    _, actions, outs = agent.policy(agent.init_policy(500), observe(500), "train")
    assert actions.keys() == {"turn", "push"}
    assert set(actions["turn"].tolist()) == {0, 1, 2, 3}
    assert actions["push"].shape == (500, 2)
    assert all(SPACES["push"].contains(row) for row in actions["push"])
    assert outs == {}


def test_the_seed_decides_the_actions() -> None:
    first, same, other = (RandomAgent(SPACES, seed).policy({}, observe(20), "train")[1]["turn"] for seed in (1, 1, 2))
    assert first.tolist() == same.tolist() != other.tolist()


def test_counts_updates_across_save_and_load() -> None:
    agent = RandomAgent(SPACES)
    batch = {"reward": np.array([[1.0, 3.0]])}
    for _ in range(3):
        _, outs, metrics = agent.train(agent.init_train(1), batch)
    assert (outs, metrics["updates"], metrics["reward"]) == ({}, 3, 2)
    restored = RandomAgent(SPACES)
    restored.load(agent.save())
    assert restored.train({}, batch)[2]["updates"] == 4


def test_goes_on_with_the_same_actions_after_a_load() -> None:
    agent, restored = RandomAgent(SPACES, 1), RandomAgent(SPACES, 2)
    agent.policy({}, observe(7), "train")
    restored.load(agent.save())
    expected, found = (one.policy({}, observe(20), "train")[1] for one in (agent, restored))
    for key, value in expected.items():
        np.testing.assert_array_equal(value, found[key], key)


def test_reports_the_reward() -> None:
    agent = RandomAgent(SPACES)
    assert agent.report(agent.init_report(1), {"reward": np.array([[2.0, 4.0]])})[1] == {"reward": 3}
