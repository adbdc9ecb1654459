"""Which episodes are recorded, from hand-written steps."""

from __future__ import annotations

import numpy as np
import pytest

from dreamfleet.core.interfaces import Arrays
from dreamfleet.metrics import recorder as recording
from dreamfleet.metrics.recorder import EpisodeRecorder


@pytest.fixture
def recorder(manual_time) -> EpisodeRecorder:
    return EpisodeRecorder(30.0, 60.0, manual_time)


def step(recorder: EpisodeRecorder, values: dict[int, int], first: int = -1, last: int = -1) -> Arrays | None:
    """One step of the environments in `values`, whose images are of those values; which one begins, and ends."""
    envs = np.array(list(values), np.int32)
    image = np.array(list(values.values()), np.uint8)[:, None, None, None].repeat(2, 1).repeat(3, 2)
    data = {"image": image, "vector": np.zeros((len(envs), 4), np.float32), "mask": np.zeros((len(envs), 4), np.uint8)}
    return recorder.add(envs, {**data, "is_first": envs == first, "is_last": envs == last})


def shown(episode: Arrays | None) -> list[int]:
    assert episode is not None
    assert episode.keys() == {"image"}
    assert episode["image"].shape[1:] == (2, 3, 1)
    return episode["image"][:, 0, 0, 0].tolist()


def test_one_episode_is_followed_from_its_first_step_to_its_last(recorder) -> None:
    assert step(recorder, {4: 1, 7: 2}) is None  # nobody begins
    assert step(recorder, {4: 3, 7: 4}, first=7) is None
    assert step(recorder, {4: 5, 7: 6}, first=4) is None
    assert step(recorder, {4: 9}, last=4) is None
    assert shown(step(recorder, {7: 8}, last=7)) == [4, 6, 8]


def test_the_next_one_is_recorded_when_its_time_has_come(recorder, manual_time) -> None:
    step(recorder, {0: 1}, first=0)
    assert shown(step(recorder, {0: 2}, last=0)) == [1, 2]
    manual_time.advance(29)
    step(recorder, {0: 3}, first=0)
    assert step(recorder, {0: 4}, last=0) is None
    manual_time.advance(1)
    step(recorder, {1: 5}, first=1)
    assert shown(step(recorder, {1: 6}, last=1)) == [5, 6]


def test_an_environment_that_begins_anew_is_recorded_anew(recorder) -> None:
    step(recorder, {0: 1}, first=0)
    step(recorder, {0: 2})
    step(recorder, {0: 3}, first=0)
    assert shown(step(recorder, {0: 4}, last=0)) == [3, 4]


def test_an_environment_that_has_gone_silent_is_given_up(recorder, manual_time) -> None:
    step(recorder, {0: 1}, first=0)
    manual_time.advance(61)
    assert step(recorder, {1: 2}, first=1) is None
    step(recorder, {1: 3}, first=1)
    assert shown(step(recorder, {1: 4}, last=1)) == [3, 4]


def test_of_a_long_episode_the_beginning_is_recorded(recorder, monkeypatch) -> None:
    monkeypatch.setattr(recording, "MAX_FRAMES", 3)
    step(recorder, {0: 1}, first=0)
    step(recorder, {0: 2})
    assert shown(step(recorder, {0: 3})) == [1, 2, 3]
    assert step(recorder, {0: 4}) is None


def test_a_recording_takes_no_more_than_so_much_memory(recorder, monkeypatch) -> None:
    monkeypatch.setattr(recording, "MAX_BYTES", 12)  # a frame has 6
    step(recorder, {0: 1}, first=0)
    assert shown(step(recorder, {0: 2})) == [1, 2]


def test_nothing_is_recorded_with_an_interval_of_zero_or_without_images(manual_time) -> None:
    never = EpisodeRecorder(0.0, 60.0, manual_time)
    step(never, {0: 1}, first=0)
    assert step(never, {0: 2}, last=0) is None
    blind = EpisodeRecorder(30.0, 60.0, manual_time)
    flags = {"is_first": np.array([True]), "is_last": np.array([True])}
    assert blind.add(np.array([0]), {"vector": np.zeros((1, 4), np.uint8), **flags}) is None


def test_frames_are_copies(recorder) -> None:
    image = np.full((1, 2, 3, 1), 7, np.uint8)
    recorder.add(np.array([0]), {"image": image, "is_first": np.array([True]), "is_last": np.array([False])})
    image[:] = 0
    assert shown(step(recorder, {0: 8}, last=0)) == [7, 8]
