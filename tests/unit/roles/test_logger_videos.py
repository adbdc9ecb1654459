"""The way of a video from an environment or the agent to the sinks."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from dreamfleet.config.args import FleetArgs
from dreamfleet.core.errors import Disconnected
from dreamfleet.core.interfaces import Arrays
from dreamfleet.metrics.aggregate import MetricsLogger
from dreamfleet.roles.actor import ActorRole
from dreamfleet.roles.learner import LearnerRole
from dreamfleet.roles.learner_clients import LearnerClients
from dreamfleet.roles.logger import LoggerRole
from dreamfleet.roles.logger_client import LoggerClient
from support.fakes import FakeClient, SummingAgent, make_context


class Watched:
    """An actor with one environment of each mode, whose images count the steps."""

    def __init__(self, logdir: Path, **args: Any) -> None:
        self.logger = FakeClient()
        context, _ = make_context("actor")
        flat = FleetArgs(logdir=logdir, log_every=0, **args)
        self.role = ActorRole(SummingAgent(), flat, FakeClient(), self.logger, context, lambda error: None)
        joined = self.role.join({"env": np.array([0], np.int32), "stream": np.array([-1])})
        self.place = {"slot": joined["slot"], "stream": joined["stream"]}

    def play(self, length: int, evaluate: bool = False) -> None:
        for step in range(length):
            batch: Arrays = {
                **self.place,
                "value": np.zeros(1),
                "image": np.full((1, 4, 6, 3), step, np.uint8),
                "reward": np.zeros(1, np.float32),
                "is_first": np.array([step == 0]),
                "is_last": np.array([step == length - 1]),
                "is_eval": np.array([evaluate]),
            }
            act, after = (
                (self.role.act_eval, self.role.after_act_eval) if evaluate else (self.role.act, self.role.after_act)
            )
            after(batch, act(batch, 1), 1)


def test_the_actor_sends_an_episode_of_each_mode_as_a_video_and_no_more_until_it_is_time(tmp_path) -> None:
    actor = Watched(tmp_path)
    actor.play(5)
    actor.play(4)
    actor.play(3, evaluate=True)
    first, second = actor.logger.sent("video")
    assert {name: video[:, 0, 0, 0].tolist() for name, video in first.items()} == {"episode/image": [0, 1, 2, 3, 4]}
    assert {name: video.shape for name, video in second.items()} == {"eval/episode/image": (3, 4, 6, 3)}


def test_no_videos_are_sent_when_none_are_wanted(tmp_path) -> None:
    actor = Watched(tmp_path, logger_video_every=0.0)
    actor.play(5)
    assert actor.logger.sent("video") == []


class Showing(SummingAgent):
    def report(self, carry: int, batch: Arrays) -> tuple[int, Any]:
        video = np.full((3, 8, 8, 3), carry, np.uint8)
        return carry + 1, {"error": 0.5, "openloop/image": video}


def test_the_learner_sends_the_videos_of_the_first_batch_of_a_report(tmp_path) -> None:
    def sample(_: Arrays) -> Arrays:
        return {"value": np.zeros((2, 3)), "stepid": np.zeros((2, 3, 2), np.int64)}

    sampler = FakeClient(sample_batch_report=sample, sample_batch_eval=sample)
    replay = FakeClient(sizes=lambda _: {"eval": np.array(1)})
    clients: Any = LearnerClients(sampler, FakeClient(), replay, FakeClient())  # type: ignore[arg-type]
    context, _ = make_context("learner")
    args = FleetArgs(logdir=tmp_path, batch_size=2, batch_length=3, report_batches=3)
    learner = LearnerRole(Showing(), args, clients, context)
    learner.report()
    sent = clients.logger.sent("video")
    assert [list(videos) for videos in sent] == [["report/openloop/image"], ["eval/openloop/image"]]
    assert sent[0]["report/openloop/image"].max() == 0
    assert len(clients.logger.metrics()) == 6


def test_the_logger_hands_a_video_to_its_sinks_with_the_step_it_came_at(tmp_path) -> None:
    rows: list[Any] = []
    logger = MetricsLogger([SimpleNamespace(write=rows.append, close=lambda: None)])
    logger.step = 70
    role = LoggerRole(logger, FleetArgs(logdir=tmp_path))
    video = np.zeros((3, 8, 8, 3), np.uint8)
    role.video({"episode/image": video})
    (row,) = rows
    assert (row["step"], row["episode/image"].shape) == (70, video.shape)
    role._file.close()


class LateFuture:
    def __init__(self) -> None:
        self.here = False
        self.lost = False

    def done(self) -> bool:
        return self.here or self.lost

    def result(self, timeout_s: float = 0.0) -> None:
        self.waited_s = timeout_s
        if self.lost:
            raise Disconnected("the connection was lost")


def test_figures_wait_for_nobody_and_newer_ones_replace_those_that_could_not_be_sent() -> None:
    sent: list[LateFuture] = []

    def call(method: str, arrays: Arrays) -> LateFuture:
        assert method == "add"
        sent.append(LateFuture())
        return sent[-1]

    logger_client = LoggerClient(SimpleNamespace(call=call))  # type: ignore[arg-type]
    logger_client.send({"x": 1})
    logger_client.send({"x": 2})
    assert len(sent) == 1
    sent[0].here = True
    logger_client.send({"x": 3})
    assert len(sent) == 2
    sent[1].lost = True
    logger_client.send({"x": 4})
    assert len(sent) == 3
    sent[2].here = True
    logger_client.send_last({"x": 5}, 0.5)
    assert sent[3].waited_s == 0.5
    sent[3].lost = True
    logger_client.send_last({"x": 6})
    assert len(sent) == 5
