"""A disk that fills up: saving fails with what to do, memory goes on, and the next save with room succeeds."""

from __future__ import annotations

from pathlib import Path

from support.small_disk import run_on_small_disk

CHILD = """
from dreamfleet.core.errors import ReplayError
from support.replays import fill, make_store, wait_for_writes, windows_of

LENGTH, CHUNK, CAPACITY = 3, 8, 64
def expect_all(store, windows):
    assert windows_of(store) == windows, windows_of(store)
    batch = store.sample(400, "train")
    assert (batch["value"] == 1000 * batch["stepid"][..., 0] + batch["stepid"][..., 1]).all()
    assert (batch["image"][..., 0, 0] == batch["value"] % 251).all()

store = make_store(LENGTH, CAPACITY, folder, chunksize=CHUNK, context=1)
fill(store, 1, 20)
committed = store.save()
store.committed()
wait_for_writes(store)
files = {path.name for path in folder.iterdir()}

room(4000)  # a step has 1220 bytes, a chunk eight steps
fill(store, 1, 30, start=20)
wait_for_writes(store)
assert store.stats()["write_errors"] >= 3, store.stats()
for _ in range(2):
    try:
        store.save()
    except ReplayError as error:
        assert str(folder) in str(error) and "free space there, or lower replay.size" in str(error), error
    else:
        raise AssertionError("saved without room")
    expect_all(store, [(1, t) for t in range(48)])
fill(store, 2, 40)
expect_all(store, ([(1, t) for t in range(48)] + [(2, t) for t in range(38)])[-CAPACITY:])
wait_for_writes(store)
assert files <= {path.name for path in folder.iterdir()}, "the committed snapshot lost a file"
assert not list(folder.glob("*.tmp"))
assert not store._memory.pins.any()

room(hard)
index = store.save()
store.committed()
wait_for_writes(store)
windows = windows_of(store)
store.close()
restored = make_store(LENGTH, CAPACITY, folder, chunksize=CHUNK, context=1)
restored.load(index)
expect_all(restored, windows)
assert restored.stats()["chunks_damaged"] == 0
restored.close()
print("done")
"""


def test_a_full_disk_costs_no_step_in_memory_and_no_committed_snapshot(tmp_path: Path) -> None:
    child = run_on_small_disk(CHILD, tmp_path)
    assert child.stdout == "done\n"
    assert child.stderr.count("replay is not being written to disk") == 1
    assert child.stderr.count("\n") == 1
