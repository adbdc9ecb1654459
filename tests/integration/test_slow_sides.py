"""Real processes in which one side is slower than the deadline of a wait allows, and yet moves on."""

from __future__ import annotations

from pathlib import Path

from support import slow_sides

WAIT_S = 1.5


def test_an_environment_that_takes_longer_to_the_first_batch_than_a_wait_may_trains(tmp_path: Path) -> None:
    """89 steps, 20 a second, come before the first batch: three times as long as a wait may take."""
    manifest = slow_sides.run_fleet(
        tmp_path, step_s=0.05, update_s=0.0, envs=1, steps=95, train_ratio=3.0, wait_timeout_s=WAIT_S
    )
    assert manifest["step"] == 95
    assert manifest["updates"] >= 1


def test_a_learner_that_holds_steps_back_for_longer_than_a_wait_may_take_goes_on(tmp_path: Path) -> None:
    """Steps wait from the 54th on: every two of them allow 48 windows, which are twelve updates or 2.4 s."""
    manifest = slow_sides.run_fleet(
        tmp_path,
        step_s=0.0,
        update_s=0.2,
        envs=4,
        envs_per_worker=4,
        steps=58,
        train_ratio=192.0,
        wait_timeout_s=WAIT_S,
    )
    assert manifest["step"] == 58
    assert manifest["updates"] >= 2 * WAIT_S / 0.2
