"""What doctor finds, on this machine and on ones that lack something, and that no probe can stop it."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from dreamfleet.commands.doctor import devices, machine, rendering, sockets, software
from dreamfleet.commands.doctor.command import PROBES, examine
from dreamfleet.commands.doctor.findings import NOTE, OK, PROBLEM, Finding, findings_json, findings_text, stops_training
from dreamfleet.envs.render.backend import Trial
from dreamfleet.supervision.machine import cgroup_cores, memory_bytes

QUICK = {item: probe for item, probe in PROBES.items() if item != "JAX"}  # which has a test of its own


def level_of(findings: list[Finding]) -> str:
    (finding,) = findings
    assert finding.level == OK or finding.fix, "whatever is wrong comes with what to do about it"
    return finding.level


def test_this_machine_can_train() -> None:
    findings = examine(QUICK)
    assert not stops_training(findings), findings_text(findings)
    assert {finding.item for finding in findings} >= set(QUICK)


def test_jax_is_tried_in_a_process_of_its_own() -> None:
    (finding,) = devices.jax(deadline_s=60)
    assert finding.level in (OK, NOTE)
    assert " on " in finding.text


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("import signal; signal.pause()", "no answer within 0.3 s"),
        ("import os; os.abort()", "signal SIGABRT"),
        ("raise RuntimeError('no CUDA driver')", "RuntimeError: no CUDA driver"),
        ("import no_such_module", "ModuleNotFoundError"),
    ],
)
def test_a_jax_that_hangs_crashes_or_lacks_is_a_problem(program: str, words: str) -> None:
    (finding,) = devices.jax(program, deadline_s=0.3 if "pause" in program else 30)
    assert finding.level == PROBLEM
    assert words in finding.text
    assert finding.fix


def test_a_gpu_that_jax_does_not_use_is_noted(monkeypatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    answer = {"version": "1.0", "backend": "cpu", "kinds": ["cpu"]}
    assert devices.jax_finding(answer, []).level == OK
    finding = devices.jax_finding(answer, ["NVIDIA H200, 143771, 140000"])
    assert (finding.level, finding.fix) == (NOTE, "pip install 'dreamfleet[cuda]'")


def test_each_gpu_is_told_with_its_memory() -> None:
    full, free = devices.gpu_findings(["NVIDIA H200, 143771, 512", "NVIDIA H200, 143771, 143000"])
    assert (full.level, free.level) == (NOTE, OK)
    assert free.text == "NVIDIA H200: 139.6 GiB of 140.4 GiB free"
    assert level_of(devices.gpu_findings([])) == NOTE


@pytest.mark.parametrize(
    ("free", "level"), [(0.5e9, PROBLEM), (2e9, NOTE), (20e9, OK)], ids=["none", "little", "enough"]
)
def test_little_memory_or_disk_is_told(free: float, level: str) -> None:
    assert machine.memory_finding(32e9, free).level == level
    assert machine.disk_finding(Path("runs"), 1e9, free).level == level


def test_a_slow_disk_is_noted_and_one_that_cannot_be_written_a_problem(tmp_path) -> None:
    assert level_of([machine.disk_finding(tmp_path, 5e6, 1e12)]) == NOTE
    assert level_of(machine.disk(tmp_path / "missing")) == PROBLEM
    machine.disk(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_for_compiled_functions_that_cannot_be_written_is_noted(tmp_path, monkeypatch) -> None:
    folder = "~/.cache/dreamfleet/compiled"  # the default of jax.cache
    monkeypatch.setenv("HOME", str(tmp_path))
    (finding,) = machine.compiled()
    assert (finding.level, finding.text) == (OK, f"functions are kept in {tmp_path}/.cache/dreamfleet/compiled")
    assert list(tmp_path.iterdir()) == [], "doctor changes nothing"
    (tmp_path / "file").touch()
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    (finding,) = machine.compiled()
    assert level_of([finding]) == NOTE
    assert folder in finding.text
    assert "jax.cache" in finding.fix


def test_shared_memory_that_is_missing_is_noted(tmp_path) -> None:
    assert level_of(machine.shared_memory(tmp_path / "missing")) == NOTE
    assert level_of(machine.shared_memory(tmp_path)) in (OK, NOTE)


def test_a_low_limit_of_open_files_comes_with_the_command_that_raises_it() -> None:
    assert machine.open_files_finding(20000, 20000).level == OK
    finding = machine.open_files_finding(512, 8192)
    assert (finding.level, finding.fix) == (NOTE, "ulimit -n 4096")
    assert machine.open_files_finding(100, 100).level == PROBLEM


EGL, NOTHING = Trial("egl", "llvmpipe"), Trial(reason="egl: libEGL.so.1 is missing")


@pytest.mark.parametrize(
    ("environment", "trial", "level", "words"),
    [
        ({}, EGL, OK, "no display, egl draws on llvmpipe: MUJOCO_GL=egl PYOPENGL_PLATFORM=egl PYGLET_HEADLESS=1"),
        ({}, NOTHING, NOTE, "no display; nothing draws without one: egl: libEGL.so.1 is missing"),
        ({"DISPLAY": ":0"}, EGL, OK, "display :0, egl draws on llvmpipe"),
        ({"DISPLAY": ":0"}, NOTHING, NOTE, "nothing draws without one"),  # where dmc draws
        ({"MUJOCO_GL": "egl"}, NOTHING, NOTE, "MUJOCO_GL=egl; nothing draws without one"),
        ({"MUJOCO_GL": "egl"}, EGL, OK, "MUJOCO_GL=egl, egl draws on llvmpipe"),
        ({"MUJOCO_GL": "glfw"}, EGL, NOTE, "MUJOCO_GL=glfw, which needs a display"),
        ({"MUJOCO_GL": "glfw", "DISPLAY": ":0"}, NOTHING, OK, "display :0, MUJOCO_GL=glfw"),
    ],
)
def test_how_environments_draw_is_tried_and_shown(
    environment: dict[str, str], trial: Trial, level: str, words: str
) -> None:
    finding = rendering.rendering_finding(environment, trial)
    assert level_of([finding]) == level
    assert words in finding.text


def test_python_that_is_too_old_is_a_problem() -> None:
    assert software.python_finding((3, 10)).level == PROBLEM
    assert software.python_finding((3, 12)).level != PROBLEM


def test_every_suite_is_installed_or_comes_with_its_command() -> None:
    from dreamfleet.envs.catalog import SUITES

    there, *lacking = software.suites()
    installed = there.text.split(", ")
    assert "dummy" in installed
    assert len(installed) + len(lacking) == len(SUITES)
    assert all(finding.fix for finding in lacking)


def test_an_address_where_nobody_can_listen_is_said() -> None:
    assert sockets.exchange("tcp://127.0.0.1:*") is None
    assert sockets.exchange("ipc:///no/such/folder/socket") is not None


def test_a_probe_that_raises_or_hangs_is_a_finding_and_the_others_go_on() -> None:
    def broken() -> list[Finding]:
        raise OSError("no /proc")

    def hanging() -> list[Finding]:
        ended.wait(60)
        return []

    ended = threading.Event()
    start = time.monotonic()
    probes = {"broken": broken, "hanging": hanging, "fine": lambda: [Finding("fine", OK, "yes")]}
    findings = examine(probes, deadline_s=0.5)
    ended.set()
    assert time.monotonic() - start < 30
    assert [finding.level for finding in findings] == [NOTE, NOTE, OK]
    assert "OSError: no /proc" in findings[0].text
    assert "no answer within 0.5 s" in findings[1].text


def test_the_text_fits_80_columns_and_says_whether_training_would_stop() -> None:
    some = [Finding("disk", PROBLEM, "cannot be written " * 8, "choose another " * 8), Finding("JAX", OK, "fine")]
    text = findings_text(some)
    assert max(map(len, text.splitlines())) <= 80
    assert text.splitlines()[-1].startswith("1 problem would stop training")
    assert findings_json(some)["ok"] is False
    assert findings_text(some[1:]).splitlines()[-1] == "Nothing here stops training."


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, float("inf")),
        ({"cpu.max": "max 100000\n"}, float("inf")),
        ({"cpu.max": "150000 100000\n"}, 1.5),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, float("inf")),
        ({"cpu/cpu.cfs_quota_us": "400000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 4.0),
    ],
)
def test_the_quota_of_a_container_is_read(tmp_path, files: dict[str, str], cores: float) -> None:
    assert cgroup_cores(write(tmp_path, files)) == cores


@pytest.mark.parametrize(
    "names", [("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes")]
)
def test_the_memory_of_a_container_is_read(tmp_path, names: tuple[str, str]) -> None:
    limit, used = names
    assert memory_bytes(write(tmp_path, {limit: "50000000\n", used: "20000000\n"})) == (50_000_000, 30_000_000)
    write(tmp_path, {limit: "max\n" if "." in limit[:7] else "9223372036854771712\n"})
    assert memory_bytes(tmp_path)[0] > 50_000_000
