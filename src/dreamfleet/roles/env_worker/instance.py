"""The seats of an env worker: which environment sits where, how it is made, and made anew after an error."""

from __future__ import annotations

import inspect
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from dreamfleet.config.args import FleetArgs
from dreamfleet.core.context import RoleContext
from dreamfleet.core.error_origin import headline, raised_at, told
from dreamfleet.core.errors import DreamfleetError, EnvError, EnvFailed, SpaceMismatch
from dreamfleet.core.events import Event
from dreamfleet.core.interfaces import Arrays, Env, EnvBatch
from dreamfleet.core.restarts import MAX_IN_VAIN, RecentFailures, back_off_s
from dreamfleet.core.spaces import Space
from dreamfleet.core.waits import Wait
from dreamfleet.envs.checks import CheckBatch, CheckSpaces
from dreamfleet.envs.construction_error import construction
from dreamfleet.envs.render.backend import hint
from dreamfleet.roles.env_worker.measurements import StepClock

TRACEBACK_LINES = 20

MakeEnv = Callable[..., Env | EnvBatch]


class Seat:
    """A place for one environment, or for a batch of them, with the figures of all that have sat there."""

    __slots__ = (
        "act_space", "doing", "env", "failures", "in_a_row", "index", "name", "number", "obs_space", "restarts", "rows",
        "slowest_ns", "step_ns", "steps", "steps_before",
    )  # fmt: skip

    def __init__(self, env: Any, index: int, name: str = "environment") -> None:
        self.env: Any = env  # an Env or an EnvBatch; None once it is closed
        self.name = name
        self.index = index  # what it is made with
        self.number = index  # what the actor calls it, or the first one of a batch
        self.rows = env.num_envs if isinstance(env, EnvBatch) else 1
        self.obs_space: Mapping[str, Space] = dict(env.obs_space)
        self.act_space: Mapping[str, Space] = dict(env.act_space)
        self.steps = 0
        self.step_ns = 0
        self.slowest_ns = 0  # since the figures were last taken
        self.doing = Wait.ENV_STEP
        self.restarts = 0
        self.failures = RecentFailures()
        self.in_a_row = 0  # restarts without a step between them
        self.steps_before = 0  # the last restart

    def close(self, context: RoleContext) -> None:
        """May be repeated. An environment that cannot be closed is no reason to end a run: it is told as an event."""
        env, self.env = self.env, None
        if env is None:
            return
        try:
            env.close()
        except Exception as error:
            context.report.event(
                Event.ENV_CLOSE_FAILED, {"env": self.number, "name": self.name, "error": headline(error)}
            )


class EnvMaker:
    """Calls a user's factory, with `room`, `restart` and `life` if it takes them, and wraps what it returns in its
    checks.
    """

    def __init__(self, make_env: MakeEnv, mode: str, life: int = 0) -> None:
        self._make_env = make_env
        self._mode = mode
        self._life = life
        self._parameters = _parameters(make_env)

    def seat(self, index: int, room: int) -> Seat:
        """A seat with its first environment, which may stand for up to `room` of them."""
        env, name = self._make(index, room, 0)
        return Seat(env, index, name)

    def again(self, seat: Seat) -> None:
        """Sits another environment down, of the same kind."""
        seat.env, _ = self._make(seat.index, seat.rows, seat.restarts)
        rows = seat.env.num_envs if isinstance(seat.env, EnvBatch) else 1
        same_spaces = dict(seat.env.obs_space) == seat.obs_space and dict(seat.env.act_space) == seat.act_space
        if rows != seat.rows or not same_spaces:
            raise SpaceMismatch(
                f"{seat.name} was made anew after an error, with other spaces or another number of environments: "
                "its factory must return the same every time"
            )

    def _make(self, index: int, room: int, restart: int) -> tuple[Env | EnvBatch, str]:
        offered = {"room": room, "restart": restart, "life": self._life}
        name = f"{self._mode} environment {index}"
        with construction(name):
            made = self._make_env(index, **{key: value for key, value in offered.items() if key in self._parameters})
        try:
            name = f"{name} ({_kind(made)})"
            if not isinstance(made, EnvBatch):
                return CheckSpaces(made, name), name
            if made.num_envs > room:
                raise EnvError(_too_many(name, made.num_envs, room, self._mode))
            if made.num_envs > 1:
                name = f"{self._mode} environments {index} and {made.num_envs - 1} more ({_kind(made)})"
            return CheckBatch(made, name), name
        except BaseException:
            made.close()
            raise


