"""Runs a list of role specs: starts them, reads their reports, restarts failed ones and stops all of them at the end.

`launch.launcher` decides which roles a fleet has, and `restarts` decides which of them may be restarted.
"""

from __future__ import annotations

import contextlib
import selectors
import signal
import time
from collections.abc import Mapping, Sequence
from typing import Any

from dreamfleet.core.errors import BadInput
from dreamfleet.core.events import Event
from dreamfleet.core.files.open_files import is_out_of_files, raise_open_files_limit
from dreamfleet.runs.run_folder import RunFolder
from dreamfleet.runs.status import FORMAT, RunAbout, RunState, RunStatus, read_roles
from dreamfleet.supervision.event_log import EventLog, OnStatus
from dreamfleet.supervision.exit_codes import EXIT_BAD_INPUT, EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED
from dreamfleet.supervision.failures import Failure
from dreamfleet.supervision.managed_role import ManagedRole
from dreamfleet.supervision.reports import Report
from dreamfleet.supervision.restarts import RestartPlanner
from dreamfleet.supervision.role_spec import RoleSpec
from dreamfleet.supervision.shutdown import StopSequence
from dreamfleet.supervision.signals import SignalPipe
from dreamfleet.supervision.stall_monitor import StallMonitor
from dreamfleet.supervision.throughput import ThroughputMeter

STATUS_EVERY_S = 1.0
STACKS_S = 1.0  # time for a role to write its stacks before it is killed
LEAVE_S = 3.0  # time for a failed role to exit before it is killed and restarted
REAP_EVERY_S = 0.05  # polling interval between the end of reports and the exit, where exits cannot be awaited


