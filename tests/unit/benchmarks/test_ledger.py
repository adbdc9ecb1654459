"""The proof's ledger: which run comes next, ending in time, what is kept of a run, and what results add up to."""

from __future__ import annotations

import asyncio
import gzip
import json
import math
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import proof
from dreamfleet.config.load import parse_overrides, save_config
from dreamfleet.core.errors import BadInput
from ledger.atari import RANDOM_HUMAN, human_normalised
from ledger.making import RECORDS, Budget, Session, machine_end
from ledger.records import (
    RefusedRecord,
    check_record,
    course,
    make_record,
    read_records,
    seal,
    updates_per_s,
    write_records,
)
from ledger.report import aggregate, table
from ledger.runs import Run, expected_minutes, load_runs, slowdown

LIST = """
words: [run.report_every=0]
runs:
  - {suite: atari100k, tasks: [pong], size: size12m, seeds: [1], minutes: 5}
  - {suite: atari100k, tasks: [krull], size: size200m, seeds: [0], minutes: 20}
  - {suite: atari100k, tasks: [pong, boxing], size: size12m, seeds: [0, 1], frames: 8000, minutes: 6}
"""
# In the place of `dreamfleet train`: finishes when it is begun for the second time, until then waits to be interrupted.
TRAIN_IN_TWO = """
import pathlib, signal, sys
run = pathlib.Path(sys.argv[-1])
if run.exists():
    sys.exit(0)
run.mkdir(parents=True)
signal.signal(signal.SIGINT, lambda *_: sys.exit(130))
(run / "events.jsonl").write_text('{"role": "agent", "event": "ready"}\\n')
(run / "ready").touch()
signal.pause()
"""
# The first run compiles for a while and then says so; any other fails if it starts before that.
COMPILE_FIRST = """
import json, pathlib, sys, time
run = pathlib.Path(sys.argv[-1])
if "seed=0" in sys.argv:
    time.sleep(0.5)
    (run / "events.jsonl").write_text(json.dumps({"role": "agent", "event": "ready"}))
    other = pathlib.Path(str(run).replace("seed0", "seed1"))
    while not (other / "begun").exists():
        time.sleep(0.02)
else:
    (run / "begun").touch()
    sys.exit(not (pathlib.Path(str(run).replace("seed1", "seed0")) / "events.jsonl").exists())
"""
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def runs(tmp_path: Path) -> list[Run]:
    path = tmp_path / "list.yaml"
    path.write_text(LIST)
    return load_runs(path)


def test_runs_are_in_the_order_of_the_list_and_a_second_mention_counts_for_nothing(runs: list[Run]) -> None:
    assert [run.name for run in runs] == [
        "atari100k-pong-size12m-seed1",
        "atari100k-krull-size200m-seed0",
        "atari100k-pong-size12m-seed0",
        "atari100k-boxing-size12m-seed0",
        "atari100k-boxing-size12m-seed1",
    ]
    assert (runs[0].frames, runs[0].steps, runs[0].minutes, runs[0].env) == (400_000, 100_000, 5, "atari100k:pong")
    assert (runs[2].frames, runs[2].steps, runs[2].minutes) == (8000, 2000, 6)
    assert runs[0].command[-2:] == ("size12m", "run.report_every=0")


def test_the_list_of_the_project_is_whole() -> None:
    found = load_runs(proof.LIST)
    games = [run.task for run in found if (run.suite, run.size, run.seed) == ("atari100k", "size12m", 0)]
    assert sorted(games) == sorted(RANDOM_HUMAN)
    assert len({run.task for run in found if run.suite == "atari100k" and run.size == "size200m"}) == 2
    assert len({run.task for run in found if run.suite == "dmc_proprio"}) == 6


@pytest.mark.parametrize(
    "row", ["{suite: atari100k}", "{suite: nowhere, tasks: [a], size: size1m, seeds: [0], minutes: 1}"]
)
def test_a_list_with_a_mistake_is_refused(tmp_path: Path, row: str) -> None:
    path = tmp_path / "list.yaml"
    path.write_text(f"runs:\n  - {row}\n")
    with pytest.raises(BadInput, match=r"list of runs|no protocol"):
        load_runs(path)


