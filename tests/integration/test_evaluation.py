"""Evaluation, loading and exporting from a run folder alone."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import gymnasium
import imageio_ffmpeg
import numpy as np
import pytest

from dreamfleet import load_policy
from dreamfleet.checkpoint.arrays import load_arrays
from dreamfleet.commands.evaluate.command import EvalOptions, evaluate, show_evaluation
from dreamfleet.commands.evaluate.policies import export_policy
from dreamfleet.core.errors import BadInput, CheckpointError, ConfigError, EnvError, EnvFailed
from dreamfleet.core.statistics import bootstrap
from dreamfleet.runs import saved_run as reading
from dreamfleet.runs.liveness import is_live
from dreamfleet.runs.saved_run import read_agent
from dreamfleet.supervision.failures import details
from support.cli_fleet import dreamfleet
from support.saved_runs import add_snapshot, make_run
from support.wrapping_fakes import CROSSING, Crossing


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")


@pytest.fixture(scope="module")
def cart(tmp_path_factory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "cart"
    make_run(run, "env=gym:CartPole-v1", "seed=4")
    return run


def test_the_command_prints_one_object_and_writes_a_video(cart, tmp_path, monkeypatch) -> None:
    for desktop in ("DISPLAY", "WAYLAND_DISPLAY", "XDG_RUNTIME_DIR", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(desktop, raising=False)
    video = tmp_path / "first.mp4"
    ended = dreamfleet("eval", str(cart), "--episodes", "5", "--video", str(video), "--json", timeout_s=110)
    assert ended.returncode == 0, ended.stderr
    assert "XDG_RUNTIME_DIR" not in ended.stderr  # which pygame misses, unless it is told to draw without a desktop
    report = json.loads(ended.stdout)
    assert len(report["returns"]) == len(report["lengths"]) == 5
    assert report["returns"] == report["lengths"]  # CartPole rewards every step
    assert report["mean"] == pytest.approx(np.mean(report["returns"]))
    assert report["interval"][0] <= report["mean"] <= report["interval"][1]
    assert (report["step"], report["live"], report["env"]) == (700, False, "gym:CartPole-v1")
    frames, _ = imageio_ffmpeg.count_frames_and_secs(str(video))
    assert frames == report["lengths"][0] + 1


@pytest.mark.timeout(300)  # it waits for whatever else this machine does
def test_beside_a_live_run_it_gives_way(tmp_path) -> None:
    """In another process, whose session and priority the environment tells about."""
    run = tmp_path / "run"
    make_run(run, "agent=random", "env=support.saved_runs:PriorityEnv")
    (run / "status.json").write_text('{"state": "running"}')
    own = os.getpriority(os.PRIO_PROCESS, 0)
    report = evaluate(run, EvalOptions(2))
    assert report["live"]
    assert report["returns"] == [min(own + 12, 19)] * 2
    assert os.getpriority(os.PRIO_PROCESS, 0) == own


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_what_is_refused_beside_a_live_run_is_refused_in_the_same_words(tmp_path) -> None:
    run = tmp_path / "run"
    make_run(run, "agent=random", "env=support.saved_runs:PriorityEnv")
    (run / "status.json").write_text('{"state": "running"}')
    with pytest.raises(ConfigError, match="leave deterministic out"):
        evaluate(run, EvalOptions(1, deterministic=True))


def test_seeds_decide_the_episodes(cart) -> None:
    first, again, other = (evaluate(cart, EvalOptions(3, seed=seed)) for seed in (1, 1, 2))
    assert first["returns"] == again["returns"]
    assert first["returns"] != other["returns"]


def test_an_agent_of_a_users_own_is_evaluated(tmp_path) -> None:
    make_run(tmp_path / "run", "agent=support.saved_runs:ConstantAgent", "env=gym:CartPole-v1")
    report = evaluate(tmp_path / "run", EvalOptions(4))
    assert all(8 <= length <= 11 for length in report["lengths"])  # always to the right: it falls at once
    text = show_evaluation(report)
    assert "4 episodes of gym:CartPole-v1" in text
    assert max(len(line) for line in text.splitlines()[1:]) <= 80
    action, _ = load_policy(tmp_path / "run")(np.zeros(4))
    assert action == 1


def test_a_random_agent_needs_no_snapshot_and_other_tasks_can_be_played(tmp_path) -> None:
    make_run(tmp_path / "run", "agent=random", "env=catch")
    shutil.rmtree(tmp_path / "run" / "snapshots")
    report = evaluate(tmp_path / "run", EvalOptions(11))
    assert report["lengths"] == [9] * 11
    assert set(report["returns"]) == {-1.0, 1.0}
    assert evaluate(tmp_path / "run", EvalOptions(2, env="user_package.walks:several"))["lengths"] == [15, 15]


def test_an_environment_that_fails_is_named_with_the_line(tmp_path) -> None:
    make_run(tmp_path / "run", "agent=random", "env=catch")
    shutil.rmtree(tmp_path / "run" / "snapshots")
    for name, words in (
        (
            "support.user_envs:raising",
            r"environment 'support.user_envs:raising' cannot be made: ValueError: .*user_envs\.py:\d+ in rais",
        ),
        (
            "support.faulty_envs:EveryStepRaises",
            r"environment 'support.faulty_envs:Ev.*' failed: RuntimeError: .*faulty_envs\.py:\d+ in st",
        ),
    ):
        with pytest.raises(EnvFailed, match=words) as raised:
            evaluate(tmp_path / "run", EvalOptions(1, env=name))
        assert details(raised.value).startswith("Traceback")


def test_an_image_is_filmed_as_the_agent_sees_it(tmp_path) -> None:
    make_run(tmp_path / "run", "agent=random", "env=catch")
    report = evaluate(tmp_path / "run", EvalOptions(1, video=tmp_path / "a.mp4"))
    assert imageio_ffmpeg.count_frames_and_secs(report["video"])[0] == 10
    assert "one episode: no interval" in show_evaluation(report)


@pytest.mark.parametrize(
    ("overrides", "options", "kind", "message"),
    [
        (["env=bandit"], EvalOptions(1, video=Path("v.mp4")), ConfigError, "no image among its observations"),
        (["env=bandit"], EvalOptions(1, video=Path("v.avi")), BadInput, r"videos are written as \.mp4"),
        (["env=bandit"], EvalOptions(1, video=Path("no/such/v.mp4")), BadInput, "there is no folder"),
        (["env=bandit"], EvalOptions(1, deterministic=True), ConfigError, "leave deterministic out"),
        (["env=bandit"], EvalOptions(1, seed=-1), BadInput, "whole numbers from 0 on"),
        (["env=bandit"], EvalOptions(1, env="bandid"), ConfigError, "did you mean 'bandit'"),
        (["env=support.saved_runs:make_run"], EvalOptions(1), ConfigError, "needs a value for its parameter"),
        (["env=support.breaking_env:no_such"], EvalOptions(1), ConfigError, "no callable"),
    ],
)
def test_what_cannot_be_evaluated_is_refused_in_one_line(tmp_path, overrides, options, kind, message) -> None:
    make_run(tmp_path / "run", "agent=random", *overrides)
    with pytest.raises(kind, match=message):
        evaluate(tmp_path / "run", options)


def test_a_folder_without_a_run_or_a_snapshot_is_refused(tmp_path) -> None:
    with pytest.raises(BadInput, match=r"is not a run folder: it has no config\.yaml"):
        evaluate(tmp_path, EvalOptions())
    make_run(tmp_path / "run", "agent=support.saved_runs:ConstantAgent", "env=catch")
    shutil.rmtree(tmp_path / "run" / "snapshots")
    with pytest.raises(BadInput, match="has no snapshot yet"):
        evaluate(tmp_path / "run", EvalOptions())
    with pytest.raises(BadInput, match="there is no such file"):
        load_policy(tmp_path / "policy.zip")
    (tmp_path / "policy.zip").write_text("something else")
    with pytest.raises(BadInput, match="is not an exported policy"):
        load_policy(tmp_path / "policy.zip")


def test_an_environment_that_does_not_fit_the_agent_is_refused(cart) -> None:
    with pytest.raises(ConfigError, match="--env gym:Pendulum-v1 does not suit the agent of this run"):
        evaluate(cart, EvalOptions(1, env="gym:Pendulum-v1"))


def test_an_environment_that_raises_ends_with_its_error(tmp_path) -> None:
    make_run(tmp_path / "run", "agent=random", "env=support.faulty_envs:StepRaises")
    with pytest.raises(EnvError, match="failed: "):
        evaluate(tmp_path / "run", EvalOptions(1))


def test_only_dreamers_are_exported(tmp_path, cart) -> None:
    make_run(tmp_path / "run", "agent=random", "env=catch")
    with pytest.raises(ConfigError, match="agent=random cannot be exported"):
        export_policy(tmp_path / "run", tmp_path / "p.zip")
    with pytest.raises(BadInput, match="name a file in a folder that exists"):
        export_policy(cart, tmp_path / "no" / "p.zip")


def test_a_policy_takes_gymnasiums_observations_and_gives_its_actions(tmp_path) -> None:
    make_run(tmp_path / "run", "env=gym:Pendulum-v1")
    export_policy(tmp_path / "run", tmp_path / "p.zip")
    env = gymnasium.make("Pendulum-v1")
    obs, _ = env.reset(seed=0)
    saved, exported = load_policy(tmp_path / "run"), load_policy(tmp_path / "p.zip")
    states = [None, None]
    largest = 0.0
    for _ in range(30):
        action, states[0] = saved(obs, states[0])
        same, states[1] = exported(obs, states[1])
        np.testing.assert_array_equal(action, same)
        assert env.action_space.contains(action)
        largest = max(largest, float(np.abs(action).max()))
        obs = env.step(action)[0]
    assert largest > 1  # torques go up to 2


def test_a_policy_takes_texts_and_sequences_as_the_environment_shows_them(tmp_path) -> None:
    make_run(tmp_path / "run", *CROSSING)
    assert evaluate(tmp_path / "run", EvalOptions(2))["returns"] == [21.0, 21.0]  # six times 1 + 5 / 2
    export_policy(tmp_path / "run", tmp_path / "p.zip")
    saved, exported = load_policy(tmp_path / "run"), load_policy(tmp_path / "p.zip")
    env = Crossing()
    obs, _ = env.reset(seed=0)
    states = [None, None]
    for _ in range(6):
        action, states[0] = saved(obs, states[0])
        same, states[1] = exported(obs, states[1])
        np.testing.assert_array_equal(action, same)
        assert env.action_space.contains(action)
        obs = env.step(action)[0]


def test_a_vectorised_environment_is_evaluated_inside_of_its_wrappers(tmp_path) -> None:
    wrapper = "gymnasium.wrappers.vector:RecordEpisodeStatistics"
    make_run(tmp_path / "run", "agent=random", "env=gym:CartPole-v1", "env.vector=true", f"env.wrappers=[{wrapper}]")
    assert len(evaluate(tmp_path / "run", EvalOptions(3))["lengths"]) == 3


def test_a_snapshot_that_is_replaced_while_it_is_read_is_read_again(tmp_path, monkeypatch) -> None:
    make_run(tmp_path, "agent=support.saved_runs:ConstantAgent", "env=catch")

    def replaced_first(path: Path) -> dict[str, np.ndarray]:
        if path.parent.name.endswith("700"):
            for step in (800, 900):  # two are kept, so the one that is being read goes
                add_snapshot(tmp_path, {"choice": np.array(2)}, step)
        return load_arrays(path)

    monkeypatch.setattr(reading, "load_arrays", replaced_first)
    found = read_agent(tmp_path)
    assert (found.step, int(found.arrays["choice"])) == (900, 2)


def test_a_damaged_snapshot_is_not_tried_for_ever(tmp_path) -> None:
    make_run(tmp_path, "agent=support.saved_runs:ConstantAgent", "env=catch")
    (tmp_path / "snapshots" / "000000000700" / "agent.safetensors").write_bytes(b"half")
    with pytest.raises(CheckpointError, match=r"can be used: 000000000700: agent\.safetensors has 4 bytes"):
        read_agent(tmp_path)


def test_an_agent_that_is_not_finite_is_never_played_loaded_or_exported(tmp_path, cart, monkeypatch, capsys) -> None:
    monkeypatch.setattr("dreamfleet.checkpoint.snapshot._reported", set())
    make_run(tmp_path, "agent=support.saved_runs:ConstantAgent", "env=gym:CartPole-v1")
    add_snapshot(tmp_path, {"choice": np.array(0), "weights": np.array([1.0, np.nan])}, 800)
    assert evaluate(tmp_path, EvalOptions(1))["step"] == 700
    action, _ = load_policy(tmp_path)(np.zeros(4))
    assert action == 1  # as the snapshot before says
    assert "snapshot 000000000800 is damaged and not used: agent.safetensors is not finite in weights" in (
        capsys.readouterr().err
    )
    dreamer = shutil.copytree(cart, tmp_path / "dreamer")
    arrays = load_arrays(dreamer / "snapshots" / "000000000700" / "agent.safetensors")
    add_snapshot(dreamer, {**arrays, "world/pol/trunk": np.array([np.inf], np.float32)}, 800)
    assert read_agent(dreamer).step == 700
    assert export_policy(dreamer, tmp_path / "policy.zip") == 700


@pytest.mark.parametrize(
    ("state", "age_s", "live"),
    [("running", 1, True), ("running", 60, False), ("done", 1, False), ("starting", 1, True)],
)
def test_a_run_is_live_while_its_status_is_fresh(tmp_path, state, age_s, live) -> None:
    assert not is_live(tmp_path)
    path = tmp_path / "status.json"
    path.write_text(json.dumps({"state": state}))
    os.utime(path, (time.time() - age_s,) * 2)
    assert is_live(tmp_path) is live


def test_the_interval_is_that_of_the_mean() -> None:
    values = np.random.default_rng(3).normal(10, 2, 200)
    low, high = bootstrap(values.tolist())
    error = 1.96 * values.std() / np.sqrt(200)
    assert low == pytest.approx(values.mean() - error, abs=0.03)
    assert high == pytest.approx(values.mean() + error, abs=0.03)
    assert bootstrap([5.0]) == [5.0, 5.0]
