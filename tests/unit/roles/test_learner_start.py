"""What the learner begins from: nothing, its newest snapshot, or the weights of another run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dreamfleet.agent.parameters import optimizer_to_reset
from dreamfleet.checkpoint.snapshot import Snapshots
from dreamfleet.core.errors import (
    BadInput,
    Disconnected,
)
from dreamfleet.core.interfaces import Arrays
from support.learners import Learner


def test_a_fresh_run_restores_nothing(tmp_path) -> None:
    learner = Learner(tmp_path)
    learner.role.restore()
    assert (learner.role.updates, learner.agent.loaded, learner.report.events) == (0, {}, [])


def test_restoring_continues_agent_and_counter(tmp_path) -> None:
    learner = Learner(tmp_path)
    for _ in range(3):
        learner.role.step()
    learner.role.save()
    restored = Learner(tmp_path)
    restored.role.restore()
    assert restored.role.updates == 3
    assert restored.agent.loaded["weights"].tolist() == [0, 1, 2]
    assert restored.report.events == [("restore", {"snapshot": "000000001234", "step": 1234, "updates": 3})]
    restored.role.save()
    assert restored.report.event_names() == ["restore"]


def test_steps_that_a_restarted_replay_lost_still_count(tmp_path) -> None:
    learner = Learner(tmp_path)
    learner.role.step()
    learner.stored(2050, lost=50)
    learner.role.save()
    manifest = Snapshots(tmp_path).manifest()
    assert (manifest["step"], manifest["lost"]) == (2100, 50)
    restored = Learner(tmp_path)
    restored.role.restore()
    restored.stored(2070, lost=50)
    restored.role.step()
    restored.role.save()
    assert Snapshots(tmp_path).manifest()["step"] == 2120


def test_replay_is_sent_back_to_where_the_agent_begins(tmp_path) -> None:
    learner = Learner(tmp_path)
    learner.role.restore()
    learner.role.step()
    learner.role.save()
    restored = Learner(tmp_path)
    restored.role.restore()
    sent = [{key: int(value) for key, value in call.items()} for call in (learner.calls[0][1], restored.calls[0][1])]
    assert sent == [{"snapshot": -1, "step": 0, "updates": 0}, {"snapshot": 1234, "step": 1234, "updates": 1}]
    assert restored.report.event_names() == ["restore"]


def test_a_learner_asks_until_replay_has_gone_back(tmp_path) -> None:
    learner = Learner(tmp_path)
    losses = [Disconnected("replay is going back"), Disconnected("the connection was lost")]

    def go_back(point: Arrays) -> Arrays:
        if losses:
            raise losses.pop(0)
        return {"step": point["step"]}

    learner.clients.sampler.answers["go_back"] = go_back  # type: ignore[attr-defined]
    learner.role.restore()
    assert learner.methods() == ["go_back"] * 3


def test_what_replay_lacks_of_a_snapshot_is_said_once(tmp_path) -> None:
    learner = Learner(tmp_path)
    learner.role.step()
    learner.role.save()
    restored = Learner(tmp_path)
    restored.lacks = 1234
    restored.role.restore()
    reason = "replay has no part of snapshot 1234"
    (lost,) = [detail for event, detail in restored.report.events if event == "steps_lost"]
    assert lost == {"steps": 1234, "reason": reason}
    (warning,) = [detail["text"] for event, detail in restored.report.events if event == "warning"]
    assert warning.startswith(f"{reason} in its run folder, so it begins empty and 1234 steps are lost: ")


def test_a_damaged_snapshot_is_an_event(tmp_path) -> None:
    learner = Learner(tmp_path)
    learner.role.step()
    learner.role.save()
    learner.stored(2000)
    learner.role.save()
    (tmp_path / "snapshots" / "000000002000" / "agent.safetensors").write_bytes(b"")
    restored = Learner(tmp_path)
    restored.role.restore()
    (event, detail), *_ = restored.report.events
    assert (event, detail["snapshot"]) == ("damaged", "000000002000")
    assert detail["reason"].startswith("agent.safetensors has 0 bytes instead of")
    assert restored.report.event_names() == ["damaged", "restore"]


def test_a_run_that_begins_may_start_from_the_weights_of_another(tmp_path) -> None:
    learner = Learner(tmp_path / "first")
    learner.agent.save = lambda: {"weights": np.full(3, 7.0), "count": np.array(5)}  # type: ignore[method-assign]
    learner.role.step()
    learner.role.save()
    second = Learner(tmp_path / "second", from_checkpoint=str(tmp_path / "first"), from_checkpoint_regex="wei")
    second.agent.save = lambda: {"weights": np.zeros(3), "count": np.array(0)}  # type: ignore[method-assign]
    second.role.restore()
    assert second.agent.loaded["weights"].tolist() == [7, 7, 7]
    assert (second.agent.loaded["count"], second.role.updates) == (0, 0)
    (_, detail), (_, said) = second.report.events
    assert detail == {"taken": ["weights"], "skipped": ["count"], "mismatched": []}
    assert "1 arrays loaded; 1 skipped" in said["text"]
    second.role.step()
    second.role.save()
    again = Learner(tmp_path / "second", from_checkpoint=str(tmp_path / "gone"))
    again.role.restore()  # it has a snapshot of its own by now
    assert again.role.updates == 1


OPTIMIZER = ["opt/1/step", *(f"opt/1/{kind}/{part}" for kind in ("square", "momentum") for part in ("body", "head"))]


def agent_arrays(value: float, head: int) -> Arrays:
    """A body of two numbers, a head of `head` numbers, and an optimiser of both."""
    sizes = {"world/body": 2, "world/head": head, "acted": 1}
    sizes |= {name: {"body": 2, "head": head}.get(name.split("/")[-1], 1) for name in OPTIMIZER}
    return {name: np.full(size, value) for name, size in sizes.items()}


def begin_from_another(tmp_path: Path, head: int, pattern: str) -> Learner:
    """A learner of an agent of zeros, with a head of three, that begins from one of sevens."""
    first = Learner(tmp_path / "first")
    first.agent.save = lambda: agent_arrays(7.0, head)  # type: ignore[method-assign]
    first.role.step()
    first.role.save()
    second = Learner(tmp_path / "second", from_checkpoint=str(tmp_path / "first"), from_checkpoint_regex=pattern)
    new = agent_arrays(0.0, 3)
    second.agent.save = lambda: new  # type: ignore[method-assign]
    second.agent.optimizer_to_reset = lambda taken: optimizer_to_reset(list(new), taken)  # type: ignore[attr-defined]
    second.role.restore()
    return second


@pytest.mark.parametrize(
    ("head", "pattern", "loaded", "said"),
    [
        (3, ".*", True, False),
        (3, "world/|opt/", True, False),
        (4, ".*", False, True),  # the head does not fit
        (3, "body|opt/", False, True),  # the head is not asked for
        (3, "world/", False, False),  # the optimiser is not asked for
    ],
)
def test_an_optimiser_is_loaded_with_all_that_it_trains_and_else_begins_at_zero(
    tmp_path, head: int, pattern: str, loaded: bool, said: bool
) -> None:
    learner = begin_from_another(tmp_path, head, pattern)
    assert learner.agent.loaded["world/body"].tolist() == [7, 7]
    for name in OPTIMIZER:
        assert learner.agent.loaded[name].any() == loaded, name
    (_, detail), (_, warning) = learner.report.events
    assert set(OPTIMIZER) & set(detail["taken"]) == (set(OPTIMIZER) if loaded else set())
    assert bool(detail.get("reset")) == said
    words = "the optimiser is reset: its moments, its step and so the warm-up begin at zero"
    assert (words in warning["text"]) == said


def test_an_agent_of_an_earlier_version_is_read_under_the_names_of_today(tmp_path) -> None:
    first = Learner(tmp_path / "first")
    former = {name.replace("opt/1", "opt/2"): value for name, value in agent_arrays(7.0, 3).items()}
    first.agent.save = lambda: former  # type: ignore[method-assign]
    first.role.step()
    first.role.save()
    second = Learner(tmp_path / "second", from_checkpoint=str(tmp_path / "first"))
    second.agent.save = lambda: agent_arrays(0.0, 3)  # type: ignore[method-assign]
    second.agent.upgrade_arrays = lambda data: {  # type: ignore[attr-defined]
        name.replace("opt/2", "opt/1"): value for name, value in data.items()
    }
    second.role.restore()
    assert all(second.agent.loaded[name].all() for name in agent_arrays(0.0, 3))
    (_, detail), _ = second.report.events
    assert detail["mismatched"] == []


def test_an_optimiser_without_what_it_trains_is_refused(tmp_path) -> None:
    with pytest.raises(
        BadInput, match=r"from_checkpoint_regex='opt/': .* only together with every array that it trains"
    ):
        begin_from_another(tmp_path, 3, "opt/")
