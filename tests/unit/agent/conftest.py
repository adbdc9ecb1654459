"""One small compiled agent for all tests that only use it."""

from __future__ import annotations

import jax
import pytest

from dreamfleet.agent.dreamer import ComputeOptions, DreamerAgent
from support.tiny_dreamer import lively, make_agent


@pytest.fixture(scope="package")
def agent() -> DreamerAgent:
    """Tests train it and act with it; none may expect it fresh. Its weights are random: the first ones give zeros."""
    agent = make_agent(compute=ComputeOptions("float32", rng="threefry2x32", priorities=True))
    names = [name for name in agent.names if name.startswith("world/")]
    world = jax.tree.leaves(lively(agent._initial).world)
    agent.load(dict(zip(names, jax.device_get(world), strict=True)), "^world/")
    return agent
