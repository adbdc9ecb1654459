"""The environments of an env worker: how each is made, and made again after an error."""

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


class EnvInstance:
    """One environment, or a batch of them, over all its restarts, with their measurements."""

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
        self.slowest_ns = 0  # since the measurements were last taken
        self.doing = Wait.ENV_STEP
        self.restarts = 0
        self.failures = RecentFailures()
        self.in_a_row = 0  # restarts without a step between them
        self.steps_before = 0  # the last restart

    def close(self, context: RoleContext) -> None:
        """Close the environment. May be repeated. A failure is reported as an event and does not end the run."""
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
        self._incarnation = life
        self._parameters = _parameters(make_env)

    def make(self, index: int, room: int) -> EnvInstance:
        """Make an environment, which may be a batch of up to `room` of them."""
        env, name = self._make(index, room, 0)
        return EnvInstance(env, index, name)

    def remake(self, instance: EnvInstance) -> None:
        """Make another environment of the same kind in its place."""
        instance.env, _ = self._make(instance.index, instance.rows, instance.restarts)
        rows = instance.env.num_envs if isinstance(instance.env, EnvBatch) else 1
        same_spaces = (
            dict(instance.env.obs_space) == instance.obs_space and dict(instance.env.act_space) == instance.act_space
        )
        if rows != instance.rows or not same_spaces:
            raise SpaceMismatch(
                f"{instance.name} was recreated after an error, with other spaces or another number of environments: "
                "its factory must return the same every time"
            )

    def _make(self, index: int, room: int, restart: int) -> tuple[Env | EnvBatch, str]:
        offered = {"room": room, "restart": restart, "life": self._incarnation}
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
        maker: EnvMaker,
        args: FleetArgs,
        context: RoleContext,
        clock: StepClock,
        join: Callable[[Arrays], Arrays],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._maker = maker
        self._args = args
        self._context = context
        self._clock = clock
        self._now = now
        self.join = join  # takes a join request to the actor and returns its reply
        self.stop = context.stop

    def replace(self, instance: EnvInstance, error: Exception, reset: Mapping[str, Any]) -> Mapping[str, Any]:
        """The first observation, to the action `reset`, of the environment that takes the place of the broken one."""
        while True:
            self._count(instance, error)
            try:
                instance.doing = Wait.ENV_RESTART
                self._clock.running = (instance, time.perf_counter_ns())
                instance.close(self._context)
                self._back_off(instance)
                self._maker.remake(instance)
                obs: Mapping[str, Any] = instance.env.step(reset)
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
                instance.doing = Wait.ENV_STEP
                self._clock.running = None

    def _count(self, instance: EnvInstance, error: Exception) -> None:
        now = self._now()
        instance.failures.forget_until(now - self._args.env_restart_window_s)
        instance.failures.add(now, told(error))
        in_vain = instance.steps <= 1 and instance.restarts >= MAX_IN_VAIN  # the first step is a reset
        if in_vain or len(instance.failures) > self._args.env_restarts:
            raise self._given_up(instance, in_vain) from error
        no_step = instance.restarts > 0 and instance.steps == instance.steps_before
        instance.in_a_row = instance.in_a_row + 1 if no_step else 0
        instance.steps_before = instance.steps
        instance.restarts += 1
        lines = "".join(traceback.format_exception(error)).splitlines()
        detail = {"env": instance.number, "name": instance.name, "error": headline(error), "place": raised_at(error)}
        detail["count"] = instance.restarts
        self._context.report.event(Event.ENV_RESTART, {**detail, "traceback": "\n".join(lines[-TRACEBACK_LINES:])})

    def _given_up(self, instance: EnvInstance, in_vain: bool) -> EnvFailed:
        most, first, last = self._args.env_restarts, instance.failures.first, instance.failures.last
        errors = f"the first error: {first}{hint(first)}" + (f"; the last one: {last}" if last != first else "")
        if in_vain:
            return EnvFailed(f"{instance.name} failed {instance.restarts + 1} times and never made a step; {errors}")
        if most == 0:
            return EnvFailed(f"{instance.name} failed, env.restarts=0 allows no restart: {last}")
        times = f"{len(instance.failures)} times within {self._args.env_restart_window_s:g} s"
        return EnvFailed(f"{instance.name} failed {times}, env.restarts={most} allows no more; {errors}")

    def _back_off(self, instance: EnvInstance) -> None:
        if instance.in_a_row:
            self._context.stop.wait(back_off_s(instance.in_a_row))
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
