"""Short learning checks on the CPU: does the whole fleet still learn what it learnt when the bands were recorded?

    python benchmarks/learning.py [--tasks bandit catch] [--seeds 1] [--at-once 1] [--json]
    python benchmarks/learning.py --record --seeds 5
    python benchmarks/learning.py --tasks bandit catch --how single --seeds 5

Every task is trained for a fixed number of steps. Its score is the mean return of the training episodes in the last
fifth of them, and must not lie below the band in `learning_bands.json`: three deviations under the mean of the recorded
seeds, or a twentieth of what there is to learn where seeds hardly differ.

`--how single` trains in the deterministic mode instead, and `--how resumed` ends each run in the middle and continues
it. `--how published --code PATH` trains the authors' own code instead, see `published.py`. Five seeds of any of them
are also compared with the recorded runs of the fleet: the difference must not be told from chance, which is to say that
zero lies in the interval that a bootstrap gives for it.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dreamfleet.commands.plot.curves import read_curves
from dreamfleet.core.statistics import bootstrap_difference

BANDS = Path(__file__).with_name("learning_bands.json")
LAST = 0.2  # of a run's steps
MIN_SEEDS = 5
DEVIATIONS = 3.0
MIN_ROOM = 0.05  # of the way from a random policy to the best one
LONGEST_S = 1200.0
COMMON = [
    "agent=dreamer",
    "agent.size=tiny",
    "agent.opt.lr=1e-3",
    "agent.opt.warmup=50",
    "jax.platform=cpu",
    "jax.compute_dtype=float32",
    "report_length=8",
    "replay.size=1e5",
    "run.envs=4",
    "run.eval_envs=0",
    "run.train_ratio=32",
]
SMALL_BATCH = ["batch_size=8", "batch_length=16"]
# Rewards of 1 at most are small against other losses.
REWARD = ["agent.loss_scales.rew=10"]
# A policy that prefers an action before the world model knows why seldom tries the others again: nothing tells it later
# that it was wrong. Entropy that counts for as much as small advantages keeps it open until they are large.
CATCH = [*SMALL_BATCH, *REWARD, "agent.opt.lr=2e-3", "agent.imag_last=8", "agent.imag_loss.actent=0.1"]
# Six rows instead of ten: more episodes. Thirty zeros and ones weigh little against other losses, where an image of
# them has thousands of pixels.
BOARD = ["env.kwargs.rows=6", "agent.loss_scales.rec=10", "agent.dyn.stoch=4"]
PIXELS = ["env.kwargs.rows=6", "agent.dyn.stoch=8"]


@dataclass(frozen=True)
class Task:
    words: list[str]
    steps: int
    least: float  # what a policy that chooses at random gets
    most: float


TASKS = {
    "bandit": Task(["env=bandit", *COMMON, *SMALL_BATCH], 5000, 0.53, 0.9),
    "catch": Task(["env=catch:vector", *COMMON, *CATCH, *BOARD], 8000, -0.6, 1.0),
    "pixels": Task(["env=catch", *COMMON, *CATCH, *PIXELS], 7000, -0.6, 1.0),
    # Where all actions are taken equally often, the cue says nothing about the reward, and nothing makes the agent keep
    # it in mind: a policy that begins with a preference of its own shows that it matters. Latents that nothing has to
    # be written into are noise that hides the cue: there are few. One reward per episode: many episodes per update.
    "memory": Task(
        [
            "env=memory",
            *COMMON,
            *REWARD,
            "agent.policy.unimix=0.05",
            "batch_size=16",
            "batch_length=32",
            "agent.opt.lr=2e-3",
            "agent.dyn.stoch=8",
            "agent.imag_last=2",
            "agent.policy.outscale=1",
        ],
        48000,
        0.5,
        1.0,
    ),
    # Until the learning rate is down to nothing: before that, some seeds rise and fall.
    "cartpole": Task(["quickstart", "run.goal=null", "run.duration=0"], 64000, 20.0, 500.0),
}
HOW = ("fleet", "single", "resumed", "published")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--at-once", type=int, default=1, help="runs side by side")
    parser.add_argument("--how", choices=HOW, default="fleet")
    parser.add_argument("--code", type=Path, help="folder of the authors' code, with --how published")
    parser.add_argument("--record", action="store_true", help="write the bands anew for these tasks")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    options = parser.parse_args()
    if options.record and (options.seeds < MIN_SEEDS or options.how != "fleet"):
        parser.error(f"--record is for fleets, with --seeds {MIN_SEEDS} at least")
    if (options.how == "published") != (options.code is not None):
        parser.error("--how published and --code PATH go together")
    if options.how == "published" and "memory" in options.tasks:
        parser.error(
            "the authors' code mixes no uniform actions in, which the task memory needs: name --tasks without it"
        )
    bands = json.loads(BANDS.read_text()) if BANDS.exists() else {}
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    found = {}
    compared = options.how != "fleet" and options.seeds >= MIN_SEEDS
    with ThreadPoolExecutor(options.at_once) as pool, ExitStack() as leaving:
        leaving.callback(pool.shutdown, wait=False, cancel_futures=True)  # what waits, when a run has failed
        runs = {name: [pool.submit(run, name, seed, options) for seed in seeds] for name in options.tasks}
        for name, futures in runs.items():
            scores = [future.result() for future in futures]
            if options.record:
                bands[name] = {"scores": scores, "low": round(lower_end(TASKS[name], scores), 4)}
                BANDS.write_text(json.dumps(bands, indent=2) + "\n")
            found[name] = judge(scores, bands.get(name), compared)
            if not options.json:
                print(f"{name:10} {found[name]}", flush=True)
    if options.json:
        print(json.dumps(found))
    raise SystemExit(0 if all(result["ok"] for result in found.values()) else 1)


def judge(scores: list[float], band: dict[str, Any] | None, compared: bool) -> dict[str, Any]:
    """What the scores are worth beside those that were recorded; there is no verdict without them."""
    if band is None:
        return {"word": "NO BAND", "ok": False, "scores": scores}
    found = {"scores": scores, "low": band["low"], "mean": round(statistics.mean(scores), 4)}
    ok, word = min(scores) >= band["low"], "TOO LOW"
    if compared:
        found["recorded_mean"] = round(statistics.mean(band["scores"]), 4)
        found["difference"] = [round(end, 4) for end in bootstrap_difference(scores, band["scores"])]
        if ok and not found["difference"][0] <= 0 <= found["difference"][1]:
            ok, word = False, "DIFFERS"
    return {"word": "ok" if ok else word, "ok": ok, **found}


def lower_end(task: Task, scores: list[float]) -> float:
    room = max(DEVIATIONS * statistics.stdev(scores), MIN_ROOM * (task.most - task.least))
    low = statistics.mean(scores) - room
    if low < (task.least + task.most) / 2:
        raise SystemExit(f"seeds differ too much or learn too little for a band: {scores}, which begins at {low:.3g}")
    return low


def run(name: str, seed: int, options: argparse.Namespace) -> float:
    task, how = TASKS[name], options.how
    folder = Path(tempfile.mkdtemp(prefix=f"dreamfleet-learning-{name}-"))
    words = [*task.words, f"seed={seed}", f"run.steps={task.steps}", "run.save_every=0", "run.report_every=0"]
    if how == "single":
        words += ["run.script=single", "run.report_every_steps=0"]
    if how == "published":
        train_published(words, folder / "run", options.code)
    else:
        if how == "resumed":
            train(words, folder / "run", stop_at=task.steps // 2)
        train(words, folder / "run")
    found = score(folder / "run", task)
    shutil.rmtree(folder)  # kept if something went wrong
    print(f"{name} seed {seed}: {found}", file=sys.stderr, flush=True)
    return found


def train(words: list[str], folder: Path, stop_at: int | None = None, longest_s: float = LONGEST_S) -> None:
    """To its end; or until the run has done so many steps, when it is asked to stop as Ctrl-C does."""
    command = [sys.executable, "-m", "dreamfleet", "train", *words, "--quiet", "--run-dir", str(folder)]
    deadline = time.monotonic() + longest_s
    with subprocess.Popen(command) as process:
        asked = False
        while process.poll() is None:
            try:
                process.wait(0.5)
            except subprocess.TimeoutExpired:
                if time.monotonic() > deadline:
                    process.terminate()
                    process.wait(60)
                    raise SystemExit(f"the run in {folder} took longer than {longest_s:g} s") from None
                if stop_at and not asked and step(folder) >= stop_at:
                    asked = True
                    process.send_signal(signal.SIGINT)
    wanted = 130 if stop_at else 0
    if process.returncode != wanted:
        raise SystemExit(f"the run in {folder} ended with code {process.returncode}")


def train_published(words: list[str], folder: Path, code: Path) -> None:
    script = Path(__file__).with_name("published.py")
    command = [sys.executable, str(script), "--code", str(code), "--run-dir", str(folder), *words]
    with (folder.parent / "log").open("w") as log:
        try:
            subprocess.run(command, check=True, stdout=log, stderr=log, timeout=LONGEST_S)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            raise SystemExit(f"{error}: see {folder.parent}/log") from None


def step(folder: Path) -> int:
    try:
        status: dict[str, Any] = json.loads((folder / "status.json").read_text())
        return int(status["roles"]["agent"]["status"]["actor"]["step"])
    except (OSError, ValueError, KeyError, TypeError):  # not there yet
        return 0


def score(folder: Path, task: Task) -> float:
    curve = read_curves([str(folder)], "episode/return", "steps")[0]
    last = curve.ys[curve.xs > (1 - LAST) * task.steps]
    return round(float(last.mean()), 4)


if __name__ == "__main__":
    main()
