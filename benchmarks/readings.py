"""Whether a tiny agent learns a board game better from classes or numbers than from an image of the board.

    python benchmarks/readings.py [--seeds 5] [--first-seed 0] [--at-once 1] [--readings classes image] [--json]

The game is the built-in `blocks` on a board of 4 columns, trained by the whole fleet on the CPU. A score is the mean
return of the training episodes in the last fifth of the steps; at random it is 0.69, and a player that looks one block
ahead gets 7.6. `dark` is the image as every box of bytes was read once: not scaled to 255, so nearly black.

Beside each reading stands how far classes are above it, as the interval of a bootstrap. The command ends with code 1
unless they are better than `dark`: the interval lies above zero.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from dreamfleet.core.statistics import bootstrap_difference
from learning import COMMON, SMALL_BATCH, Task, score, train

GAME = ["env=blocks", "env.kwargs.columns=4", "env.kwargs.blocks=20", *COMMON, *SMALL_BATCH]
# The smallest image that the encoder takes, which is the quickest to learn from.
IMAGE = ["env.read={board: image}", "env.size=48"]
READINGS = {
    "classes": ["env.read={board: classes}"],
    "numbers": ["env.read={board: numbers}"],
    "image": IMAGE,
    "dark": [*IMAGE, "env.kwargs.high=255"],
}
STEPS = 4000
LONGEST_S = 3600.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--readings", nargs="+", choices=READINGS, default=list(READINGS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--at-once", type=int, default=1, help="runs side by side")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    options = parser.parse_args()
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    with ThreadPoolExecutor(options.at_once) as pool, ExitStack() as leaving:
        leaving.callback(pool.shutdown, wait=False, cancel_futures=True)  # what waits, when a run has failed
        # All readings of a seed together: what is found so far is worth something at any time.
        runs = {
            (name, seed): pool.submit(run, name, seed, options.steps) for seed in seeds for name in options.readings
        }
        scores = {name: [runs[name, seed].result() for seed in seeds] for name in options.readings}
    found = {name: {"scores": values, "mean": round(statistics.mean(values), 3)} for name, values in scores.items()}
    for name in found.keys() - {"classes"} if "classes" in found else ():
        ends = bootstrap_difference(scores["classes"], scores[name])
        found[name]["classes_above_it_by"] = [round(end, 3) for end in ends]
    if options.json:
        print(json.dumps(found))
    else:
        for name, result in found.items():
            print(f"{name:8} {result}")
    raise SystemExit(1 if found.get("dark", {}).get("classes_above_it_by", [1])[0] <= 0 else 0)


def run(name: str, seed: int, steps: int) -> float:
    folder = Path(tempfile.mkdtemp(prefix=f"dreamfleet-readings-{name}-"))
    ends = [f"seed={seed}", f"run.steps={steps}", "run.save_every=0", "run.report_every=0"]
    task = Task([*GAME, *READINGS[name], *ends], steps, 0.69, 7.6)
    train(task.words, folder / "run", longest_s=LONGEST_S)
    found = score(folder / "run", task)
    shutil.rmtree(folder)  # kept if something went wrong
    print(f"{name} seed {seed}: {found}", file=sys.stderr, flush=True)
    return found


if __name__ == "__main__":
    main()
