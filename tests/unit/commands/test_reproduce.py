"""Published experiments: which runs they are, what their score is, and how it compares."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dreamfleet.commands.plot.curves import Curve
from dreamfleet.commands.reproduce import command as reproduction
from dreamfleet.commands.reproduce.command import ReproductionPlan, make_plan, score, score_text, train_all
from dreamfleet.commands.reproduce.scores import Score, ScoreComparison, reached, score_at
from dreamfleet.config.load import parse_overrides, save_config
from dreamfleet.core.errors import BadInput, ConfigError

FRAMES = 40_000


def plan_of(
    folder: Path,
    seeds: int = 2,
    frames: int | None = FRAMES,
    words: tuple[str, ...] = (),
    reference: Path | None = None,
) -> ReproductionPlan:
    return make_plan("atari100k", "pong", words, seeds, frames, folder, reference)


def write_run(plan: ReproductionPlan, seed: int, returns: list[float]) -> None:
    """An episode every thousand agent steps, one a minute."""
    run = plan.runs[seed]
    run.mkdir(parents=True)
    save_config(parse_overrides(plan.overrides(seed)), run / "config.yaml")
    rows = [
        {"step": 1000 * (number + 1), "time": 60.0 * (number + 1), "mode": "train", "return": value, "length": 1}
        for number, value in enumerate(returns)
    ]
    (run / "episodes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (run / "events.jsonl").write_text(json.dumps({"time": 0.0, "role": "logger", "event": "start"}) + "\n")


def write_device_time(run: Path, *rows: tuple[float, float]) -> None:
    """Seconds for which the device has been busy and idle, one row each, after one of another kind."""
    names = ("device/busy_s", "device/idle_s")  # as the learner's test has them
    lines = [{"step": 1, "time": 0.0}, *({"step": 1, **dict(zip(names, row, strict=True))} for row in rows)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def write_reference(path: Path, finals: list[float]) -> Path:
    xs = [4000 * (number + 1) for number in range(10)]
    rows = [
        {"task": "atari_pong", "method": "dreamerv3", "seed": seed, "xs": xs, "ys": [0.0] * 9 + [final]}
        for seed, final in enumerate(finals)
    ]
    path.write_bytes(gzip.compress(json.dumps(rows).encode()))
    return path


def curve(*points: tuple[float, float]) -> Curve:
    return Curve("t", "l", np.array([x for x, _ in points], float), np.array([y for _, y in points], float))


def test_a_protocol_says_everything_about_its_runs(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, frames=None)
    config = parse_overrides(plan.overrides(1))
    assert (plan.frames, plan.steps, config.run.steps, config.seed) == (400_000, 100_000, 100_000, 1)
    assert (config.env.name, config.env.repeat, config.run.envs, config.run.train_ratio) == (
        "atari100k:pong",
        4,
        1,
        256,
    )
    assert config.env.kwargs == {"noops": 0, "actions": "all", "length": 100_000}
    assert (config.agent.size, config.agent.policy.unimix) == ("size200m", 0.01)
    assert [run.name for run in plan.runs] == ["seed-0", "seed-1"]


def test_control_tasks_have_the_settings_of_their_curves_and_not_of_the_newest_code(tmp_path: Path) -> None:
    config = parse_overrides(make_plan("dmc_proprio", "cartpole_swingup", [], 1, None, tmp_path).overrides(0))
    assert (config.env.repeat, config.run.train_ratio, config.agent.size) == (2, 512, "size12m")
    assert config.env.kwargs == {"proprio": True, "image": False}


def test_what_does_not_make_it_another_experiment_can_be_changed(tmp_path: Path) -> None:
    words = ("size12m", "run.envs=2", "cpu", "agent.policy.unimix=0", "env.kwargs.noops=30")
    config = parse_overrides(plan_of(tmp_path, words=words).overrides(0))
    assert (config.agent.size, config.run.envs, config.jax.platform) == ("size12m", 2, "cpu")
    assert (config.agent.policy.unimix, config.env.kwargs["noops"]) == (0, 30)


@pytest.mark.parametrize(
    ("word", "key"),
    [
        ("agent.size=size12m", "agent.size"),
        ("env.kwargs.noops=30", "env.kwargs.noops"),
        ("run.envs=2", "run.envs"),
        ("run.train_ratio=32", "run.train_ratio"),
        ("batch_length=32", "batch_length"),
    ],
)
def test_runs_of_another_experiment_are_not_taken_for_this_one(tmp_path: Path, word: str, key: str) -> None:
    begun = plan_of(tmp_path, words=(word,))
    write_run(begun, 1, [0.0])
    with pytest.raises(BadInput, match=rf"seed-1 was begun with another {key}: .* choose another --out"):
        plan_of(tmp_path)
    assert plan_of(tmp_path, words=(word, "cpu"), frames=20_000).runs == begun.runs


@pytest.mark.parametrize("word", ["env.restarts=1000", "env.step_timeout_s=300", "env.vector=true"])
def test_how_an_environment_is_run_makes_no_other_experiment(tmp_path: Path, word: str) -> None:
    """A message recommends some of these when a run has ended."""
    begun = plan_of(tmp_path)
    write_run(begun, 1, [0.0])
    assert plan_of(tmp_path, words=(word,)).runs == begun.runs


@pytest.mark.parametrize(
    ("suite", "frames", "steps"),
    [
        ("atari", 200_000_000, 50_000_000),
        ("atari100k", 400_000, 100_000),
        ("crafter", 1_000_000, 1_000_000),
        ("dmc_proprio", 490_000, 245_000),
        ("dmc_vision", 1_000_000, 500_000),
        ("dmlab", 100_000_000, 25_000_000),
        ("minecraft", 100_000_000, 100_000_000),
        ("procgen", 50_000_000, 50_000_000),
    ],
)
def test_the_budget_is_that_of_the_published_curves(suite: str, frames: int, steps: int, tmp_path: Path) -> None:
    plan = make_plan(suite, "some_task", [], 1, None, tmp_path)
    assert (plan.frames, plan.steps) == (frames, steps)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("minigrid", "pong", [], 1, None), "no protocol for suite 'minigrid': there are atari, atari100k"),
        (("atari100k", "pong", [], 1, 400_001), "go from 1 to 400000"),
        (("atari100k", "pong", [], 1, 0), "go from 1 to 400000"),
    ],
)
def test_what_has_no_protocol_is_refused(tmp_path: Path, arguments: Any, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        make_plan(*arguments, tmp_path)


@pytest.mark.parametrize("word", ["seed=3", "env.repeat=2", "run.steps=5000", "env=atari100k:boxing"])
def test_what_makes_it_another_experiment_is_refused(tmp_path: Path, word: str) -> None:
    with pytest.raises(BadInput, match="is not the published protocol"):
        plan_of(tmp_path, words=(word,))


def test_a_repeat_that_is_the_suite_s_own_may_be_said(tmp_path: Path) -> None:
    assert "env.repeat=1" in make_plan("crafter", "reward", ["env.repeat=1"], 1, None, tmp_path).overrides(0)


def test_a_misspelt_setting_is_found_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"run\.envz"):
        plan_of(tmp_path, words=("run.envz=3",))


def test_published_curves_of_other_tasks_are_found_before_anything_starts(tmp_path: Path) -> None:
    published = write_reference(tmp_path / "published.json.gz", [1.0])
    with pytest.raises(BadInput, match="has no curve of atari100k:boxing: it has atari_pong"):
        make_plan("atari100k", "boxing", [], 1, None, tmp_path, published)
    with pytest.raises(BadInput, match=r"nowhere\.json"):
        plan_of(tmp_path, reference=tmp_path / "nowhere.json")
    with pytest.raises(BadInput, match=r"between 45,000 and 50,000 frames, the last one at 40,000"):
        plan_of(tmp_path, frames=50_000, reference=published)


def test_the_score_is_the_mean_of_the_episodes_in_the_window() -> None:
    found = score_at([curve((899, 50), (900, 50), (901, 1), (1000, 3), (1001, 70))], 1000)
    assert found == Score(2.0, (2.0,), None, (2,))


def test_the_interval_is_of_the_mean_over_seeds() -> None:
    found = score_at([curve((1000, value)) for value in (1, 2, 3, 4)], 1000)
    assert found.mean == 2.5
    assert found.interval is not None
    low, high = found.interval
    assert 1 <= low < 2.0
    assert 3.0 < high <= 4


def test_a_run_that_is_not_there_yet_has_no_score() -> None:
    with pytest.raises(BadInput, match=r"between 900 and 1,000 frames, the last one at 500"):
        score_at([curve((500, 1))], 1000)


def test_an_episode_longer_than_the_window_leaves_a_run_with_the_one_before() -> None:
    later, never = curve((100, 7), (500, 1), (1001, 9)), curve((100, 7), (500, 2))
    assert score_at([later, curve((950, 3), (990, 5))], 1000) == Score(2.5, (1.0, 4.0), [1.0, 4.0], (0, 2))
    assert score_at([later, never], 1000, [False, True]).seeds == (1.0, 2.0)
    for unknown, over in ((never, False), (curve((1001, 9)), True), (curve((1000.5, 9)), False)):
        with pytest.raises(BadInput, match="no episode has ended between 900 and 1,000 frames"):
            score_at([unknown], 1000, [over])


@pytest.mark.parametrize(
    ("mean", "word"), [(9.9, "below"), (10, "inside"), (15, "inside"), (20, "inside"), (20.1, "above")]
)
def test_the_verdict_compares_with_the_published_seeds(mean: float, word: str) -> None:
    published = Score(15, (10, 20), None, (1, 1))
    ours = Score(mean, (mean,), None, (1,))
    assert ScoreComparison(ours, published).word == word
    assert ScoreComparison(ours, None).word == "unknown"


def test_a_score_is_reached_when_a_window_is_as_good() -> None:
    found = curve((50, 9), (150, 0), (210, 9), (220, 9))
    hours = np.array([1.0, 2.0, 3.0, 4.0])
    assert reached(found, hours, 1000, 6) == 4.0, "not by one good episode at the start, and not before the mean is"
    assert reached(found, hours, 1000, 7) is None


def test_runs_are_scored_beside_the_published_ones(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, reference=write_reference(tmp_path / "published.json.gz", [1.0, 5.0, 6.5]))
    write_run(plan, 0, [0.0] * 9 + [4.0])
    write_run(plan, 1, [0.0] * 9 + [8.0])
    found = score(plan)
    assert (found["ours"]["mean"], found["ours"]["seeds"]) == (6.0, (4.0, 8.0))
    assert found["published"]["seeds"] == (1.0, 5.0, 6.5)
    assert found["verdict"] == "inside"
    assert found["hours_to_published"] == [None, pytest.approx(10 / 60)]
    assert found["device_share"] == [None, None]
    assert "of the time" not in score_text(found)
    assert Path(found["plot"]).stat().st_size > 1000
    text = score_text(found)
    assert "inside the range of the published seeds" in text
    assert "after never, 10m 00s" in text
    json.dumps(found)
    again = score(plan_of(tmp_path, reference=Path(found["curves"])))
    assert again["published"]["seeds"] == (4.0, 8.0), "what is written can be compared with later"


def test_a_run_at_its_end_is_scored_by_its_last_episode_if_none_has_ended_since(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, seeds=1)
    write_run(plan, 0, [1.0, 2.0, 3.0])
    with pytest.raises(BadInput, match="no episode has ended"):
        score(plan)
    (plan.runs[0] / "metrics.jsonl").write_text(json.dumps({"step": plan.steps, "time": 0.0}) + "\n")
    found = score(plan)
    assert (found["ours"]["seeds"], found["ours"]["episodes"]) == ((3.0,), (0,))
    assert "3.0 (seeds: 3.0 by its last episode before)" in score_text(found)


# Where the last episode of each published seed ends, in thousands of frames: of Up N Down, and of a usual game.
UP_N_DOWN, USUAL = (389, 326, 346, 393, 360), (398, 399, 397, 400, 396)
GAMES = (
    *("alien", "amidar", "assault", "asterix", "bank_heist", "battle_zone", "boxing", "breakout", "chopper_command"),
    *("crazy_climber", "demon_attack", "freeway", "frostbite", "gopher", "hero", "jamesbond", "kangaroo", "krull"),
    *("kung_fu_master", "ms_pacman", "pong", "private_eye", "qbert", "road_runner", "seaquest", "up_n_down"),
)


def test_all_published_games_are_scored_also_those_whose_last_episode_is_longer_than_the_window(tmp_path: Path) -> None:
    published = tmp_path / "published.json.gz"
    rows = []
    for game in GAMES:
        for seed, end in enumerate(UP_N_DOWN if game == "up_n_down" else USUAL):
            xs = [1000 * (end - before) for before in (200, 100, 0)]
            rows.append({"task": f"atari_{game}", "method": "dreamerv3", "seed": seed, "xs": xs, "ys": [1, 2, seed]})
    published.write_bytes(gzip.compress(json.dumps(rows).encode()))
    for game in GAMES:
        plan = make_plan("atari100k", game, [], 1, None, tmp_path, published)
        write_run(plan, 0, [0.0] * 99 + [4.5])
        found = score(plan)
        assert found["published"]["seeds"] == (0.0, 1.0, 2.0, 3.0, 4.0), game
        assert found["published"]["episodes"] == ((1, 0, 0, 1, 0) if game == "up_n_down" else (1, 1, 1, 1, 1)), game
        assert found["verdict"] == "inside", "the mean of the ten episodes in the window is 0.45"
    assert "(seeds: 0.0, 1.0 by its last episode before, 2.0 by its last episode before, 3.0" in score_text(found)


def test_without_published_curves_the_runs_are_scored_alone(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, seeds=1)
    write_run(plan, 0, [0.0] * 9 + [4.0])
    found = score(plan)
    assert (found["verdict"], found["published"]) == ("unknown", None)
    assert "--reference FILE" in score_text(found)


def test_the_device_s_share_is_of_all_processes_of_a_run(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    for seed in (0, 1):
        write_run(plan, seed, [0.0] * 10)
    write_device_time(plan.runs[0], (0, 0), (50, 1), (98, 2))
    write_device_time(plan.runs[1], (90, 20), (98, 22), (1, 0), (182, 18))
    found = score(plan)
    assert found["device_share"] == [pytest.approx(0.98), pytest.approx(280 / 320)]
    assert "had updates to compute for 98.0%, 87.5% of the time since the first one" in score_text(found)
    write_device_time(plan.runs[0], (0, 0))
    assert "for an unknown part, 87.5% of the time" in score_text(score(plan))


class Runs:
    """Processes in the place of training runs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, steps: dict[int, int], program: str) -> None:
        self.started: list[int] = []
        self.processes: list[subprocess.Popen[bytes]] = []
        self.program = program
        monkeypatch.setattr(reproduction, "_step", lambda run: steps.get(int(run.name[-1]), 0))
        monkeypatch.setattr(reproduction, "_start", self.start)

    def start(self, plan: ReproductionPlan, seed: int, at_once: int) -> subprocess.Popen[bytes]:
        self.started.append(seed)
        process = subprocess.Popen([sys.executable, "-c", self.program, str(seed)])
        self.processes.append(process)
        return process


