"""Fill the replay of an unused run folder from files, and show its contents."""

from __future__ import annotations

import glob
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dreamfleet.checkpoint.arrays import load_arrays, save_arrays
from dreamfleet.checkpoint.snapshot import Snapshots
from dreamfleet.config.args import FleetArgs
from dreamfleet.config.load import save_config
from dreamfleet.config.schema import Config
from dreamfleet.core.errors import BadInput
from dreamfleet.core.spaces import Space
from dreamfleet.core.text.formatting import nbytes
from dreamfleet.launch.dreamer import latent_bytes, latent_spaces
from dreamfleet.launch.env_probe import ask_spaces
from dreamfleet.launch.factories import check_names, make_stream
from dreamfleet.launch.preflight import free_memory
from dreamfleet.launch.replay_options import replay_options
from dreamfleet.replay.columns import step_bytes
from dreamfleet.replay.offline import insert_episodes, read_episode
from dreamfleet.replay.projection import stored_layout
from dreamfleet.replay.store import ReplayStore
from dreamfleet.replay.summary import ReplaySummary, summarize
from dreamfleet.runs.resume import CONFIG_FILE, continued_config
from dreamfleet.runs.run_folder import RunFolder

BAR_WIDTH = 40
MODES = ("train", "eval")


def split_words(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Separate files from overrides. Shells expand a pattern after --from into further arguments."""
    files = [word for word in words if word.endswith(".npz") and Path(word).exists()]
    return files, [word for word in words if word not in files]


def import_episodes(run_dir: Path, patterns: Sequence[str], overrides: Sequence[str]) -> str:
    """Write a snapshot that training starts from. All files are checked before anything is written."""
    config = continued_config(run_dir, list(overrides))
    check_names(config)
    files = _find_files(patterns)
    with RunFolder(run_dir) as folder:
        if Snapshots(folder.path).latest() is not None:
            raise BadInput(f"{run_dir} holds a snapshot already: import into another folder, before training")
        asked = ask_spaces(config, config.run.start_timeout_s)
        layout = stored_layout(asked.obs, asked.act)
        spaces = {key: space for key, space in {**asked.obs, **asked.act}.items() if key in layout}
        lengths = [len(read_episode(file, spaces)["is_first"]) for file in files]
        _check_room(config, lengths, step_bytes(layout) + latent_bytes(config))
        _write_snapshot(config, folder.path, files, lengths, spaces)
        save_config(config, folder.path / CONFIG_FILE)
    short = sum(length < config.sample_length for length in lengths)
    hint = f"; {short} are shorter than one sample of {config.sample_length} steps and never drawn" if short else ""
    return f"imported {sum(lengths)} steps of {len(lengths)} episodes into {run_dir}{hint}"


def replay_info(run_dir: Path) -> dict[str, Any]:
    """Return the contents of both replays in the latest snapshot."""
    latest = Snapshots(run_dir).latest()
    if latest is None:
        raise BadInput(f"{run_dir} holds no snapshot, and so no replay: train there, or import episodes")
    found = {mode: _summarize(run_dir, latest, mode).to_json() for mode in MODES}
    return {"snapshot": latest.name, **found["train"], "eval": found["eval"]}


def info_table(info: dict[str, Any]) -> str:
    lines = [f"{'snapshot':16}{info['snapshot']}"]
    for key in ("steps", "episodes", "streams", "bytes_on_disk"):
        lines.append(f"{key.replace('_', ' '):16}{info[key]:<16}{'eval':8}{info['eval'][key]}")
    for mode, part in (("", info), (" of eval", info["eval"])):
        if part["chunks_damaged"]:
            lines.append(f"{part['chunks_damaged']} chunk files{mode} are missing or damaged")
    return "\n".join([*lines, *_histogram(info["returns"])])


def _histogram(returns: dict[str, Any]) -> list[str]:
    if not returns["counts"]:
        return ["no whole episode"]
    lines = [f"returns from {returns['min']:g} to {returns['max']:g}, {returns['mean']:g} on average"]
    most = max(returns["counts"])
    for count, low, high in zip(returns["counts"], returns["edges"], returns["edges"][1:], strict=False):
        lines.append(f"{low:>12.4g} .. {high:<12.4g}{count:>8}  {'#' * round(BAR_WIDTH * count / most)}")
    return lines


def _summarize(run_dir: Path, snapshot: Path, mode: str) -> ReplaySummary:
    part = snapshot / f"replay_{mode}.safetensors"
    if not part.exists():
        raise BadInput(f"{snapshot} has no replay: it is on the machine where `dreamfleet role replay` ran")
    return summarize(run_dir / "replay" / mode, load_arrays(part))


def _find_files(patterns: Sequence[str]) -> list[Path]:
    found: dict[Path, None] = {}
    for pattern in patterns:
        matches = [pattern]
        if not Path(pattern).exists():
            matches = sorted(glob.glob(pattern, recursive=True))  # noqa: PTH207, Path.glob takes none that is absolute
        if not matches:
            raise BadInput(f"no file matches --from {pattern!r}")
        found.update(dict.fromkeys(Path(match) for match in matches))
    return list(found)


def _check_room(config: Config, lengths: Sequence[int], size: int) -> None:
    steps, needed = sum(lengths), config.sample_length
    if max(lengths) < needed:
        raise BadInput(f"no episode has the {needed} steps of one sample: set a smaller batch_length")
    if steps * size > free_memory():
        raise BadInput(
            f"{steps} steps of {size} bytes need {nbytes(steps * size)} of memory, {nbytes(free_memory())} are free: "
            "import fewer episodes"
        )


def _write_snapshot(
    config: Config, run: Path, files: Sequence[Path], lengths: Sequence[int], spaces: dict[str, Space]
) -> None:
    """Write the snapshot like the roles of a fleet. Imported steps count as steps of the run."""
    from dreamfleet.roles.connect import snapshot_request
    from dreamfleet.roles.replay import ReplayRole

    train, evaluation = (ReplayStore(replay_options(config, run, mode)) for mode in MODES)
    try:
        insert_episodes(train, files, spaces, latent_spaces(config))
        _check_all_there(train, lengths)
        role = ReplayRole(train, evaluation, partial(make_stream, config), FleetArgs.from_config(config, run))
        steps = sum(lengths)
        role.limiter.inserted(steps)
        counts = role.limiter.save()
        # Imported steps need no catch-up training, during which environments would be blocked.
        role.limiter.load({**counts, "balance": min(0.0, counts["balance"])})
        snapshots = Snapshots(run)
        folder = snapshots.begin(steps)
        save_arrays(folder / "logger.safetensors", {"step": np.array(steps, np.int64)})
        role.save(snapshot_request(steps, snapshots.token))
        snapshots.commit(steps, {"updates": 0, "imported": True}, ("replay", "logger"))
    except BaseException:
        _close(train, evaluation)
        shutil.rmtree(run / "replay", ignore_errors=True)  # no snapshot names these files
        raise
    _close(train, evaluation)


def _close(*stores: ReplayStore) -> None:
    for store in stores:
        store.close()


def _check_all_there(store: ReplayStore, lengths: Sequence[int]) -> None:
    windows = sum(max(0, length - store.length + 1) for length in lengths)
    if len(store) < windows:
        raise BadInput(
            f"only {len(store)} of the {windows} windows of {len(lengths)} episodes fit: "
            "set a larger replay.size or replay.size_bytes, or a smaller replay.chunksize (every episode takes a chunk)"
        )
