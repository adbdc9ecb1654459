"""A published experiment as one command: the runs of all seeds, their score beside the published one, and a plot."""

from __future__ import annotations

import gzip
import json
import math
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from dreamfleet.checkpoint.snapshot import Snapshots
from dreamfleet.commands.plot.curves import Curve, frames_per_step, read_curves, read_reference, read_rows
from dreamfleet.commands.plot.picture import plot_runs
from dreamfleet.commands.reproduce.scores import WINDOW, Score, ScoreComparison, reached, score_at
from dreamfleet.config.keys import fixed
from dreamfleet.config.load import load_config, parse_overrides
from dreamfleet.config.presets import all_presets
from dreamfleet.config.schema import Config
from dreamfleet.core.errors import BadInput
from dreamfleet.core.text.formatting import duration
from dreamfleet.launch.env_child import last_line
from dreamfleet.metrics.names import DEVICE_BUSY_S, DEVICE_IDLE_S
from dreamfleet.runs.resume import CONFIG_FILE, changes
from dreamfleet.supervision.exit_codes import EXIT_DONE
from dreamfleet.supervision.terminal import print_line

METRIC = "episode/return"
TELL_S = 60.0  # between two words on the progress of runs side by side


PREFIX = "paper_"  # of the presets that have the settings of the published curves
UNCLEAR = (
    "the published files record no settings; these are of the code that came with them, whose networks differ a bit"
)
UNCLEAR_OF = {
    "crafter": "no curves came with the published code",
    "dmc_proprio": f"{UNCLEAR}; each published point is the mean of one or two episodes",
}
# Of a run that was begun before: what another value of makes another experiment.
SAME = ("seed", "env", "agent", "replay", "batch_size", "batch_length", "replay_context")
SAME_OF_RUN = ("train_ratio", "envs")


@dataclass(frozen=True)
class ReproductionPlan:
    suite: str
    env: str
    words: tuple[str, ...]
    seeds: int
    frames: int
    steps: int  # of the agent
    folder: Path
    reference: Path | None = None  # file of published curves

    @property
    def runs(self) -> list[Path]:
        return [self.folder / f"seed-{seed}" for seed in range(self.seeds)]

    def log(self, seed: int) -> Path:
        """What a run says that has no terminal to itself."""
        return self.folder / f"seed-{seed}.log"

    def overrides(self, seed: int) -> list[str]:
        own = [f"env={self.env}", f"seed={seed}", f"run.steps={self.steps}"]
        return [PREFIX + self.suite, *own, *self.words]


def make_plan(
    suite: str,
    task: str,
    words: Sequence[str],
    seeds: int,
    frames: int | None,
    out: Path,
    reference: Path | None = None,
) -> ReproductionPlan:
    """Refuses what would only be found out after hours of training."""
    if PREFIX + suite not in all_presets():
        suites = [name.removeprefix(PREFIX) for name in all_presets() if name.startswith(PREFIX)]
        raise BadInput(f"no protocol for suite {suite!r}: there are {', '.join(suites)}")
    preset = parse_overrides([PREFIX + suite])
    repeat = frames_per_step(preset)
    most = preset.run.steps * repeat
    if frames is not None and not 0 < frames <= most:
        raise BadInput(f"--frames {frames}: the published curves of {suite} go from 1 to {most}")
    frames = frames or most
    env = f"{preset.env.name.partition(':')[0]}:{task}"
    plan = ReproductionPlan(
        suite, env, tuple(words), seeds, frames, math.ceil(frames / repeat), out / f"{suite}-{task}", reference
    )
    given, config = parse_overrides(plan.overrides(0)), parse_overrides(replace(plan, words=()).overrides(0))
    for name, ours, its in (
        ("env", given.env.name, config.env.name),
        ("env.repeat", frames_per_step(given), repeat),
        ("seed", given.seed, config.seed),
        ("run.steps", given.run.steps, config.run.steps),
    ):
        if ours != its:
            raise BadInput(f"{name}={ours} is not the published protocol, which has {its}: leave it out")
    _score_published(plan)
    for seed, run in enumerate(plan.runs):
        _check_begun(run, parse_overrides(plan.overrides(seed)))
    return plan