@pytest.mark.parametrize("at_once", [1, 3])
def test_only_seeds_that_are_not_through_are_trained(monkeypatch, tmp_path: Path, at_once: int) -> None:
    runs = Runs(monkeypatch, {0: 10_000, 1: 9_999}, "")
    train_all(plan_of(tmp_path, seeds=3), at_once)
    assert sorted(runs.started) == [1, 2]


@pytest.mark.parametrize("at_once", [1, 2])
def test_after_a_run_that_fails_no_other_begins(monkeypatch, tmp_path: Path, at_once: int) -> None:
    runs = Runs(monkeypatch, {}, "import sys; sys.exit(3)")
    with pytest.raises(BadInput, match=rf"seed-[0-{at_once - 1}] ended with code 3: see `dreamfleet status"):
        train_all(plan_of(tmp_path, seeds=6), at_once)
    assert max(runs.started) < at_once


def test_runs_end_with_the_command_that_started_them(monkeypatch, tmp_path: Path) -> None:
    """Also by a signal that a cluster sends."""
    runs = Runs(monkeypatch, {}, "import os, signal, time; os.kill(os.getppid(), signal.SIGTERM); time.sleep(60)")
    with pytest.raises(SystemExit):
        train_all(plan_of(tmp_path, seeds=2), 1)
    assert runs.started == [0]
    assert all(process.poll() is not None for process in runs.processes)


