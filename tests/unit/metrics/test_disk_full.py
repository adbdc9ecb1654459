"""A disk without room: sinks are dropped with one line each, and the record goes on once there is room again."""

from __future__ import annotations

from pathlib import Path

from support.small_disk import run_on_small_disk

CHILD = """
import json
import numpy as np
from dreamfleet.metrics.aggregate import MetricsLogger
from dreamfleet.metrics.sinks.catalog import make_sinks
from dreamfleet.metrics.sinks.jsonl import JsonlSink

told = []
sinks = make_sinks(["tensorboard"], folder, {}, 5, told.append)
logger = MetricsLogger([JsonlSink(folder / "metrics.jsonl", told.append)], isolated=sinks)
video = np.random.default_rng(0).integers(0, 255, (8, 64, 64, 3), np.uint8)

def write(step):
    logger.step = step
    logger.add({f"name{number}": step for number in range(30)})
    logger.write()

write(1)
room(1500)
for step in (2, 3, 4, 5, 6):
    write(step)
logger.add({"report/openloop/image": video})
for sink in sinks:
    with sink._changed:
        assert sink._changed.wait_for(lambda: sink._dropped, 30), sink.label
half = (folder / "metrics.jsonl").read_bytes()
assert len(half) == 1500 and not half.endswith(b"\\n"), len(half)
room(hard)
write(7)
logger.close()
rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6, 7], rows
assert all(row["name29"] == row["step"] for row in rows)
assert not list((folder / "videos").iterdir())
print("\\n".join(sorted(told)))
"""


def test_a_full_disk_costs_the_sinks_and_not_the_record(tmp_path: Path) -> None:
    child = run_on_small_disk(CHILD, tmp_path)
    board, video, record = child.stdout.splitlines()
    assert board == "TensorBoard is left out from here on, training goes on: OSError: [Errno 27] File too large"
    assert video.startswith("Video writing is left out from here on, training goes on: OSError: ffmpeg could not write")
    assert record == "cannot write metrics.jsonl, training goes on and it is tried again: File too large"
