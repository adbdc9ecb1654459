"""What a replay is said to need, against numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from dreamfleet.core.spaces import Space
from dreamfleet.replay.columns import step_bytes
from dreamfleet.replay.projection import Projection, chunk_bytes, project, stored_layout
from dreamfleet.replay.store import ReplayOptions, ReplayStore

OBS = {"image": Space(np.uint8, (8, 8)), "reward": Space(np.float32), "log/score": Space(np.float32)}
ACT = {"action": Space(np.int32, (2,), 0, 5), "reset": Space(bool)}
LAYOUT = stored_layout(OBS, ACT)
STEP_BYTES = 64 + 4 + 8


def options(**changes: object) -> ReplayOptions:
    values: dict = {"length": 5, "capacity": 1000, "chunksize": 10, **changes}
    return ReplayOptions(**values)


def test_what_only_the_logger_gets_and_the_reset_are_not_stored():
    assert sorted(LAYOUT) == ["action", "image", "reward"]
    assert step_bytes(LAYOUT) == STEP_BYTES


def test_a_run_that_ends_before_replay_is_full_needs_its_steps():
    assert project(LAYOUT, options(), 400, 4) == Projection(400, 400 * (STEP_BYTES + 64), 400 * (STEP_BYTES + 16))


def test_a_full_replay_also_holds_chunks_that_are_partly_in_use():
    # 2 streams of 500 windows: 504 consecutive steps touch at most 52 chunks of 10.
    projection = project(LAYOUT, options(), 10**9, 2)
    assert projection.steps == 2 * 52 * 10
    assert projection.memory_bytes == 1040 * STEP_BYTES + 1000 * 64


def test_bytes_bound_the_steps_when_they_are_reached_first():
    projection = project(LAYOUT, options(size_bytes=100 * STEP_BYTES + 5), 10**9, 2)
    assert projection.steps == 100


def test_latents_count_once_in_memory_and_twice_on_disk():
    without, with_latents = (project(LAYOUT, options(), 400, 4, latent_bytes) for latent_bytes in (0, 100))
    assert with_latents.memory_bytes - without.memory_bytes == 400 * 100
    assert with_latents.disk_bytes - without.disk_bytes == 400 * 200


@pytest.mark.parametrize("name", ["priority", "recency"])
def test_selectors_that_keep_tables_need_more(name):
    plain, more = (project(LAYOUT, options(fracs=fracs), 400, 4) for fracs in ({"uniform": 1.0}, {name: 1.0}))
    assert more.memory_bytes > plain.memory_bytes


def test_a_chunk_holds_at_least_one_window():
    assert chunk_bytes(LAYOUT, options(chunksize=3)) == 5 * STEP_BYTES


def test_projections_add_up():
    assert Projection(1, 2, 3) + Projection(10, 20, 30) == Projection(11, 22, 33)


def test_a_real_replay_stays_within_what_was_projected():
    store = ReplayStore(options())
    rows = {"stream": np.arange(3), "image": np.zeros((3, 8, 8), np.uint8), "reward": np.zeros(3, np.float32)}
    rows["action"] = np.zeros((3, 2), np.int32)
    most = 0.0
    for _ in range(1000):
        store.add_batch(rows)
        most = max(most, store.stats()["ram_gb"])
    projected = project(LAYOUT, store.options, 3000, 3)
    assert 0.9 * projected.memory_bytes < most * 1e9 + 1000 * 64 <= projected.memory_bytes