class Slow:
    """A run that is waited for three times, and ends then."""

    def __init__(self, seed: int, log: Path) -> None:
        self.waited = 0
        self.seed, self.log = seed, log

    def wait(self, timeout: float) -> int:
        self.waited += 1
        if self.waited > 3:
            return 0
        with self.log.open("a") as file:
            file.write(f"step {self.waited}\n" * self.seed)
        raise subprocess.TimeoutExpired("train", timeout)

    def terminate(self) -> None:
        assert self.waited == 4, "it has ended"


class Gone:
    """A terminal that was closed."""

    def write(self, text: str) -> None:
        raise BrokenPipeError(text)


def start_slow(monkeypatch: pytest.MonkeyPatch, plan: ReproductionPlan) -> None:
    plan.folder.mkdir()
    monkeypatch.setattr(reproduction, "_start", lambda plan, seed, at_once: Slow(seed, plan.log(seed)))


def test_runs_side_by_side_tell_how_far_they_are(monkeypatch, tmp_path: Path, capsys) -> None:
    plan = plan_of(tmp_path, seeds=2)
    start_slow(monkeypatch, plan)
    train_all(plan, 2)
    told = capsys.readouterr().err.splitlines()
    assert [line for line in told if line.startswith("seed 1")] == [
        f"seed 1: begun, see {plan.log(1)}",
        *(f"seed 1: step {step}" for step in (1, 2, 3, 3)),
    ]
    assert told.count("seed 0: nothing said yet") == 4


def test_runs_go_on_when_nobody_can_be_told(monkeypatch, tmp_path: Path) -> None:
    plan = plan_of(tmp_path, seeds=2)
    start_slow(monkeypatch, plan)
    monkeypatch.setattr(sys, "stderr", Gone())
    train_all(plan, 2)
    assert plan.log(1).read_text().splitlines() == ["step 1", "step 2", "step 3"], "it was waited for until it ended"


def test_what_runs_side_by_side_say_is_in_their_logs(monkeypatch, tmp_path: Path) -> None:
    plan = plan_of(tmp_path, seeds=2)
    monkeypatch.setattr(sys, "executable", "/bin/echo")
    train_all(plan, 2)
    for seed in (0, 1):
        words = plan.log(seed).read_text().split()
        assert words[:3] == ["-m", "dreamfleet", "train"]
        assert {f"seed={seed}", "jax.prealloc=false", str(plan.runs[seed])} <= set(words)
