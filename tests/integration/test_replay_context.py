"""A fleet trains from the latents that were stored while acting."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.cli_fleet import dreamfleet
from support.latent_probe import RESULT


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_with_frozen_weights_training_repeats_the_latents_recorded_while_acting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes back from an update is compared for the first step after the context, which no new sample precedes."""
    monkeypatch.setenv(RESULT, str(tmp_path / "found.jsonl"))
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    overrides = [
        "env=support.latent_probe:NoTwoAlike",
        "agent=support.latent_probe:LatentProbe",
        "batch_size=2",
        "batch_length=8",
    ]
    overrides += ["report_length=4", "run.report_every=0", "replay.size=1e4", "run.envs=2", "run.eval_envs=0"]
    ended = dreamfleet(
        "train", *overrides, "run.train_ratio=1", "run.steps=800", "--run-dir", str(tmp_path / "run"), timeout_s=240.0
    )
    assert ended.returncode == 0, ended.stderr
    found = [json.loads(line) for line in (tmp_path / "found.jsonl").read_text().splitlines()]
    within = [finding for finding in found if not finding["first"]]
    assert len(within) >= 10
    assert len(within) < len(found)  # some windows cross from one episode to the next right after the context
    assert max(finding["error"] for finding in found) <= 0.002
    # A state that had stayed as it was would be noticed.
    assert all(finding["error"] < finding["step"] / 5 for finding in within)
