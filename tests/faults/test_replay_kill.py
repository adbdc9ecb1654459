"""A process that is killed while it inserts, updates and saves leaves exactly its last committed snapshot."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dreamfleet.checkpoint.arrays import load_arrays
from support.replays import files_in, make_store, windows_of

LENGTH, CHUNK, STREAMS = 4, 7, 3
UPDATED = 5  # steps of stream 0 that get new latents all the time

CHILD = """
import json, sys, threading
from pathlib import Path
import numpy as np
from dreamfleet.checkpoint.arrays import save_arrays
from support.replays import make_rows, make_store, wait_for_writes

folder, warm_up, capacity = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
store = make_store({LENGTH}, capacity, folder / "replay", chunksize={CHUNK}, context=1)
grown, inserted, updated = threading.Condition(), [0], threading.Event()

def insert(base):
    for index in range(10**9):
        store.add_batch(make_rows([base + s for s in range({STREAMS})], [1000 * s + index for s in range({STREAMS})]))
        with grown:
            inserted[0] += 1
            grown.notify_all()
        slow.wait(0.0002)

def update():
    stepid = np.array([[[0, 30 + t] for t in range({UPDATED})]])
    count = 0
    while True:
        latents = np.full((1, {UPDATED}, 2), count, np.float32)
        if inserted[0] > 40 and store.update({"stepid": stepid, "dyn/deter": latents}) == 0:
            count += 1
            updated.set()
        slow.wait(0.0001)

def wait_for_inserts(count):
    with grown:
        grown.wait_for(lambda: inserted[0] >= count, 30)

def capture(memory):
    captured["inserts"] = store._counts["inserts"]
    captured["updates"] = store._counts["updates"]
    return copy_index(memory)

slow, captured = threading.Event(), {}
threading.Thread(target=insert, args=(0,), daemon=True).start()
threading.Thread(target=update, daemon=True).start()
wait_for_inserts(warm_up)
updated.wait(30)
copy_index, store._copy_index = store._copy_index, capture
index = store.save()
store._copy_index = copy_index
save_arrays(folder / "index", index)
(folder / "captured").write_text(json.dumps(captured))
store.committed()
wait_for_inserts(inserted[0] + 30)
wait_for_writes(store)
print("killme", flush=True)
while True:
    store.save()
"""


@pytest.mark.parametrize(
    ("warm_up", "capacity"), [(50, 100_000), (100, 120)], ids=["before eviction", "while steps are evicted"]
)
def test_after_a_kill_the_snapshot_is_there_to_the_step(tmp_path: Path, warm_up: int, capacity: int) -> None:
    names = {"LENGTH": LENGTH, "CHUNK": CHUNK, "STREAMS": STREAMS, "UPDATED": UPDATED}
    script = CHILD
    for name, value in names.items():
        script = script.replace("{" + name + "}", str(value))
    tests = str(Path(__file__).parents[1])
    child = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path), str(warm_up), str(capacity)],
        stdout=subprocess.PIPE,
        cwd=tests,
        env={"PYTHONPATH": os.pathsep.join([str(Path(tests).parent / "src"), tests]), "PATH": ""},
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"killme\n"
    finally:
        child.kill()
        child.communicate()
    expect_snapshot(tmp_path, capacity)


def expect_snapshot(folder: Path, capacity: int) -> None:
    captured = json.loads((folder / "captured").read_text())
    leftover = files_in(folder / "replay")
    index = load_arrays(folder / "index")
    store = make_store(LENGTH, capacity, folder / "replay", chunksize=CHUNK, context=1)
    store.load(index)
    steps, rest = divmod(captured["inserts"], STREAMS)
    assert rest == 0
    windows = [(stream, start) for start in range(steps - LENGTH + 1) for stream in range(STREAMS)]
    assert windows_of(store) == windows[-capacity:]
    assert store.stats()["chunks_damaged"] == 0
    assert store.stats()["inserts"] == captured["inserts"]
    batch = store.sample(2000, "report")
    streams, starts = batch["stepid"][:, 0, 0], batch["stepid"][:, 0, 1]
    assert set(zip(streams.tolist(), starts.tolist(), strict=True)) == set(windows[-capacity:])
    assert (batch["value"] == (1000 * streams + starts)[:, None] + np.arange(LENGTH)).all()
    updated = (streams == 0) & (starts >= 30) & (starts < 30 + UPDATED)
    if len(windows) <= capacity:  # none of these steps was evicted: each update wrote all of them
        assert updated.any()
        latest = captured["updates"] // UPDATED - 1
        assert set(batch["dyn/deter"][updated].ravel().tolist()) == {latest}
    own = ~updated
    assert (batch["dyn/deter"][own, 0, 0] == batch["value"][own, 0]).all()
    named = {f"{s}-{start}-steps-{length}.safetensors" for s, start, length, _ in index["chunks"].tolist()}
    named |= {f"{s}-{start}-latents-{version}.safetensors" for s, start, _, version in index["chunks"].tolist()}
    assert files_in(folder / "replay") == named
    assert leftover > named
    store.close()
