"""Train whole published budgets in the order of a list, and keep what came of them.

    python benchmarks/proof.py run [--seconds 570] [--machine-minutes 27] [--at-once 2] [--back DIR]
    python benchmarks/proof.py collect DIR --reference FILE [FILE ...]
    python benchmarks/proof.py left

`run` trains the runs of `proof_runs.yaml` that have no result yet; without a limit, all of them. With `--seconds`, it
stops unfinished runs cleanly before the time is over; called again on the same machine, it resumes them.
`--machine-minutes` limits the time since the first call: no run starts that cannot finish by then. Records of finished
runs are in the file `proof.jsonl.gz` of `--back`.

`collect` adds such files to docs/results/proof and writes the table and the figure. It refuses a damaged record, one of
other settings than those of the list, and a second result of the same run.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dreamfleet.commands.plot.curves import read_reference
from dreamfleet.commands.reproduce.command import score_published
from dreamfleet.core.errors import BadInput
from ledger.making import RECORDS, Budget, Session, machine_end
from ledger.records import Record, RefusedRecord, check_record, current_commit, curve_of, read_records
from ledger.report import draw, table
from ledger.runs import Run, expected_minutes, load_runs

HERE = Path(__file__).resolve().parent
RESULTS = HERE.parent / "docs" / "results" / "proof"
LIST = HERE / "proof_runs.yaml"
RAW = ("episodes", "frames_per_step", "metrics", "config")  # of a record, kept in a file of its own


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", type=Path, default=LIST, help="the runs, in order")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the results")
    commands = parser.add_subparsers(required=True)
    run = commands.add_parser("run", help="train the next runs")
    run.add_argument("--out", type=Path, default=Path("runs/proof"), help="folder of the runs")
    run.add_argument("--back", type=Path, help="folder for the records of finished runs (default: --out)")
    run.add_argument("--seconds", type=float, default=math.inf, help="how long this call may take")
    run.add_argument("--reserve", type=float, default=45.0, help="seconds of it reserved for a clean stop")
    run.add_argument("--machine-minutes", type=float, default=math.inf, help="how long the machine is available")
    run.add_argument("--at-once", type=int, default=1, help="runs side by side")
    run.add_argument("--commit", default="", help="commit of the code, outside a checkout")
    run.set_defaults(do=make)
    take = commands.add_parser("collect", help="add finished runs to the results")
    take.add_argument("folder", type=Path)
    take.add_argument("--reference", type=Path, nargs="+", default=[], help="files of published curves")
    take.set_defaults(do=collect)
    commands.add_parser("left", help="show the runs without a result").set_defaults(do=left)
    options = parser.parse_args()
    try:
        return int(options.do(options, load_runs(options.list)))
    except BadInput as error:
        print(error, file=sys.stderr)
        return 2


def make(options: argparse.Namespace, runs: Sequence[Run]) -> int:
    now = time.time()
    machine = machine_end(options.out, options.machine_minutes) if math.isfinite(options.machine_minutes) else math.inf
    kill = min(now + options.seconds, machine)
    session = Session(
        runs,
        options.out,
        options.back or options.out,
        options.at_once,
        Budget(kill - options.reserve, kill, machine),
        options.commit or current_commit(HERE),
        read_results(options.results),
        ["jax.prealloc=false"] if options.at_once > 1 else [],
    )
    outcome = asyncio.run(session.make())
    print(json.dumps(outcome, indent=1))
    return 1 if outcome["failed"] else 0


def collect(options: argparse.Namespace, runs: Sequence[Run]) -> int:
    known = {run.name: run for run in runs}
    results = {result["name"]: result for result in read_results(options.results)}
    files = sorted(options.folder.rglob(RECORDS))
    if not files:
        raise BadInput(f"no {RECORDS} under {options.folder}: pass the folder that `run` wrote to")
    refused = 0
    for file in files:
        try:
            for record in read_records(file):
                refused += not take_in(record, known, results, options.results)
        except RefusedRecord as error:
            refused += 1
            print(f"refused: {error}", file=sys.stderr)
    order = {run.name: number for number, run in enumerate(runs)}
    kept = sorted(results.values(), key=lambda result: order.get(result["name"], len(order)))
    write_results(options.results, kept, options.reference)
    print(f"{len(kept)} of {len(runs)} runs have a result, {refused} refused: {options.results / 'table.md'}")
    return 1 if refused else 0


def take_in(record: Any, known: dict[str, Run], results: dict[str, Record], folder: Path) -> bool:
    """Add a record to the results and return True, or print why it is refused. A known record changes nothing."""
    try:
        check_record(record, known)
        before = results.get(record["name"])
        if before and before["sha256"] != record["sha256"]:
            raise RefusedRecord(f"{record['name']} already has a different result, of commit {before['commit']}")
    except RefusedRecord as error:
        print(f"refused: {error}", file=sys.stderr)
        return False
    if not before:
        raw = raw_file(folder, record["name"])
        raw.parent.mkdir(parents=True, exist_ok=True)
        raw.write_bytes(gzip.compress(json.dumps({key: record[key] for key in RAW}).encode(), mtime=0))
        results[record["name"]] = {key: value for key, value in record.items() if key not in RAW}
        print(f"{record['name']}: {record['score']:.1f}")
    return True


def raw_file(folder: Path, name: str) -> Path:
    """Return the file of a run's episodes, metrics and configuration."""
    return folder / "records" / f"{name}.json.gz"


def read_results(folder: Path) -> list[Record]:
    path = folder / "results.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def write_results(folder: Path, results: Sequence[Record], references: Sequence[Path]) -> None:
    """Write the table and the figure. Published scores are kept in the folder, published curves are not."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.jsonl").write_text("".join(json.dumps(result) + "\n" for result in results))
    scores = folder / "published.json"
    published = json.loads(scores.read_text()) if scores.exists() else {}
    curves = []
    for env, frames in dict.fromkeys((result["env"], result["frames"]) for result in results):
        for reference in references:
            try:
                published[env] = list(score_published(reference, env, frames).seeds)
                curves += read_reference(reference, [env])
            except BadInput:  # not in this file
                continue
    scores.write_text(json.dumps(published, indent=1) + "\n")
    without_raw = {result["name"] for result in results if not raw_file(folder, result["name"]).exists()}
    (folder / "table.md").write_text(table(results, published, without_raw))
    ours = []
    for result in results:
        path = raw_file(folder, result["name"])
        if not path.exists():
            continue
        raw = json.loads(gzip.decompress(path.read_bytes()))
        curve = curve_of({**result, **raw})
        ours.append(type(curve)(curve.task, result["size"], curve.xs, curve.ys))
    if ours:
        draw(ours, curves, folder / "curves.png")


def left(options: argparse.Namespace, runs: Sequence[Run]) -> int:
    results = read_results(options.results)
    done = {result["name"] for result in results}
    for run in runs:
        if run.name not in done:
            print(f"{run.name:45} {expected_minutes(run, 1, results):5.1f} minutes")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