def test_a_run_takes_as_long_as_others_like_it_took(runs: list[Run]) -> None:
    run = runs[0]
    assert slowdown(1) == 1
    assert slowdown(4) == pytest.approx(4 / 1.4), "four at once do 1.4 times the work of one"
    assert expected_minutes(run, 1, []) == 5
    assert expected_minutes(run, 4, []) == pytest.approx(5 * 4 / 1.4)
    like = [{"suite": run.suite, "size": run.size, "minutes": minutes, "at_once": 1} for minutes in (4, 7, 5.5)]
    others = [{"suite": run.suite, "size": "size200m", "minutes": 20, "at_once": 1}]
    assert expected_minutes(run, 1, [*like, *others]) == 5.5
    beside = [{**like[0], "minutes": 9, "at_once": 2}]
    assert expected_minutes(run, 2, [*like, *beside]) == 9


def session(runs: list[Run], folder: Path, at_once: int = 1, program: str = TRAIN_IN_TWO, **others: Any) -> Session:
    budget = others.pop("budget", Budget())
    command = (sys.executable, "-c", program)
    return Session(runs, folder, folder / "back", at_once, budget, COMMIT, program=command, **others)


def test_what_cannot_end_before_the_machine_goes_is_passed_over(runs: list[Run], tmp_path: Path) -> None:
    def first(minutes: float, **others: Any) -> str | None:
        budget = Budget(math.inf, math.inf, time.time() + 60 * minutes)
        found = session(runs, tmp_path, budget=budget, **others).next()
        return found and found.name

    assert first(27) == runs[0].name
    assert first(27, results=[dict(vars(runs[0]), name=runs[0].name, at_once=1)]) == runs[1].name
    assert first(19, results=[dict(vars(runs[0]), name=runs[0].name, at_once=1)]) == runs[2].name
    assert first(4.9) is None
    assert first(9, at_once=4) is None
    (tmp_path / runs[1].name / "run").mkdir(parents=True)
    assert first(27) == runs[1].name, "one that was begun goes first"
    (tmp_path / runs[1].name / "proof.json").write_text('{"seconds": 1080, "at_once": 1}')
    assert first(2.5) == runs[1].name, "two of its twenty minutes are left"


def test_none_begins_shortly_before_the_end_of_a_call(runs: list[Run], tmp_path: Path) -> None:
    assert session(runs, tmp_path, budget=Budget(stop=time.time() + 60)).next() is None


def test_the_machine_s_time_counts_from_the_first_call(tmp_path: Path) -> None:
    before = time.time()
    end = machine_end(tmp_path / "new", 27)
    assert before <= end - 27 * 60 <= time.time()
    assert machine_end(tmp_path / "new", 27) == end


def write_run(run: Run, folder: Path) -> None:
    """Write an episode every 200 steps, with its number as return, and the learner's rows of two processes."""
    folder.mkdir(parents=True, exist_ok=True)
    save_config(parse_overrides(run.command), folder / "config.yaml")
    episodes = [
        {"step": step, "time": step / 10, "mode": "train", "return": step / 200, "length": 200}
        for step in range(200, run.steps + 1, 200)
    ]
    (folder / "episodes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in episodes))
    metrics = [
        {"step": 10, "time": 1.0, "device/busy_s": 3.0, "device/idle_s": 1.0},
        {"step": 10, "time": 1.0, "train/opt/updates": 40.0},
        {"step": 500, "time": 2.0, "device/busy_s": 1.0, "device/idle_s": 1.0},
        {"step": 500, "time": 2.0, "train/opt/updates": 60.0},
        {"step": 1000, "time": 9.0, "device/busy_s": 7.0, "device/idle_s": 3.0, "usage/x": math.inf},
        {"step": 1000, "time": 9.0, "train/opt/updates": 140.0},
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in metrics))


