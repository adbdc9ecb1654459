"""Learning curves: which points they have, which runs belong together, and what is refused."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dreamfleet.commands.plot.curves import Curve, combine, read_curves, read_reference, running_hours, without_undone
from dreamfleet.commands.plot.picture import plot_runs
from dreamfleet.config.load import parse_overrides, save_config
from dreamfleet.core.errors import BadInput, RunFolderError


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def make_run(folder: Path, *overrides: str, returns: tuple[float, ...] = (1.0, 2.0, 3.0)) -> Path:
    folder.mkdir(parents=True)
    save_config(parse_overrides(list(overrides)), folder / "config.yaml")
    rows = [
        {"step": 100 * (n + 1), "time": 1000.0 + 3600 * n, "mode": "train", "env": 0, "return": value, "length": 9}
        for n, value in enumerate(returns)
    ]
    write_rows(folder / "episodes.jsonl", [*rows, {**rows[0], "mode": "eval", "return": 50.0}] if rows else [])
    write_rows(folder / "metrics.jsonl", [{"step": 100, "time": 1000.0, "train/loss": 0.5}])
    write_rows(folder / "events.jsonl", [{"time": 1000.0, "role": "logger", "event": "start"}])
    return folder


def test_returns_come_from_the_episodes_of_their_mode(tmp_path: Path) -> None:
    run = str(make_run(tmp_path / "run", "env=catch"))
    curve = read_curves([run], "episode/return", "steps")[0]
    assert (curve.task, curve.label) == ("catch", "run")
    assert curve.xs.tolist() == [100, 200, 300]
    assert curve.ys.tolist() == [1, 2, 3]
    assert read_curves([run], "eval/return", "steps")[0].ys.tolist() == [50]
    assert read_curves([run], "train/loss", "steps")[0].ys.tolist() == [0.5]
    assert read_curves([run], "episode/return", "hours")[0].xs.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("overrides", "last"), [(["env=catch"], 300), (["env=catch", "env.repeat=2"], 600), (["env=atari:pong"], 1200)]
)
def test_frames_are_steps_times_the_action_repeat(tmp_path: Path, overrides: list[str], last: int) -> None:
    assert read_curves([str(make_run(tmp_path / "r", *overrides))], "episode/return", "frames")[0].xs[-1] == last


def test_runs_that_differ_only_in_their_seed_belong_together(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / f"pong-seed{seed}", f"seed={seed}") for seed in range(3)]
    runs.append(make_run(tmp_path / "other", "batch_size=8"))
    labels = [curve.label for curve in read_curves([str(run) for run in runs], "episode/return", "steps")]
    assert labels == ["pong", "pong", "pong", "other"]


def test_a_label_of_the_users_own_decides(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / "a", "seed=0"), make_run(tmp_path / "b", "batch_size=8")]
    words = [f"mine={run}" for run in runs]
    assert [curve.label for curve in read_curves(words, "episode/return", "steps")] == ["mine", "mine"]


def test_the_mean_and_deviation_are_over_runs_where_they_reach() -> None:
    curves = [Curve("t", "x", np.array([1.0, 3.0]), np.array([2.0, 4.0])), Curve("t", "x", np.array([1.0]), np.ones(1))]
    band = combine(curves, points=3)[0]
    assert band.runs == 2
    assert band.xs.tolist() == [0.5, 1.5, 2.5]  # the middle of bins that end at 1, 2 and 3
    assert band.mean.tolist() == [1.5, 3.0, 4.0]  # between its two points, the first curve is at 3
    assert band.deviation is not None
    assert band.deviation.tolist() == [0.5, 0.0, 0.0]


def test_a_single_run_has_no_band() -> None:
    assert combine([Curve("t", "x", np.array([1.0]), np.array([1.0]))])[0].deviation is None


def test_what_a_continued_run_undid_is_left_out() -> None:
    rows = [{"step": step, "n": n} for n, step in enumerate([100, 200, 300, 150, 250])]
    assert [row["n"] for row in without_undone(rows)] == [0, 3, 4]


def test_hours_leave_out_the_time_between_an_end_and_a_continuation(tmp_path: Path) -> None:
    starts = [0.0, 100 * 3600.0]
    write_rows(tmp_path / "events.jsonl", [{"time": t, "role": "logger", "event": "start"} for t in starts])
    times = np.array([1.0, 2.0, 100.5, 101.0]) * 3600
    assert running_hours(tmp_path, times).tolist() == [1.0, 2.0, 2.5, 3.0]


def test_a_run_without_points_is_refused_with_a_reason(tmp_path: Path) -> None:
    run = str(make_run(tmp_path / "run", returns=()))
    with pytest.raises(BadInput, match=r"no train episode has ended in .* yet"):
        read_curves([run], "episode/return", "steps")
    with pytest.raises(BadInput, match="has no metric 'train/los': it has train/loss"):
        read_curves([run], "train/los", "steps")
    with pytest.raises(RunFolderError, match="is not a run folder"):
        read_curves([str(tmp_path)], "episode/return", "steps")


def write_reference(path: Path) -> Path:
    rows = [
        {"task": task, "method": "published", "seed": seed, "xs": [400, 800], "ys": [seed, 2 + seed]}
        for task in ("atari_pong", "dmc_walker_walk")
        for seed in range(2)
    ]
    path.write_bytes(gzip.compress(json.dumps(rows).encode()) if path.suffix == ".gz" else json.dumps(rows).encode())
    return path


@pytest.mark.parametrize("name", ["curves.json", "curves.json.gz"])
@pytest.mark.parametrize("task", ["atari:pong", "atari100k:pong", "dmc:walker_walk"])
def test_a_published_curve_is_found_by_its_task(tmp_path: Path, name: str, task: str) -> None:
    found = read_reference(write_reference(tmp_path / name), [task, task])
    assert [curve.ys.tolist() for curve in found] == [[0, 2], [1, 3]]
    assert {curve.task for curve in found} == {task}


def test_a_reference_that_does_not_help_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="has no curve of catch: it has atari_pong, dmc_walker_walk"):
        read_reference(write_reference(tmp_path / "r.json"), ["catch"])
    with pytest.raises(BadInput, match="cannot read the reference"):
        read_reference(tmp_path / "none.json", ["catch"])
    (tmp_path / "odd.json").write_text('[{"task": "catch"}]')
    with pytest.raises(BadInput, match="is no reference: expected a JSON list"):
        read_reference(tmp_path / "odd.json", ["catch"])


def test_a_reference_is_read_up_to_a_limit(tmp_path: Path) -> None:
    """Nothing of these 4 GB but the beginning is ever decompressed."""
    block = gzip.compress(b"[" + b" " * (1 << 26))
    (tmp_path / "bomb.json.gz").write_bytes(block * 64)
    tracemalloc.start()
    try:
        with pytest.raises(BadInput, match=r"bomb.json.gz: it decompresses to more than 32 MiB, the most that is read"):
            read_reference(tmp_path / "bomb.json.gz", ["catch"])
        assert tracemalloc.get_traced_memory()[1] < 80 << 20
    finally:
        tracemalloc.stop()
    with (tmp_path / "large.json").open("wb") as file:
        file.truncate((1 << 25) + 1)
    with pytest.raises(BadInput, match=r"large.json: it has more than 32 MiB"):
        read_reference(tmp_path / "large.json", ["catch"])


@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, '[{"task": "catch", "task": 1}]', '{"task": 1}', "[1]", "\ud800"]
    + [
        json.dumps([{"task": "catch", "method": "m", "seed": 0, "xs": [1, 2], "ys": [1, 2], **odd}])
        for odd in (
            {"xs": [1]},
            {"xs": "12"},
            {"ys": [{}, {}]},
            {"xs": [], "ys": []},
            {"task": []},
            {"xs": [1, 10**400]},
        )
    ],
)
def test_a_reference_of_another_shape_is_refused(tmp_path: Path, text: str) -> None:
    for name, data in (
        ("r.json", text.encode(errors="replace")),
        ("r.gz", gzip.compress(text.encode(errors="replace"))),
    ):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(BadInput, match="reference"):
            read_reference(tmp_path / name, ["catch"])
    (tmp_path / "cut.gz").write_bytes(data[:-9])
    with pytest.raises(BadInput, match="cannot read the reference"):
        read_reference(tmp_path / "cut.gz", ["catch"])


def test_the_picture_shows_runs_and_reference(tmp_path: Path) -> None:
    runs = [str(make_run(tmp_path / f"s{seed}", "env=atari:pong", f"seed={seed}")) for seed in range(2)]
    plain, with_reference = tmp_path / "new" / "plain.png", tmp_path / "with.png"
    assert plot_runs(runs, plain, "episode/return", "steps", None).endswith("of 2 runs, mean and deviation")
    plot_runs(runs, with_reference, "episode/return", "steps", write_reference(tmp_path / "r.json"))
    blue, gray = (31, 119, 180), (115, 115, 115)  # letters have some gray at their edges, too
    assert pixels(plain, blue) > 100
    assert pixels(with_reference, blue) > 100
    assert pixels(with_reference, gray) > pixels(plain, gray) + 100


def pixels(path: Path, colour: tuple[int, int, int]) -> int:
    with Image.open(path) as image:
        return int((np.asarray(image.convert("RGB")) == colour).all(axis=-1).sum())


@pytest.mark.parametrize(
    ("out", "x", "reference", "message"),
    [
        ("plot.txt", "steps", None, "has to end in .png, .svg, .pdf"),
        ("plot.png", "days", None, "--x days is not known: choose steps, frames, hours"),
        ("plot.png", "hours", "r.json", "a published curve has no hours"),
    ],
)
def test_options_that_cannot_work_are_refused(tmp_path, out: str, x: str, reference: str | None, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        plot_runs(["nothing"], tmp_path / out, "episode/return", x, Path(reference) if reference else None)