def _check_begun(run: Path, config: Config) -> None:
    if not (run / CONFIG_FILE).exists():
        return
    begun, wanted = (_settings(found) for found in (load_config(run / CONFIG_FILE), config))
    # Keys of the environment that are not the task's say how to run it, such as env.restarts.
    if keys := [key for key in changes(begun, wanted) if fixed(key) or not key.startswith("env.")]:
        key = min(keys, key=lambda key: key.count("."))  # agent.size before what follows from it
        raise BadInput(f"{run} was begun with another {key}: give what it was begun with, or choose another --out")


def _settings(config: Config) -> dict[str, Any]:
    return config.model_dump(include={*SAME}) | {"run": config.run.model_dump(include={*SAME_OF_RUN})}


def _score_published(plan: ReproductionPlan) -> Score | None:
    return score_published(plan.reference, plan.env, plan.frames) if plan.reference else None


def score_published(reference: Path, env: str, frames: int) -> Score:
    """Score published curves like our runs: a seed without an episode in the window counts by its last one.

    A seed is taken to have trained on to `frames` if any seed of the task has an episode in the window.
    """
    curves = read_reference(reference, [env])
    last = max((curve.xs.max() for curve in curves if len(curve.xs)), default=0.0)
    if last <= (1 - WINDOW) * frames:
        raise BadInput(
            f"{reference} has no episode of {env} between {(1 - WINDOW) * frames:,.0f} and {frames:,.0f} frames, the "
            f"last one at {last:,.0f}: choose fewer --frames, or another --reference"
        )
    return score_at(curves, frames, [True] * len(curves))


def train_all(plan: ReproductionPlan, at_once: int) -> None:
    """Runs the seeds that are not through, up to `at_once` of them side by side; continues those that were begun."""
    waiting = [seed for seed, run in enumerate(plan.runs) if _step(run) < plan.steps]
    ended = threading.Event()
    started: list[subprocess.Popen[bytes]] = []

    def run(seed: int) -> int:
        if ended.is_set():
            return EXIT_DONE
        process = _start(plan, seed, at_once)
        started.append(process)
        code = process.wait() if at_once == 1 else _tell(plan, seed, process)
        if code != EXIT_DONE:
            ended.set()
        return code

    with ThreadPoolExecutor(at_once) as pool, exit_on_sigterm():
        try:
            codes = list(pool.map(run, waiting))
        finally:
            ended.set()
            for process in started:
                process.terminate()  # those that still run
    for seed, code in zip(waiting, codes, strict=True):
        if code != EXIT_DONE:
            where = plan.runs[seed]
            again = f"see `dreamfleet status {where}`, then give the command again"
            raise BadInput(f"the run in {where} ended with code {code}: {again}")


