"""The supervisor over real processes and threads: how runs start, end and fail."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from dreamfleet.core.errors import BadInput
from dreamfleet.runs.run_folder import RunFolder
from dreamfleet.runs.status import RunState, RunStatus, read_status
from dreamfleet.supervision import supervisor
from dreamfleet.supervision.role_spec import RoleSpec
from dreamfleet.supervision.supervisor import Supervisor
from dreamfleet.ui.run_reader import read_run
from support import fake_roles
from support.fleet_probe import events_of, read_events, wait_until

both_kinds = pytest.mark.parametrize("thread", [False, True], ids=["process", "thread"])


def supervise(run: Path, *specs: RoleSpec, **options: Any) -> int:
    with RunFolder(run) as folder:
        return Supervisor(specs, folder, **options).run()


def beside_idle(target: Callable[[], object], thread: bool = False) -> list[RoleSpec]:
    return [RoleSpec("idle", fake_roles.idle, 0, thread), RoleSpec("role", target, 1, thread)]


@both_kinds
def test_a_finish_report_ends_the_run_with_code_0(tmp_path: Path, thread: bool, capsys: pytest.CaptureFixture) -> None:
    assert supervise(tmp_path, *beside_idle(fake_roles.finishes, thread)) == 0
    status = json.loads((tmp_path / "status.json").read_text())
    assert (status["state"], status["reason"]) == ("done", "goal reached")
    assert [role["state"] for role in status["roles"].values()] == ["done", "done"]
    assert capsys.readouterr().err == ""


def test_a_continued_run_shows_its_restored_step_before_the_agent_reports(tmp_path: Path) -> None:
    about = {"before": 4000, "updates_before": 60}
    assert supervise(tmp_path, *beside_idle(fake_roles.finishes, True), about=about) == 0
    found = read_run(tmp_path)
    assert (found.step, found.updates) == (4000, 60)


@both_kinds
def test_the_duration_ends_the_run_with_code_0(tmp_path: Path, thread: bool) -> None:
    assert supervise(tmp_path, *beside_idle(fake_roles.idle, thread), duration_s=0.2) == 0
    assert events_of(tmp_path, "stop")[0]["detail"]["reason"] == "duration of 0.2 s reached"


@both_kinds
def test_stopped_out_of_a_role_is_a_clean_end(tmp_path: Path, thread: bool) -> None:
    specs = [
        RoleSpec("waits", fake_roles.stopped_in_a_wait, 0, thread),
        RoleSpec("role", fake_roles.finishes, 1, thread),
    ]
    assert supervise(tmp_path, *specs) == 0


@both_kinds
def test_a_failing_role_stops_the_others_and_its_traceback_comes_last(
    tmp_path: Path, thread: bool, capsys: pytest.CaptureFixture
) -> None:
    started = time.monotonic()
    assert supervise(tmp_path, *beside_idle(fake_roles.raises, thread)) == 1
    assert time.monotonic() - started < 10
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert 'raise ValueError("the role broke")' in lines[-3] + lines[-4]
    assert lines[-2:] == ["ValueError: the role broke", "dreamfleet: role failed: ValueError: the role broke"]
    assert "ValueError: the role broke" in (tmp_path / "logs/role.log").read_text()
    assert json.loads((tmp_path / "status.json").read_text())["roles"]["idle"]["state"] == "done"


@both_kinds
def test_an_expected_error_is_one_line_and_its_traceback_is_in_the_log(
    tmp_path: Path, thread: bool, capsys: pytest.CaptureFixture
) -> None:
    assert supervise(tmp_path, *beside_idle(fake_roles.raises_expected, thread)) == 1
    assert capsys.readouterr().err == "dreamfleet: role failed: the environment broke its contract\n"
    assert "Traceback" in (tmp_path / "logs/role.log").read_text()


def test_bad_input_found_by_a_role_has_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert supervise(tmp_path, *beside_idle(fake_roles.raises_bad_input)) == 2
    assert capsys.readouterr().err == "dreamfleet: role failed: address tcp://127.0.0.1:1 is in use\n"


@both_kinds
@pytest.mark.parametrize(
    "target", [fake_roles.returns, fake_roles.raises_stopped_unasked, partial(fake_roles.exits_with, 0)]
)
def test_a_role_that_ends_unasked_fails_the_run(
    tmp_path: Path, thread: bool, target: Callable[[], object], capsys: pytest.CaptureFixture
) -> None:
    assert supervise(tmp_path, *beside_idle(target, thread)) == 1
    assert capsys.readouterr().err.splitlines()[-1].startswith("dreamfleet: role ended unexpectedly, see ")


def test_a_failure_while_stopping_cleanly_is_a_failure(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    specs = [RoleSpec("saver", fake_roles.raises_when_asked_to_stop), RoleSpec("role", fake_roles.finishes)]
    assert supervise(tmp_path, *specs) == 1
    assert capsys.readouterr().err.endswith("dreamfleet: saver failed: RuntimeError: the last save failed\n")


def test_a_role_that_saves_gets_the_time_for_it_when_the_run_ends_well(tmp_path: Path) -> None:
    saver = RoleSpec("saver", partial(fake_roles.stops_slowly, 1.5), 1, saves=True)
    specs = [RoleSpec("role", fake_roles.finishes, 0), saver, RoleSpec("last", fake_roles.idle, 2)]
    assert supervise(tmp_path, *specs, stop_timeout_s=1, save_timeout_s=30) == 0
    assert [entry["role"] for entry in events_of(tmp_path, "exit")] == ["role", "saver", "last"]


def test_status_follows_every_change_of_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "STATUS_EVERY_S", 600.0)
    seen: list[str] = []

    def on_status(status: RunStatus) -> None:
        written = json.loads((tmp_path / "status.json").read_text())["state"]
        if written == "running" and "running" not in seen:
            os.kill(os.getpid(), signal.SIGTERM)
        seen.append(written)

    with RunFolder(tmp_path) as folder:  # the duration ends a run whose status stays behind
        assert Supervisor(beside_idle(fake_roles.idle), folder, duration_s=30, on_status=on_status).run() == 130
    assert list(dict.fromkeys(seen)) == ["starting", "running", "stopping", "done"]


def test_a_reason_that_the_callback_returns_ends_the_run_well(tmp_path: Path) -> None:
    def on_status(status: RunStatus) -> str | None:
        return "enough seen" if status.state is RunState.RUNNING else None

    with RunFolder(tmp_path) as folder:
        assert Supervisor(beside_idle(fake_roles.idle), folder, duration_s=30, on_status=on_status).run() == 0
    assert events_of(tmp_path, "stop")[0]["detail"]["reason"] == "enough seen"


def test_a_cause_is_shown_before_a_consequence_that_was_reported_first(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    pipe = str(tmp_path / "pipe")
    os.mkfifo(pipe)
    victim = partial(fake_roles.disconnected_then_cause, pipe, False)
    culprit = partial(fake_roles.disconnected_then_cause, pipe, True)
    assert supervise(tmp_path, RoleSpec("victim", victim), RoleSpec("culprit", culprit)) == 1
    assert [entry["role"] for entry in events_of(tmp_path, "failure")] == ["victim", "culprit"]
    assert capsys.readouterr().err.endswith("dreamfleet: culprit failed: ValueError: the cause\n")


def test_a_role_that_is_not_ready_in_time_is_named(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    specs = [RoleSpec("idle", fake_roles.idle, 0, thread=True), RoleSpec("role", fake_roles.never_ready, 1)]
    assert supervise(tmp_path, *specs, start_timeout_s=0.5) == 1
    assert capsys.readouterr().err.splitlines()[-1].startswith("dreamfleet: role not ready within 0.5 s of the start")


def test_roles_end_in_the_order_of_their_ranks(tmp_path: Path) -> None:
    ranks = {"logger": 3, "env": 0, "replay": 2, "agent": 1}
    specs = [
        RoleSpec(name, fake_roles.finishes if name == "agent" else fake_roles.idle, r) for name, r in ranks.items()
    ]
    assert supervise(tmp_path, *specs) == 0
    assert [entry["role"] for entry in events_of(tmp_path, "exit")] == ["env", "agent", "replay", "logger"]


def test_status_and_events_describe_the_run(tmp_path: Path) -> None:
    seen: list[RunStatus] = []
    with RunFolder(tmp_path) as folder:
        specs = beside_idle(partial(fake_roles.floods_reports, 3))
        assert Supervisor(specs, folder, on_status=seen.append).run() == 0
    assert seen[0].state is RunState.STARTING
    assert seen[-1] == read_status(tmp_path)
    written = json.loads((tmp_path / "status.json").read_text())
    assert written.keys() == {"format", "time", "state", "reason", "uptime_s", "run", "pace", "roles"}
    role = written["roles"]["role"]
    assert (role["kind"], role["status"]) == ("other", {"index": 2})
    assert role["pid"] == events_of(tmp_path, "start")[1]["detail"]["pid"]
    assert 0 <= role["report_age_s"] <= role["uptime_s"] <= seen[-1].uptime_s
    names = [(entry["role"], entry["event"]) for entry in read_events(tmp_path) if entry["role"] != "idle"]
    assert names == [
        ("role", "start"),
        ("role", "ready"),
        *[("role", "flood")] * 3,
        ("supervisor", "stop"),
        ("role", "exit"),
        ("supervisor", "done"),
    ]


def test_no_report_is_lost_when_a_role_reports_faster_than_the_supervisor_reads(tmp_path: Path) -> None:
    assert supervise(tmp_path, RoleSpec("role", partial(fake_roles.floods_reports, 3000))) == 0
    assert [entry["detail"]["index"] for entry in events_of(tmp_path, "flood")] == list(range(3000))


def test_a_role_gets_its_environment_the_parents_path_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "added")])
    target = partial(fake_roles.tells, ["JAX_PLATFORMS", "PYTHONPATH"])
    assert supervise(tmp_path, RoleSpec("role", target, env={"JAX_PLATFORMS": "cpu"})) == 0
    told = events_of(tmp_path, "told")[0]["detail"]
    assert told["env"] == {"JAX_PLATFORMS": "cpu", "PYTHONPATH": "/nowhere"}
    assert told["path"] == [str(Path(path).absolute()) for path in sys.path]
    assert told["inherited"] == []
    assert told["main_thread"]
    assert told["name"] == "role"
    assert not {"numpy", "zmq", "jax", "cloudpickle", "pydantic"} & set(told["modules"])


@pytest.mark.parametrize("how", ["script", "stdin"])
def test_functions_and_modules_of_the_users_script_reach_the_role(tmp_path: Path, how: str) -> None:
    (tmp_path / "beside.py").write_text("from support.fake_roles import finishes\n")
    script = tmp_path / "script.py"
    script.write_text(
        "import sys; sys.path.insert(0, '')\n"
        "import beside\n"
        "from dreamfleet.runs.run_folder import RunFolder\n"
        "from dreamfleet.supervision.role_spec import RoleSpec\n"
        "from dreamfleet.supervision.supervisor import Supervisor\n"
        "print('imported')\n"
        "class Mine:\n"
        "    def run(self): print('mine'); beside.finishes()\n"
        "def role(): Mine().run()\n"
        "with RunFolder('run') as folder:\n"
        "    code = Supervisor([RoleSpec('role', role)], folder).run()\n"
        "sys.exit(code)\n"
    )
    tests = Path(fake_roles.__file__).parents[1]
    paths = os.pathsep.join([str(tests), str(tests.parent / "src")])
    ended = subprocess.run(
        [sys.executable, *([str(script)] if how == "script" else ["-"])],
        input=script.read_text() if how == "stdin" else None,
        env={**os.environ, "PYTHONPATH": paths},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "imported\n", "")  # the script ran once
    assert (tmp_path / "run/logs/role.log").read_text() == "mine\n"


def test_a_target_that_cannot_be_sent_is_found_before_anything_starts(tmp_path: Path) -> None:
    lock = threading.Lock()
    with RunFolder(tmp_path) as folder, pytest.raises(BadInput, match="role cannot be pickled for its process"):
        Supervisor(beside_idle(lambda: lock.acquire()), folder)
    assert read_events(tmp_path) == []


def test_roles_of_the_same_name_are_refused(tmp_path: Path) -> None:
    with RunFolder(tmp_path) as folder, pytest.raises(BadInput, match="names must differ"):
        Supervisor([RoleSpec("a", fake_roles.idle)] * 2, folder)


def test_an_error_in_the_supervisors_own_process_leaves_no_role_behind(tmp_path: Path) -> None:
    def broken_progress(status: object) -> None:
        wait_until(lambda: len(events_of(tmp_path, "start")) == 2, 10, "start")
        raise RuntimeError("progress broke")

    with RunFolder(tmp_path) as folder, pytest.raises(RuntimeError, match="progress broke"):
        Supervisor(beside_idle(fake_roles.deaf), folder, on_status=broken_progress).run()
    assert psutil.Process().children(recursive=True) == []


def test_a_run_that_cannot_write_its_status_goes_on_and_says_so_once(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    run = tmp_path / "run"
    with RunFolder(run) as folder:
        broken = Supervisor(beside_idle(fake_roles.finishes, thread=True), folder)
        run.rename(tmp_path / "moved")
        run.touch()
        (tmp_path / "moved" / "logs").rename(tmp_path / "logs")
        folder.logs = tmp_path / "logs"
        assert broken.run() == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("dreamfleet: cannot write the run folder: ")


def test_ends_are_noticed_where_the_system_does_not_tell_of_exits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.delattr(os, "pidfd_open", raising=False)
    assert supervise(tmp_path, *beside_idle(fake_roles.finishes)) == 0
    assert supervise(tmp_path, *beside_idle(partial(fake_roles.dies_by, signal.SIGKILL))) == 1
    assert "dreamfleet: role died: signal 9 (SIGKILL)" in capsys.readouterr().err


def test_a_supervisor_outside_the_main_thread_works_without_signals(tmp_path: Path) -> None:
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(supervise(tmp_path, *beside_idle(fake_roles.finishes))))
    thread.start()
    thread.join(30)
    assert codes == [0]


def test_repeated_runs_leave_nothing_behind(tmp_path: Path) -> None:
    def held() -> tuple[object, ...]:
        handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
        descriptors = len(list(Path("/proc/self/fd").iterdir()))
        more = set(threading.enumerate()) - threads  # those of other tests may end meanwhile
        return descriptors, more, psutil.Process().children(), handlers

    gc.collect()  # what other tests have left open
    threads = set(threading.enumerate())
    before = held()
    for index in range(20):
        with RunFolder(tmp_path / str(index)) as folder:
            target = fake_roles.finishes if index % 2 else fake_roles.raises_expected
            specs = [*beside_idle(target), RoleSpec("thread", fake_roles.idle, thread=True)]
            assert Supervisor(specs, folder).run() == (0 if index % 2 else 1)
        assert not folder.sockets.exists()
        assert held() == before
