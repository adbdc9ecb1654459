from __future__ import annotations

import contextvars
import threading
from collections.abc import Mapping
from typing import Any

from dreamfleet.core.context import (
    RoleContext,
    SilentReporter,
    current_context,
    given_context,
    set_context,
    using_context,
)


class ListReporter(SilentReporter):
    def __init__(self) -> None:
        self.events: list[str] = []

    def event(self, event: str, detail: Mapping[str, Any]) -> None:
        self.events.append(event)


def test_outside_a_role_the_context_is_silent_and_not_stopped():
    context = contextvars.Context().run(current_context)
    context.report.state("ready")
    context.report.status({"rate": 1})
    context.report.event("start", {})
    context.report.finish("steps")
    assert not context.stop.is_set()
    context.stop.close()


def test_a_role_sees_the_context_it_was_given():
    reporter = ListReporter()
    given = RoleContext("replay", report=reporter)

    def role() -> RoleContext:
        set_context(given)
        current_context().report.event("ready", {})
        return current_context()

    assert contextvars.Context().run(role) is given
    assert reporter.events == ["ready"]
    given.stop.close()


def test_outside_of_the_block_that_uses_a_context_there_is_the_one_before() -> None:
    outer, inner = RoleContext("outer"), RoleContext("inner")

    def role() -> list[RoleContext | None]:
        seen = [given_context()]
        with using_context(outer), using_context(inner):
            seen.append(given_context())
        return [*seen, given_context()]

    assert contextvars.Context().run(role) == [None, inner, None]


def test_asking_for_the_context_outside_of_a_role_gives_it_none() -> None:
    def ask() -> RoleContext | None:
        current_context().stop.set()
        return given_context()

    assert contextvars.Context().run(ask) is None


def test_roles_in_two_threads_keep_their_own_context():
    contexts = {name: RoleContext(name) for name in ("actor", "learner")}
    both_set = threading.Barrier(2, timeout=10)
    seen: dict[str, str] = {}

    def role(name: str) -> None:
        set_context(contexts[name])
        both_set.wait()
        seen[name] = current_context().name

    threads = [threading.Thread(target=role, args=[name]) for name in contexts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=10)
    assert seen == {"actor": "actor", "learner": "learner"}
    for context in contexts.values():
        context.stop.close()