@contextmanager
def exit_on_sigterm() -> Iterator[None]:
    """So that what is to be done at the end is done."""

    def leave(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def score(plan: ReproductionPlan) -> dict[str, Any]:
    """Scores what there is, and writes the curves and a picture of them beside the runs."""
    runs = [f"dreamfleet={run}" for run in plan.runs]
    ours = read_curves(runs, METRIC, "frames")
    over = [_last_step(run) >= plan.steps for run in plan.runs]
    comparison = ScoreComparison(score_at(ours, plan.frames, over), _score_published(plan))
    files = {"curves": plan.folder / "curves.json.gz", "plot": plan.folder / "curves.png"}
    _write_curves(files["curves"], plan.env, ours)
    plot_runs(runs, files["plot"], METRIC, "frames", plan.reference)
    return {
        "task": plan.env,
        "frames": plan.frames,
        "steps": plan.steps,
        "window_frames": WINDOW * plan.frames,
        "command": ["dreamfleet", "train", *plan.overrides(0)],
        "unclear": UNCLEAR_OF.get(plan.suite, UNCLEAR),
        "ours": asdict(comparison.ours),
        "published": asdict(comparison.published) if comparison.published else None,
        "verdict": comparison.word,
        "hours_to_published": _hours(runs, ours, plan, comparison.published),
        "device_share": [device_share(run) for run in plan.runs],
        **{key: str(path) for key, path in files.items()},
    }


def score_text(found: dict[str, Any]) -> str:
    lines = [
        f"{found['task']} at {found['frames']:,} frames ({found['steps']:,} agent steps): mean return of the training "
        f"episodes in the last {found['window_frames']:,.0f} frames",
        f"  command    {' '.join(found['command'])}",
        f"  not known  {found['unclear']}",
        f"  ours       {_words(found['ours'])}",
    ]
    if found["published"]:
        times = [duration(3600 * hours) if hours else "never" for hours in found["hours_to_published"]]
        lines += [
            f"  published  {_words(found['published'])}",
            f"  verdict    {found['verdict']} the range of the published seeds",
            f"  reached    the published mean after {', '.join(times)}",
        ]
    else:
        lines.append("  published  not compared: pass the file of published curves as --reference FILE")
    if any(found["device_share"]):
        shares = ["an unknown part" if share is None else f"{share:.1%}" for share in found["device_share"]]
        lines.append(f"  device     had updates to compute for {', '.join(shares)} of the time since the first one")
    return "\n".join([*lines, f"  files      {found['curves']}, {found['plot']}"])


def _words(score: dict[str, Any]) -> str:
    seeds = ", ".join(
        f"{value:.1f}" + (" by its last episode before" if not episodes else "")
        for value, episodes in zip(score["seeds"], score["episodes"], strict=True)
    )
    between = "" if score["interval"] is None else ", 95 % between {:.1f} and {:.1f}".format(*score["interval"])
    return f"{score['mean']:.1f}{between} (seeds: {seeds})"


def _hours(runs: list[str], ours: list[Curve], plan: ReproductionPlan, published: Score | None) -> list[float | None]:
    if published is None:
        return []
    clocks = [curve.xs for curve in read_curves(runs, METRIC, "hours")]
    return [reached(curve, clock, plan.frames, published.mean) for curve, clock in zip(ours, clocks, strict=True)]


def _last_step(run: Path) -> int:
    """That it has told of, which needs no snapshot."""
    return max((row["step"] for row in read_rows(run / "metrics.jsonl")), default=0)


def _step(run: Path) -> int:
    """That it can go on from."""
    return int(Snapshots(run).manifest().get("step", 0))


def _start(plan: ReproductionPlan, seed: int, at_once: int) -> subprocess.Popen[bytes]:
    """One at a time shows its progress; several would write over each other, and share the GPU's memory."""
    run = plan.runs[seed]
    command = [sys.executable, "-m", "dreamfleet", "train", *plan.overrides(seed)]
    if at_once == 1:
        return subprocess.Popen([*command, "--run-dir", str(run)])
    plan.folder.mkdir(parents=True, exist_ok=True)
    with plan.log(seed).open("ab") as log:
        command += ["jax.prealloc=false", "--run-dir", str(run)]
        return subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)


def _tell(plan: ReproductionPlan, seed: int, process: subprocess.Popen[bytes]) -> int:
    """Waits until the run ends, and says now and then how far it is."""
    log, code = plan.log(seed), None
    print_line(f"seed {seed}: begun, see {log}")
    while code is None:
        with suppress(subprocess.TimeoutExpired):
            code = process.wait(TELL_S)
        with suppress(OSError):  # without its log a run goes on
            print_line(f"seed {seed}: {last_line(log.read_text(errors='replace'), 'nothing said yet')}")
    return code


def device_share(run: Path) -> float | None:
    """Return the part of the time since the first update in which the device had work; None if it was not measured.

    Start and compilation are not part of that time. A process that continues the run counts from 0 again.
    """
    rows = [row for row in read_rows(run / "metrics.jsonl") if row.keys() >= {DEVICE_BUSY_S, DEVICE_IDLE_S}]
    last = [row for row, after in pairwise(rows) if after[DEVICE_BUSY_S] < row[DEVICE_BUSY_S]] + rows[
        -1:
    ]  # of each process
    busy, idle = (sum(row[key] for row in last) for key in (DEVICE_BUSY_S, DEVICE_IDLE_S))
    return busy / (busy + idle) if busy else None


def _write_curves(path: Path, task: str, curves: list[Curve]) -> None:
    """In the form of the published ones, so that later runs can be compared with these."""
    rows = [
        {"task": task, "method": "dreamfleet", "seed": seed, "xs": curve.xs.tolist(), "ys": curve.ys.tolist()}
        for seed, curve in enumerate(curves)
    ]
    path.write_bytes(gzip.compress(json.dumps(rows).encode(), mtime=0))
