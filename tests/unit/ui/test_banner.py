"""What is said at the start of a run."""

from __future__ import annotations

import pytest

from dreamfleet.ui.banner import agent_lines, start_lines
from support.statuses import make_run


@pytest.mark.parametrize(
    ("batch_steps", "ratio", "steps", "words"),
    [
        (1024, 32.0, 1_100_000, "1 update per 32 env steps, 34,375 updates in all"),
        (1024, 1024.0, 1, "1 update per env step, 1 update in all"),
        (128, 512.0, 1000, "4 updates per env step, 4,000 updates in all"),
        (1024, 24.0, 1000, "1 update per 42.67 env steps, 23 updates in all"),
        (1024, 0.5, 2_000_000, "1 update per 2,048 env steps, 976 updates in all"),
        (1024, 0.0, 1000, "unlimited updates"),
        (1024, 32.0, 10**10, "1 update per 32 env steps, no time limit"),
    ],
)
def test_how_often_the_agent_learns(batch_steps: int, ratio: float, steps: int, words: str) -> None:
    lines = dict(start_lines(make_run(batch_steps=batch_steps, train_ratio=ratio, steps=steps)))
    assert lines["learns"] == words


def test_a_run_with_a_duration_says_how_long() -> None:
    assert dict(start_lines(make_run(steps=10**10, duration=5400.0)))["learns"].endswith(", for 1h 30m")


def test_the_banner_names_everything() -> None:
    lines = list(
        start_lines(
            make_run(
                obs=["image: 64x64x3 pixels", "state: 5 float32"],
                act=["action: 17 choices"],
                memory_bytes=96_000_000_000,
                disk_bytes=104_000_000_000,
                memory_free=123_000_000_000,
                disk_free=999_000_000_000,
                before=5_000,
                eval_envs=4,
                workers=16,
                actor_rows=16,
                batches_ahead=3,
                tensorboard=True,
            )
        )
    )
    assert lines == [
        ("task", "catch: 32 environments, 4 for evaluation"),
        ("fleet", "16 env workers, up to 16 environments a policy call, 3 batches ahead"),
        ("sees", "image: 64x64x3 pixels"),
        ("", "state: 5 float32"),
        ("acts", "action: 17 choices"),
        ("agent", "dreamer tiny, seed 0, on cpu in float32"),
        ("learns", "1 update per 32 env steps, 625 updates in all"),
        ("replay", "up to 96.0 GB of memory, 104.0 GB of disk (123.0 GB, 999.0 GB free)"),
        ("folder", "/runs/catch, resumed at step 5,000"),
        ("watch", "dreamfleet status /runs/catch --watch"),
        ("", "tensorboard --logdir /runs/catch"),
    ]
    assert max(len(words) for _, words in lines) <= 70  # ten columns are taken by the names


def test_a_folder_with_a_space_can_be_copied_into_a_shell() -> None:
    assert dict(start_lines(make_run(folder="/my runs/x")))["watch"] == "dreamfleet status '/my runs/x' --watch"


def test_a_fleet_without_a_configuration_says_what_it_can() -> None:
    assert [name for name, _ in start_lines({"folder": "/x", "steps": 5, "batch_steps": 8, "train_ratio": 1.0})] == [
        "learns",
        "folder",
        "watch",
    ]


def test_the_agent_tells_its_parameters_and_devices() -> None:
    about = {
        "parameters": 12_345_678,
        "parts": {"enc": 345_678, "dyn": 12_000_000},
        "devices": "H200 0",
        "compile_s": 75,
    }
    assert list(agent_lines(about)) == [
        ("agent", "12,345,678 parameters (enc 345.7k, dyn 12.0M)"),
        ("", "on H200 0, compiled in 1m 15s"),
    ]
    assert list(agent_lines({})) == []