class Supervisor:
    """One run of a fleet, from the first process to the last.

    The run is `starting` until every role is ready, then `running`. It is `stopping` once there is a reason to end: a
    role reports `finish`, `on_status` returns a reason, `duration_s` is over (0 = no limit), a signal arrives, or a
    role fails. It ends as `done` or `failed`. A failed role with a restart rule is restarted. A clean end waits for
    restarted roles that the final snapshot needs.

    Everything runs in the thread that calls `run`. It waits for reports, exits and signals, and writes `status.json`
    once a second and after every change of state.
    """

    def __init__(
        self,
        specs: Sequence[RoleSpec],
        folder: RunFolder,
        *,
        duration_s: float = 0.0,
        start_timeout_s: float = 60.0,
        stop_timeout_s: float = 10.0,
        save_timeout_s: float = 60.0,
        stall_timeout_s: float = 0.0,
        stall_restart: bool = False,
        min_disk_gb: float = 0.0,
        on_status: OnStatus | None = None,
        about: Mapping[str, Any] | None = None,
    ) -> None:
        names = [spec.name for spec in specs]
        if len(set(names)) != len(names):
            raise BadInput(f"role names must differ: {', '.join(names)}")
        self._event_log = EventLog(folder, on_status)
        self._about = None if about is None else RunAbout.model_validate(about)  # part of the status
        known = about or {}
        self._pace = ThroughputMeter(step=known.get("before", 0), updates=known.get("updates_before", 0))
        self._duration_s = duration_s
        self._start_timeout_s = start_timeout_s
        self._stop_timeout_s = stop_timeout_s
        self._save_timeout_s = save_timeout_s
        # Serialize targets now, so that errors are found before anything runs.
        self._roles = [ManagedRole(spec, folder) for spec in specs]
        self._restarts = RestartPlanner(self._roles)
        self._stall_monitor = StallMonitor(self._roles, folder, self._event_log, stall_timeout_s, min_disk_gb)
        self._stall_restart = stall_restart
        self._pending_stop: tuple[str, float] | None = (
            None  # reason for a clean end once roles are restarted, and the deadline
        )
        self._polled_for_exit: list[ManagedRole] = []  # threads, and processes without an exit descriptor
        self._state = RunState.STARTING
        self._reason = ""
        self._failure: Failure | None = None
        self._stop: StopSequence[ManagedRole] | None = None
        self._signals_seen = 0
        self._interrupted = False

    def run(self) -> int:
        """Block until all roles have ended. Print failures to stderr and return the exit code."""
        raise_open_files_limit()
        self._started = self._next_status = time.monotonic()
        with selectors.DefaultSelector() as self._selector, SignalPipe(_signals()) as self._signals:
            self._selector.register(self._signals, selectors.EVENT_READ)
            try:
                self._start_roles()
                while any(role.alive for role in self._roles) or self._restarts:
                    self._handle_events()
                    self._handle_time()
            finally:
                self._kill_rest()
        self._state = RunState.FAILED if self._failure else RunState.DONE
        self._event_log.event("supervisor", Event(self._state), {"reason": self._reason})
        self._event_log.status(self._status())
        if self._failure:
            self._event_log.print(self._failure.text)
        return self._exit_code()

    def _start_roles(self) -> None:
        for role in self._roles:
            if self._stop is None:
                self._start(role)

    def _start(self, role: ManagedRole, how: str = "") -> None:
        try:
            role.restart(how) if how else role.start()
        except OSError as error:
            if how and is_out_of_files(error):
                role.state = "restarting"
                self._restarts.put_off(role, how)
                return
            self._fail(Failure(role.name, f"{role.name} failed: its process could not be started: {error}"))
            return
        self._selector.register(role.handle.reports.fd, selectors.EVENT_READ, role)
        if role.handle.exit_fd is not None:
            self._selector.register(role.handle.exit_fd, selectors.EVENT_READ, role)
        elif role not in self._polled_for_exit:
            self._polled_for_exit.append(role)
        self._stall_monitor.add(role)
        self._event_log.event(role.name, Event.START, {"pid": role.handle.pid})

    def _handle_events(self) -> None:
        ready = {key.fd: key.data for key, _ in self._selector.select(self._timeout_s())}
        # Handle signals first: a signal to the whole fleet also ends roles, and the signal is the reason.
        if self._signals.fileno() in ready:
            for number in self._signals.read():
                self._on_signal(number)
        touched = {role.name: role for role in [*filter(None, ready.values()), *self._polled_for_exit] if role.alive}
        for role in touched.values():
            if role.handle.reports.fd in ready:
                self._read_reports(role)
            if (role.handle.exit_fd is None or role.handle.exit_fd in ready) and role.handle.has_ended():
                self._on_end(role)

    def _read_reports(self, role: ManagedRole) -> None:
        for report in role.handle.reports.read():
            self._on_report(role, report)
        if role.handle.reports.ended:  # otherwise the selector would report the end repeatedly
            self._ignore(role.handle.reports.fd)

    def _on_report(self, role: ManagedRole, report: Report) -> None:
        was_ready = role.ready
        role.note(report)
        if role.ready and not was_ready:
            self._event_log.event(role.name, Event.READY, {})
            if self._state is RunState.STARTING and all(role.ready for role in self._roles):
                self._state = RunState.RUNNING
        if report["kind"] == "state":
            self._next_status = time.monotonic()
        elif report["kind"] == "event":
            self._event_log.event(role.name, report["event"], report["detail"])
            self._event_log.print_event(report["event"], report["detail"])
            if report["event"] == Event.STALL and self._stall_restart and self._stop is None:
                self._kill_soon(role, f"stalled: {report['detail'].get('reason')}", time.monotonic())
        elif report["kind"] == "finish":
            self._begin_stop(report["reason"])
        elif report["kind"] == "failed":
            self._on_failed(role, role.failure_from_report(report))

    def _on_failed(self, role: ManagedRole, failure: Failure) -> None:
        if self._stop is None and (role.name in self._restarts or not self._restarts.refuses(role, failure)):
            role.kill_at = time.monotonic() + LEAVE_S  # handled when it ends
        else:
            self._fail(failure)

    def _on_end(self, role: ManagedRole) -> None:
        self._read_reports(role)  # reports written before the end
        self._forget(role)
        code = role.end()
        self._event_log.event(role.name, Event.EXIT, {"code": code, "state": role.state})
        if self._stop is None:
            self._on_death(role, role.failure_at_end(code))
        elif role.outcome is None and not role.killed:
            failure = role.failure_from_exit(code)
            if not self._excuse(role, failure):
                self._fail(failure)

    def _on_death(self, role: ManagedRole, failure: Failure) -> None:
        """Handle the end of a role during the run."""
        if role.name not in self._restarts:  # otherwise it was stopped to be restarted together with another role
            refusal = self._restarts.plan(role, failure)
            if refusal:
                self._fail(refusal, hurry=not role.expendable)  # the final snapshot does not need an expendable role
                return
            if not failure.symptom:  # otherwise its cause is printed
                self._event_log.print(f"dreamfleet: {failure.line}: restarting it")
            if role.spec.restart and role.spec.restart.restart_group and not self._interrupted:
                self._pending_stop = None  # it returns to its snapshot, so its goal is no longer reached
            for other in self._roles:
                if other.name in self._restarts:
                    self._kill(other)
        role.state = "restarting"

    def _restart_due(self) -> None:
        for back in self._restarts.due():
            if self._stop is not None:
                return  # another due role could not be started
            role = next(role for role in self._roles if role.name == back.name)
            self._event_log.event(role.name, Event.RESTART, back.detail())
            self._start(role, back.how)

    def _on_signal(self, number: signal.Signals) -> None:
        self._signals_seen += 1
        if self._signals_seen > 1 and number == signal.SIGINT:
            self._interrupted = True
            self._stop_now(f"interrupted by {number.name}")
            self._event_log.event("supervisor", Event.KILL, {"signal": number.name})
            for role in self._roles:
                self._kill(role)
        elif self._stop is None:
            self._interrupted = True
            self._event_log.print(f"dreamfleet: {number.name}: stopping, press Ctrl-C to kill")
            self._begin_stop(f"interrupted by {number.name}")

    def _timeout_s(self) -> float:
        """Return the seconds until the next timed action."""
        due = [self._next_status, self._restarts.next_at()]
        due += [role.kill_at for role in self._roles if role.alive and not role.killed and role.kill_at is not None]
        if self._stop:
            due.append(self._stop.deadline())
        elif self._duration_s:
            due.append(self._started + self._duration_s)
        due += [role.started + self._start_timeout_s for role in self._awaited()]
        if any(role.alive and role.handle.reports.ended for role in self._polled_for_exit):
            due.append(time.monotonic() + REAP_EVERY_S)
        return max(0.0, min(due) - time.monotonic())

    def _handle_time(self) -> None:
        now = time.monotonic()
        if any(now >= role.started + self._start_timeout_s for role in self._awaited()):
            self._fail_start()
        if self._duration_s and now >= self._started + self._duration_s:
            self._begin_stop(f"duration of {self._duration_s:g} s reached")
        for role in self._roles:
            if role.kill_at is not None and now >= role.kill_at:
                self._kill(role)
        self._restart_due()
        if self._pending_stop and (now >= self._pending_stop[1] or not self._returning()):
            self._stop_now(self._pending_stop[0])
        if self._stop:
            for role in self._stop.advance(now):
                self._end_late(role)
        if now >= self._next_status:
            self._next_status = now + STATUS_EVERY_S
            self._watch(now)
            if reason := self._event_log.status(self._status()):
                self._begin_stop(reason)

    def _watch(self, now: float) -> None:
        self._stall_monitor.watch_machine()
        if self._state is RunState.RUNNING and self._pending_stop is None:
            for role, blame in self._stall_monitor.watch_progress():
                if self._stall_restart:
                    self._kill_soon(role, blame, now)

    def _kill_soon(self, role: ManagedRole, blame: str, now: float) -> None:
        """Kill a role that can be restarted, after a moment to write its stacks."""
        if role.spec.restart is not None:
            role.blame, role.kill_at = blame, now + STACKS_S

    def _fail_start(self) -> None:
        late = self._awaited()
        names = ", ".join(role.name for role in late)
        line = f"{names} not ready within {self._start_timeout_s:g} s of the start, see {late[0].log_path}"
        self._fail(Failure(late[0].name, line, late[0].log_tail()))

    def _awaited(self) -> list[ManagedRole]:
        """Return roles that are not ready yet, unless the run is stopping."""
        return [role for role in self._roles if role.alive and not role.ready] if self._stop is None else []

    def _returning(self) -> bool:
        """Return whether a role that the final snapshot needs is being restarted."""
        return any(
            role.name in self._restarts or (role.alive and not role.ready and role.restarts > 0)
            for role in self._roles
            if role.spec.restart and not role.expendable
        )

    def _begin_stop(self, reason: str) -> None:
        """Begin a clean stop."""
        if self._stop is None and self._pending_stop is None:
            if self._returning():
                self._pending_stop = reason, time.monotonic() + self._save_timeout_s
                self._restarts.hasten(lambda spec: spec.restart is not None and not spec.restart.stateless)
            else:
                self._stop_now(reason)

    def _stop_now(self, reason: str) -> StopSequence[ManagedRole]:
        if self._stop is None:
            now = time.monotonic()
            self._restarts.cancel()
            self._state, self._reason, self._next_status = RunState.STOPPING, reason, now
            self._event_log.event("supervisor", Event.STOP, {"reason": reason})
            self._stop = StopSequence(self._roles, self._stop_timeout_s, self._save_timeout_s, now)
        return self._stop

    def _fail(self, failure: Failure, hurry: bool = True) -> None:
        self._note_failure(failure)
        stop = self._stop_now(failure.line)
        if hurry:
            stop.hurry(time.monotonic())

    def _note_failure(self, failure: Failure) -> None:
        """Record a failure. Keep the first one, unless it is a symptom and the cause is found later."""
        self._event_log.event(failure.role, Event.FAILURE, {"message": failure.line})
        if self._failure is None or (self._failure.symptom and not failure.symptom):
            self._failure = failure
            if not self._interrupted:
                self._reason = failure.line

    def _end_late(self, role: ManagedRole) -> None:
        """Kill a role that did not stop in time. Abandon it if it is still alive at the final deadline."""
        if role.outcome is None and not role.killed:
            # Do not shorten the time of the others: a hanging environment must not prevent the final snapshot.
            failure = role.failure_to_stop()
            if not self._excuse(role, failure):
                self._note_failure(failure)
        self._kill(role)
        if role.alive and self._stop and time.monotonic() >= self._stop.give_up_at:
            self._abandon(role)

    def _excuse(self, role: ManagedRole, failure: Failure) -> bool:
        """Return whether a clean stop does not need the role, and warn if so."""
        excused = role.expendable and self._failure is None
        if excused:
            self._warn(role, failure.line)
        return excused

    def _warn(self, role: ManagedRole, text: str) -> None:
        self._event_log.event(role.name, Event.WARNING, {"text": text})
        self._event_log.print(f"dreamfleet: {text}")

    def _kill(self, role: ManagedRole) -> None:
        if role.alive and not role.killed:
            self._event_log.event(role.name, Event.KILL, {})
            role.kill()
            if role.spec.thread:  # cannot be killed
                self._abandon(role)

    def _abandon(self, role: ManagedRole) -> None:
        self._forget(role)
        role.abandon()

    def _forget(self, role: ManagedRole) -> None:
        self._ignore(role.handle.reports.fd)
        if role.handle.exit_fd is not None:
            self._ignore(role.handle.exit_fd)

    def _ignore(self, fd: int) -> None:
        with contextlib.suppress(KeyError):
            self._selector.unregister(fd)

    def _kill_rest(self) -> None:
        """Kill remaining roles after an error in this process, or roles that survived their kill."""
        for role in self._roles:
            if role.alive:
                role.kill()
                self._forget(role)
                role.end()

    def _exit_code(self) -> int:
        if self._interrupted:
            return EXIT_INTERRUPTED
        if self._failure:
            return EXIT_BAD_INPUT if self._failure.bad_input else EXIT_FAILED
        return EXIT_DONE

    def _status(self) -> RunStatus:
        roles = read_roles({name: status for role in self._roles for name, status in role.statuses().items()})
        return RunStatus(
            format=FORMAT,
            time=time.time(),
            state=self._state,
            reason=self._reason,
            uptime_s=round(time.monotonic() - self._started, 3),
            run=self._about,
            pace=self._pace.read(roles),
            roles=roles,
        )


def _signals() -> list[signal.Signals]:
    hangup = [signal.SIGHUP] if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL else []  # nohup stays nohup
    return [signal.SIGINT, signal.SIGTERM, *hangup]