@pytest.mark.parametrize("at_once", [1, 2])
def test_runs_are_ended_in_order_and_continued_by_the_next_call(runs: list[Run], tmp_path: Path, at_once: int) -> None:
    small = runs[2:4]

    async def interrupted() -> dict[str, list[str]]:
        made = session(small, tmp_path, at_once)
        making = asyncio.create_task(made.make())
        deadline = time.monotonic() + 30
        while not all((tmp_path / run.name / "run" / "ready").exists() for run in small[:at_once]):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.02)
        made.stop(signalled=False)
        return await making

    outcome = asyncio.run(interrupted())
    assert outcome["interrupted"] == [run.name for run in small[:at_once]]
    assert outcome["left"] == [run.name for run in small[at_once:]]
    assert (outcome["finished"], outcome["failed"]) == ([], [])
    for run in small:
        write_run(run, tmp_path / run.name / "run")
    outcome = asyncio.run(session(small, tmp_path, at_once).make())
    assert outcome["finished"] == [run.name for run in small]
    records = list(read_records(tmp_path / "back" / RECORDS))
    assert [record["name"] for record in records] == [run.name for run in small]
    assert records[0]["at_once"] == at_once
    state = json.loads((tmp_path / small[0].name / "proof.json").read_text())
    assert records[0]["minutes"] == round(state["seconds"] / 60, 2)


def test_runs_of_the_same_programs_wait_until_the_first_has_compiled(runs: list[Run], tmp_path: Path) -> None:
    alike = [run for run in runs if run.task == "boxing"]
    for run in alike:
        write_run(run, tmp_path / run.name / "run")
    outcome = asyncio.run(session(alike, tmp_path, at_once=2, program=COMPILE_FIRST).make())
    assert outcome["finished"] == [run.name for run in alike]
    assert outcome["failed"] == []


