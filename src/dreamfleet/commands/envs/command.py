"""The commands about environments: what there is, and whether one of them works."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.table import Table

from dreamfleet.commands.envs.space_table import reading_table, rule_table, summary
from dreamfleet.commands.envs.trial import inspect_env
from dreamfleet.config.load import parse_overrides
from dreamfleet.core.error_origin import told
from dreamfleet.core.errors import ConfigError
from dreamfleet.core.spaces import STEP_KEYS
from dreamfleet.core.text.suggestions import closest_names, did_you_mean

FILE_WIDTH = 200  # where the output is no terminal


def check_env(env: str, overrides: Sequence[str], steps: int | None = None) -> dict[str, Any]:
    return inspect_env(parse_overrides([f"env={env.removeprefix('env=')}", *overrides]), steps)


def list_suites(name: str | None = None) -> list[dict[str, Any]]:
    """All suites, or one of them with its tasks. Works whatever is installed, and if it is broken.

    `gym:PACKAGE` lists what the package registers with Gymnasium.
    """
    from dreamfleet.envs.catalog import SUITES

    if name is not None and name.startswith("gym:"):
        return [_list_package(name)]
    if name is not None and name not in SUITES:
        hint = did_you_mean(closest_names(name, SUITES), f"known are {', '.join(sorted(SUITES))}")
        raise ConfigError(f"unknown suite {name!r}: {hint}")
    listed: list[dict[str, Any]] = []
    for suite_name, suite in SUITES.items():
        if name in (None, suite_name):
            missing = suite.missing()
            entry = {"suite": suite_name, "about": suite.about, "installed": not missing, "missing": missing}
            listed.append({**entry, "install": suite.install, "default": suite.default})
    if name is not None:
        listed[0] |= _tasks(name, listed[0]["installed"])
    return listed


def _list_package(name: str) -> dict[str, Any]:
    from dreamfleet.envs.gym.registration import other_ways, registered_by

    module, _, function = name.removeprefix("gym:").partition(":")
    tasks, problem = [], None
    try:
        with contextlib.redirect_stdout(sys.stderr):  # what the package prints
            tasks = registered_by(module, function)
    except ConfigError:
        raise
    except Exception as error:  # whatever the package raises when it is imported
        problem = told(error)
    if not tasks and problem is None:
        problem = f"it registers nothing: {other_ways(module) or 'look into its documents'}"
    about = f"what {name.removeprefix('gym:')} registers with Gymnasium"
    entry = {"suite": name, "about": about, "installed": True, "missing": [], "install": "", "default": ""}
    return {**entry, "tasks": tasks, "problem": problem}


def _tasks(name: str, installed: bool) -> dict[str, Any]:
    from dreamfleet.envs.catalog import load_suite

    if not installed:
        return {"tasks": [], "problem": None}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as that there is no display, which a list does not need
            return {"tasks": sorted(load_suite(name).tasks()), "problem": None}
    except Exception as error:  # a library that is there but broken may raise anything
        return {"tasks": [], "problem": f"{type(error).__name__}: {error}"}


def show_suites(suites: Sequence[Mapping[str, Any]]) -> None:
    if "tasks" in suites[0]:
        _show_tasks(suites[0])
        return
    table = _table("suite", "installed", "about", "to install")
    for suite in suites:
        installed = "yes" if suite["installed"] else "no"
        table.add_row(*map(escape, (suite["suite"], installed, suite["about"], suite["install"])))
    _print(table, "", "env=SUITE:TASK trains in one of these; `dreamfleet envs SUITE` lists its tasks.")


def _show_tasks(suite: Mapping[str, Any]) -> None:
    head = f"{suite['suite']}: {suite['about']}"
    if not suite["installed"]:
        _print(head, f"not installed, lacks {', '.join(suite['missing'])}: {suite['install']}")
    elif suite["problem"]:
        remedy = f": {suite['install']}" if suite["install"] else ""
        _print(head, f"its tasks cannot be listed: {suite['problem']}{remedy}")
    else:
        default = [f"env={suite['suite']} means {suite['suite']}:{suite['default']}"] if suite["default"] else []
        _print(head, *default, *(f"  {suite['suite']}:{task}" for task in suite["tasks"]))


def show_readings(found: Mapping[str, Any]) -> None:
    parts: list[RenderableType] = [found["env"]]
    if found["readings"]:
        parts += [reading_table(found["readings"]), ""]
    else:
        parts += ["it declares spaces of Dreamfleet's own, which are taken as they are", ""]
    notes = [f"note: {note}" for note in found["notes"]]
    problem = [f"it {found['problem']}"] if found["problem"] else []
    _print(*parts, *notes, *problem, *([""] if notes or problem else []), rule_table(found["rules"]))


def show_report(report: Mapping[str, Any]) -> None:
    rows = f", {report['vectorised']} environments at once" if report.get("vectorised") else ""
    lines: list[RenderableType] = [f"{report['env']}{rows}"]
    if report.get("observation"):
        table = _table("", "key", "kind", "dtype", "shape", "range")
        _add_spaces(table, "observation", {k: v for k, v in report["observation"].items() if k not in STEP_KEYS})
        _add_spaces(table, "action", report["action"])
        lines += [table, ""]
    facts = _table("", "", header=False)
    for name, text in _facts(report):
        facts.add_row(name, escape(text))
    _print(*lines, facts, "", *_violation_lines(report["violations"]))


def _add_spaces(table: Table, title: str, spaces: Mapping[str, Mapping[str, Any]]) -> None:
    for number, (key, space) in enumerate(spaces.items()):
        shape = " x ".join(map(str, space["shape"])) or "-"
        cells = (title if number == 0 else "", key, space["kind"], space["dtype"], shape, _range(space))
        table.add_row(*map(escape, cells))


def _range(space: Mapping[str, Any]) -> str:
    """As a person reads it: both ends are allowed."""
    whole = space["kind"] in ("image", "discrete", "multi-discrete")
    if space["kind"] == "binary":
        return "0 or 1"
    if space["low"] is None and space["high"] is None:
        return {"image": "0 to 255"}.get(space["kind"], "any")
    low = "-inf" if (least := _extreme(space["low"], min)) is None else f"{least:g}"
    high = "inf" if (most := _extreme(space["high"], max)) is None else f"{most - whole:g}"
    varies = ", differs by element" if isinstance(space["low"], list) or isinstance(space["high"], list) else ""
    return f"{low} to {high}{varies}"


def _extreme(bound: Any, choose: Any) -> float | None:
    """None: without a bound. A list is nested as the array is; its infinite elements are None."""
    if not isinstance(bound, list):
        return None if bound is None else float(bound)
    inner = [_extreme(item, choose) for item in bound]
    return None if None in inner else float(choose(inner))


def _facts(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    facts = [("read as", summary(report["readings"]))] if report.get("readings") else []
    facts += [("note", note) for note in report["notes"]]
    if report.get("log"):
        facts.append(("logged only", ", ".join(report["log"])))
    if report.get("drawing"):
        facts.append(("drawing", report["drawing"]))
    if report.get("episodes") and report["steps"]:
        facts.append(("episodes", _episodes(report["episodes"], report["steps"])))
    if report.get("determinism"):
        facts.append(("same again", _determinism(report["determinism"])))
    speed = report.get("speed") or {}
    if speed.get("steps_per_s"):
        reset = f", a reset takes {_seconds(speed['reset_s'])}" if speed["reset_s"] is not None else ""
        text = f"{speed['steps_per_s']:,.0f} steps/s, made in {_seconds(speed['construct_s'])}{reset}"
        facts.append(("speed", text))
    return facts


def _episodes(episodes: Mapping[str, Any], steps: int) -> str:
    if not episodes["count"]:
        return f"none ended in {steps} steps"
    lengths, returns = episodes["lengths"], episodes["returns"]
    return (
        f"{episodes['count']} in {steps} steps: {episodes['terminated']} terminated, "
        f"{episodes['truncated']} truncated; "
        f"length {lengths['min']:g} to {lengths['max']:g}, {lengths['mean']:.4g} on average; "
        f"return {returns['min']:.4g} to {returns['max']:.4g}, {returns['mean']:.4g} on average"
    )


def _determinism(found: Mapping[str, Any]) -> str:
    if found["same"]:
        return f"yes: two made with one seed and given the same actions agree for {found['steps']} steps"
    if found["same"] is None:
        return f"not known: {found.get('reason', 'nothing to compare')}"
    what = f"observation {found['key']!r} differs" if found["key"] else "only one of two goes on"
    return f"no: with one seed and the same actions, {what} at step {found['step']}"


def _violation_lines(violations: Sequence[Mapping[str, Any]]) -> list[str]:
    if not violations:
        return ["no violations"]
    lines = ["1 violation" if len(violations) == 1 else f"{len(violations)} violations"]
    for found in violations:
        times = f", {found['count']} times" if found["count"] > 1 else ""
        lines.append(f"- {found['where']}: {found['problem']} (at step {found['first_step']}{times})")
        if found["fix"]:
            lines.append(f"  {found['fix']}")
    return lines


def _seconds(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.1f} s"
    return f"{seconds * 1e3:.1f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.0f} us"


def _table(*columns: str, header: bool = True) -> Table:
    table = Table(box=None, pad_edge=False, show_header=header, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _print(*parts: RenderableType) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=FILE_WIDTH)
    for part in parts:
        console.print(part, soft_wrap=isinstance(part, str), markup=not isinstance(part, str))