class EnvRestarter:
    """Replaces environments that raised an error.

    An environment may fail `env.restarts` times within `env.restart_window_s`; once more and the worker gives up. One
    that fails again before it made a step is given time, twice as much every time; one that has never made a step is
    given up after a few times.
    """

    def __init__(
        self,
        make: EnvMaker,
        args: FleetArgs,
        context: RoleContext,
        clock: StepClock,
        join: Callable[[Arrays], Arrays],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._make = make
        self._args = args
        self._context = context
        self._clock = clock
        self._now = now
        self.join = join  # takes an introduction to the actor and returns its answer
        self.stop = context.stop

    def replace(self, seat: Seat, error: Exception, reset: Mapping[str, Any]) -> Mapping[str, Any]:
        """The first observation, to the action `reset`, of the environment that takes the place of the broken one."""
        while True:
            self._count(seat, error)
            try:
                seat.doing = Wait.ENV_RESTART
                self._clock.running = (seat, time.perf_counter_ns())
                seat.close(self._context)
                self._back_off(seat)
                self._make.again(seat)
                obs: Mapping[str, Any] = seat.env.step(reset)
                return obs
            except EnvFailed as failure:
                if not isinstance(failure.__cause__, Exception):
                    raise
                error = failure.__cause__
            except DreamfleetError:
                raise
            except Exception as another:
                error = another
            finally:
                seat.doing = Wait.ENV_STEP
                self._clock.running = None

    def _count(self, seat: Seat, error: Exception) -> None:
        now = self._now()
        seat.failures.forget_until(now - self._args.env_restart_window_s)
        seat.failures.add(now, told(error))
        in_vain = seat.steps <= 1 and seat.restarts >= MAX_IN_VAIN  # the first step is a reset
        if in_vain or len(seat.failures) > self._args.env_restarts:
            raise self._given_up(seat, in_vain) from error
        again = seat.restarts > 0 and seat.steps == seat.steps_before
        seat.in_a_row = seat.in_a_row + 1 if again else 0
        seat.steps_before = seat.steps
        seat.restarts += 1
        lines = "".join(traceback.format_exception(error)).splitlines()
        detail = {"env": seat.number, "name": seat.name, "error": headline(error), "place": raised_at(error)}
        detail["count"] = seat.restarts
        self._context.report.event(Event.ENV_RESTART, {**detail, "traceback": "\n".join(lines[-TRACEBACK_LINES:])})

    def _given_up(self, seat: Seat, in_vain: bool) -> EnvFailed:
        most, first, last = self._args.env_restarts, seat.failures.first, seat.failures.last
        errors = f"the first error: {first}{hint(first)}" + (f"; the last one: {last}" if last != first else "")
        if in_vain:
            return EnvFailed(f"{seat.name} failed {seat.restarts + 1} times and never made a step; {errors}")
        if most == 0:
            return EnvFailed(f"{seat.name} failed, env.restarts=0 allows no restart: {last}")
        times = f"{len(seat.failures)} times within {self._args.env_restart_window_s:g} s"
        return EnvFailed(f"{seat.name} failed {times}, env.restarts={most} allows no more; {errors}")

    def _back_off(self, seat: Seat) -> None:
        if seat.in_a_row:
            self._context.stop.wait(back_off_s(seat.in_a_row))
        self._context.stop.check()


def _parameters(make_env: MakeEnv) -> set[str]:
    try:
        found = inspect.signature(make_env).parameters.values()
    except (TypeError, ValueError):  # a built-in callable may have no signature
        return set()
    return {parameter.name for parameter in found if parameter.kind is not inspect.Parameter.POSITIONAL_ONLY}


def _kind(env: Env | EnvBatch) -> str:
    """What a user calls it: adapters know the name of what they adapt."""
    return str(getattr(env, "name", None) or type(env).__name__)


def _too_many(name: str, envs: int, room: int, mode: str) -> str:
    total = "run.eval_envs" if mode == "eval" else "run.envs"
    nothing = ", or to 0" if mode == "eval" else ""
    return (
        f"{name} is vectorised and has {envs} environments, this worker has room for {room}: "
        f"set run.envs_per_worker={envs} and {total} to a multiple of {envs}{nothing}"
    )