def test_a_call_ends_when_its_time_is_over(runs: list[Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ledger.making.MIN_S", 0.0)
    now = time.time()
    outcome = asyncio.run(session(runs, tmp_path, budget=Budget(now + 1.5, now + 60)).make())
    assert outcome["interrupted"] == [runs[0].name]


def test_a_run_that_does_not_end_is_killed(runs: list[Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ledger.making.MIN_S", 0.0)
    now = time.time()
    deaf = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); signal.pause()"
    outcome = asyncio.run(session(runs, tmp_path, program=deaf, budget=Budget(now + 1, now + 2)).make())
    assert outcome["failed"] == [runs[0].name]
    assert time.time() < now + 30


def test_a_run_that_fails_is_not_tried_again_in_this_call_and_the_others_go_on(runs: list[Run], tmp_path: Path) -> None:
    failing = "import sys; print('no such game'); sys.exit('boxing' in sys.argv[2])"
    for run in runs[2:4]:
        write_run(run, tmp_path / run.name / "run")
    outcome = asyncio.run(session(runs[2:4][::-1], tmp_path, program=failing).make())
    assert outcome["failed"] == [runs[3].name]
    assert outcome["finished"] == [runs[2].name]


@pytest.fixture
def record(runs: list[Run], tmp_path: Path) -> dict[str, Any]:
    write_run(runs[2], tmp_path / "run")
    return make_record(runs[2], tmp_path / "run", 330.0, 1, COMMIT)


def test_a_record_says_what_came_of_a_run(record: dict[str, Any]) -> None:
    assert (record["name"], record["minutes"], record["frames"]) == ("atari100k-pong-size12m-seed0", 5.5, 8000)
    assert record["score"] == 10.0, "one episode ends in the last 200 of 2,000 steps"
    assert record["updates_per_s"] == 10.0, "the second process made 80 updates in the 8 s between its rows"
    assert record["device_share"] == pytest.approx(10 / 14)
    assert record["episodes"]["step"] == list(range(200, 2001, 200))
    assert record["metrics"]["train/opt/updates"] == [[10, 40.0], [500, 60.0], [1000, 140.0]]
    assert "usage/x" not in record["metrics"]
    assert "atari100k:pong" in record["config"]


def test_without_a_measured_device_the_rate_is_not_known() -> None:
    assert updates_per_s([{"step": 1, "train/opt/updates": 3.0}]) is None


def row_of(step: int, updates: float, busy_s: float) -> dict[str, float]:
    return {"step": step, "train/opt/updates": updates, "device/busy_s": busy_s, "device/idle_s": 0.0}


def test_the_rate_is_that_of_the_process_observed_longest() -> None:
    first = [row_of(100, 300.0, 10.0), row_of(900, 2700.0, 90.0)]
    resumed = row_of(1000, 3300.0, 2.0)  # the interrupted process made 540 of these updates after its last row
    assert updates_per_s([*first, resumed]) == 30.0
    assert updates_per_s([first[0]]) == 30.0


def test_the_course_of_a_metric_keeps_its_ends() -> None:
    rows = [{"step": step, "time": 0.0, "loss": float(step)} for step in range(1000)]
    points = course(rows)["loss"]
    assert (points[0], points[-1], len(points)) == ([0, 0.0], [999, 999.0], 40)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": "atari100k-pong-size1m-seed0"}, "not in the list"),
        ({"score": 12.0}, "checksum"),
        ({"frames": 4000, "sealed": True}, "frames=4000, the list has 8000"),
        ({"score": 12.0, "sealed": True}, "says 12.0, its episodes say 10.0"),
        ({"command": ["dreamfleet", "train", "size1m"], "sealed": True}, "another command"),
    ],
)
def test_a_damaged_or_foreign_record_is_refused(
    record: dict[str, Any], runs: list[Run], change: dict[str, Any], words: str
) -> None:
    known = {run.name: run for run in runs}
    check_record(record, known)
    changed = {**record, **{key: value for key, value in change.items() if key != "sealed"}}
    if "sealed" in change:
        changed = seal({key: value for key, value in changed.items() if key != "sha256"})
    with pytest.raises(RefusedRecord, match=words):
        check_record(changed, known)


def test_a_file_that_is_cut_off_is_refused(record: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / RECORDS
    write_records(path, [record])
    assert list(read_records(path)) == [json.loads(json.dumps(record))]
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(RefusedRecord, match="damaged"):
        list(read_records(path))


def collect(tmp_path: Path, *more: str) -> int:
    words = [
        "--list",
        str(tmp_path / "list.yaml"),
        "--results",
        str(tmp_path / "results"),
        "collect",
        str(tmp_path / "back"),
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["proof.py", *words, *more])
        return proof.main()


def test_collecting_twice_changes_nothing_and_another_result_of_a_run_is_refused(
    record: dict[str, Any], runs: list[Run], tmp_path: Path, capsys: Any
) -> None:
    published = tmp_path / "published.json.gz"
    xs = [2000.0 * number for number in range(1, 5)]
    rows = [
        {"task": "atari_pong", "method": "dreamerv3", "seed": seed, "xs": xs, "ys": [0.0, 0.0, 0.0, last]}
        for seed, last in enumerate((3.0, 4.0))
    ]
    published.write_bytes(gzip.compress(json.dumps(rows).encode()))
    write_records(tmp_path / "back" / RECORDS, [record])
    assert collect(tmp_path, "--reference", str(published)) == 0
    results = tmp_path / "results"
    first = {path.name: path.read_bytes() for path in results.iterdir() if path.is_file()}
    assert first.keys() == {"results.jsonl", "published.json", "table.md", "curves.png"}
    assert json.loads(first["published.json"]) == {"atari100k:pong": [3.0, 4.0]}
    assert "| atari100k:pong | size12m | 8,000 | 10.0 | 3.5 (3.0 to 4.0) | above |" in first["table.md"].decode()
    assert len(first["curves.png"]) > 1000
    raw = json.loads(gzip.decompress((results / "records" / f"{record['name']}.json.gz").read_bytes()))
    assert raw["episodes"] == record["episodes"]
    assert collect(tmp_path) == 0
    assert (results / "table.md").read_bytes() == first["table.md"], "published scores are kept"
    again = seal({**{key: value for key, value in record.items() if key != "sha256"}, "minutes": 9.0})
    other = {**record, "score": 99.0}
    write_records(tmp_path / "back" / RECORDS, [again, other])
    assert collect(tmp_path) == 1
    said = capsys.readouterr().err
    assert "already has a different result" in said
    assert "its checksum differs" in said
    assert (results / "results.jsonl").read_bytes() == first["results.jsonl"]


def test_git_keeps_the_episodes_of_results() -> None:
    checkout = proof.RESULTS.parents[2]
    path = proof.raw_file(proof.RESULTS, "atari100k-pong-size12m-seed0")
    command = ["git", "-c", f"safe.directory={checkout}", "-C", str(checkout), "check-ignore", "--quiet", str(path)]
    assert subprocess.run(command, check=False).returncode == 1, "0: ignored, 128: no checkout"


def test_a_result_without_its_episodes_is_marked_and_left_out_of_the_figure(
    record: dict[str, Any], runs: list[Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(runs[3], tmp_path / "other")
    write_records(tmp_path / "back" / RECORDS, [record, make_record(runs[3], tmp_path / "other", 330.0, 1, COMMIT)])
    drawn: list[str] = []
    monkeypatch.setattr(proof, "draw", lambda ours, *others: drawn.extend(curve.task for curve in ours))
    assert collect(tmp_path) == 0
    assert drawn == ["atari100k:pong", "atari100k:boxing"]
    proof.raw_file(tmp_path / "results", record["name"]).unlink()
    drawn.clear()
    assert collect(tmp_path) == 0
    assert drawn == ["atari100k:boxing"]
    text = (tmp_path / "results" / "table.md").read_text()
    assert r"| atari100k:pong | size12m | 8,000 | 10.0\* |" in text
    assert "| atari100k:boxing | size12m | 8,000 | 10.0 |" in text
    assert "episodes of this run were not kept" in text


def test_scores_are_normalised_by_a_random_policy_and_a_human_player() -> None:
    assert human_normalised("pong", -20.7) == 0
    assert human_normalised("pong", 14.6) == 1
    assert human_normalised("boxing", 6.1) == pytest.approx(0.5)


def test_aggregates_over_games() -> None:
    """Worked out by hand: means over seeds are 1, 2, 3 and 10; of the eight scores the middle four are 1.5, 2, 2, 3."""
    found = aggregate([[0.5, 1.5], [2.0, 2.0], [3.0, 3.0], [0.0, 20.0]])
    assert (found.games, found.mean, found.median) == (4, 4.0, 2.5)
    assert found.iqm == pytest.approx((1.5 + 2.0 + 2.0 + 3.0) / 4)
    assert found.intervals is not None
    assert found.intervals["mean"][0] == pytest.approx((0.5 + 2 + 3 + 0) / 4), "the lowest that draws within games give"
    assert found.intervals["mean"][1] == pytest.approx((1.5 + 2 + 3 + 20) / 4)


def test_of_three_games_the_interquartile_mean_leaves_none_out() -> None:
    assert aggregate([[1.0], [2.0], [6.0]]).iqm == 3.0
    assert aggregate([[1.0], [2.0], [6.0], [100.0]]).iqm == 4.0


def test_games_of_one_seed_have_no_interval() -> None:
    assert aggregate([[1.0], [2.0]]).intervals is None
    assert aggregate([[1.0], [2.0, 3.0]]).intervals is None


def test_the_table_has_a_row_for_each_task_and_size_and_both_aggregates(record: dict[str, Any]) -> None:
    second = {**record, "seed": 1, "score": 14.6, "minutes": 6.0, "updates_per_s": None, "at_once": 2}
    large = {**record, "size": "size200m", "score": -20.7}
    text = table([record, second, large], {"atari100k:pong": (-20.7, 14.6)})
    rows = [line for line in text.splitlines() if line.startswith("| atari100k")]
    assert "| size12m | 8,000 | 12.3 (10.0, 14.6) | -3.0 (-20.7 to 14.6) | inside | 0.93, 0.50 |" in rows[0]
    assert "| 5.5, 6.0 (beside 1 others) | 10,  | 71%, 71% | 0123456 |" in rows[0]
    assert "| size200m | 8,000 | -20.7 |" in rows[1]
    assert "1 of 26 games that `size12m`" in text
    assert "| published, 200M parameters | 1 | 0.50 (0.00 to 1.00) | 0.50 (0.00 to 1.00) |" in text


def test_a_verdict_is_by_the_published_range(record: dict[str, Any]) -> None:
    for score, word in ((1.0, "**below**"), (2.0, "inside"), (5.1, "above")):
        assert f"| {word} |" in table([{**record, "score": score}], {"atari100k:pong": (2.0, 5.0)})
    assert "| not published | not published |" in table([replace_env(record)], {})


def replace_env(record: dict[str, Any]) -> dict[str, Any]:
    return {**record, "env": "crafter:reward"}
