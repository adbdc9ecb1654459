"""Reads the imports of the package's source without running it, and says which break the layers of the architecture."""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PACKAGE = "dreamfleet"
LEAVES = {"config", "transport", "replay", "envs", "metrics", "checkpoint"}  # layer 1: they do not import each other
BELOW_ROLES = {"core", *LEAVES, "model", "agent"}
ABOVE_ROLES = {"runs", "supervision", "launch", "ui", "commands", "parallel"}
MAY_IMPORT: dict[str, set[str]] = {
    "core": set(),
    **{leaf: {"core"} for leaf in LEAVES},
    "model": {"core"},
    "agent": {"model", "checkpoint", "core"},
    "roles": BELOW_ROLES,
    # The chain: cli > commands > ui > launch > supervision > runs.
    "runs": {"core", "config", "transport", "checkpoint"},
    "supervision": {"runs", "core"},  # it runs a list of role specs, and knows nothing of what they do
    "launch": {*BELOW_ROLES, "roles", "runs", "supervision"},
    "ui": {"core", "config", "runs", "supervision", "launch"},
    "commands": {*BELOW_ROLES, "roles", "runs", "supervision", "launch", "ui"},
    "parallel": {"core", "config", "transport", "roles", "supervision", "launch"},
    "api": {"core", "config", "commands", "agent"},  # of agent only the types of what commands return
    "cli": {"core", "config", "runs", "supervision", "launch", "ui", "commands"},
    "__main__": {"cli"},
    "__init__": {"api"},
}
# What each role of the fleet runs; other modules of roles/ are parts that they share.
ROLES = {"actor", "learner", "agent", "replay", "logger", "env_worker", "lockstep"}
ENTRY = "roles.entry"  # what a process runs: the one module of roles that others may load
ROLE_MAY_IMPORT = {
    "entry": ROLES,
    "agent": {"actor", "learner"},
    "lockstep": {"actor", "learner", "replay", "logger", "env_worker"},
}
CORE_TAKES = {"numpy", "ml_dtypes"}  # ml_dtypes has NumPy's bfloat16, and nothing else below it
JAX = {"jax", "jaxlib", "equinox", "optax"}
JAX_HOMES = ("model", "agent", "roles.actor", "roles.learner", "roles.agent")
JAX_FREE = (
    "__init__",
    "api",
    "cli",
    *sorted(ABOVE_ROLES),
    "roles.entry",
    "roles.env_worker",
    "roles.replay",
    "roles.logger",
)
# A parent's factories: nothing from a socket or a file.
UNPICKLING_HOMES = {"supervision.child", "roles.entry"}
UNPICKLERS = {"pickle", "cloudpickle", "marshal", "dill", "_pickle", "shelve"}
UNPICKLING = {"load", "loads", "Unpickler", "open"}
# Past this many lines a reviewer asks whether a file is two things. One that is not stands in LONG, with the reason.
MAX_LINES = 500
LONG: dict[str, str] = {}
LIMITS = ("MOST_", "LEAST_")
MAX_MODULES = 20


@dataclass(frozen=True)
class Import:
    target: str  # the full dotted name of what is imported
    line: int
    lazy: bool  # inside a function
    typing_only: bool  # under `if TYPE_CHECKING`, never executed


@dataclass(frozen=True)
class Module:
    name: str  # dotted, without the package: "roles.replay", or "__init__" for the package itself
    is_package: bool
    source: str

    @property
    def part(self) -> str:
        return self.name.partition(".")[0]


def load_package(root: Path) -> list[Module]:
    modules = []
    for path in sorted(root.rglob("*.py")):
        parts = list(path.relative_to(root).with_suffix("").parts)
        is_package = parts[-1] == "__init__"
        if is_package and len(parts) > 1:
            parts.pop()
        modules.append(Module(".".join(parts), is_package, path.read_text(encoding="utf-8")))
    return modules


@cache
def imports_of(module: Module) -> tuple[Import, ...]:
    return tuple(_walk_imports(module, ast.parse(module.source), lazy=False, typing_only=False))


def _walk_imports(module: Module, node: ast.AST, lazy: bool, typing_only: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            for target in _targets(module, child):
                yield Import(target, child.lineno, lazy, typing_only)
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from _walk_imports(module, child, True, typing_only)
        elif isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING"):
            for inner in child.body:
                yield from _walk_imports(module, ast.Module([inner], []), lazy, True)
            for inner in child.orelse:
                yield from _walk_imports(module, ast.Module([inner], []), lazy, typing_only)
        else:
            yield from _walk_imports(module, child, lazy, typing_only)


def _targets(module: Module, node: ast.Import | ast.ImportFrom) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    base = node.module or ""
    if node.level:
        own = [PACKAGE] if module.name == "__init__" else [PACKAGE, *module.name.split(".")]
        parents = own[: len(own) - (node.level - module.is_package)]
        base = ".".join([*parents, *([node.module] if node.module else [])])
    return [f"{base}.{alias.name}" for alias in node.names]


def inside(name: str, homes: Iterable[str]) -> bool:
    return any(name == home or name.startswith(home + ".") for home in homes)


def own_name(target: str) -> str | None:
    """The name inside the package of what is imported, or None for something from elsewhere."""
    if target == PACKAGE:
        return "__init__"
    return target.removeprefix(PACKAGE + ".") if target.startswith(PACKAGE + ".") else None


def layer_violations(module: Module) -> list[str]:
    found = []
    for item in imports_of(module):
        own = own_name(item.target)
        reason = _foreign_problem(module, item) if own is None else _own_problem(module, item, own)
        if reason:
            found.append(f"{module.name}:{item.line} imports {item.target}: {reason}")
    return found


def _foreign_problem(module: Module, item: Import) -> str | None:
    top = item.target.partition(".")[0]
    if module.part == "core" and top not in CORE_TAKES and top not in sys.stdlib_module_names:
        return "core takes only the standard library and NumPy"
    if top in JAX and not inside(module.name, JAX_HOMES):
        return "JAX belongs to the model, the agent and the agent process"
    return None


def _own_problem(module: Module, item: Import, own: str) -> str | None:
    part = own.partition(".")[0]
    if part in ("__init__", "__version__"):  # `from dreamfleet import __version__`
        return None
    if module.part not in MAY_IMPORT:
        return f"{module.part} has no layer: add it to MAY_IMPORT"
    if part != module.part and part not in MAY_IMPORT[module.part]:
        return f"{module.part} may import {sorted(MAY_IMPORT[module.part]) or 'nothing of the package'}"
    if module.part == part == "roles":
        return _role_problem(module, own)
    if part == "roles" and not inside(own, [ENTRY]) and not (item.lazy or item.typing_only):
        return "a role's module is imported only inside a function, in the role's own process"
    return None


def _role_problem(module: Module, own: str) -> str | None:
    mine, theirs = module.name.split(".")[1:2], own.split(".")[1]
    me = mine[0] if mine else ""
    if theirs in ROLES and theirs != me and theirs not in ROLE_MAY_IMPORT.get(me, set()):
        return "a role never imports another role"
    return None


def unpickling(module: Module) -> list[str]:
    """Uses of a pickle module's reading side, and NumPy's switch for it, where nothing is to be unpickled."""
    if module.name in UNPICKLING_HOMES:
        return []
    tree = ast.parse(module.source)
    names = {}  # what each pickle module is called here
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update({alias.asname or alias.name: alias.name for alias in node.names if alias.name in UNPICKLERS})
        elif isinstance(node, ast.ImportFrom) and node.module in UNPICKLERS:
            bad = [alias.name for alias in node.names if alias.name in UNPICKLING]
            found += [f"{module.name}:{node.lineno} imports {node.module}.{name}" for name in bad]
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in UNPICKLING and isinstance(node.value, ast.Name):
            if node.value.id in names:
                found.append(f"{module.name}:{node.lineno} uses {names[node.value.id]}.{node.attr}")
        elif isinstance(node, ast.keyword) and node.arg == "allow_pickle" and ast.unparse(node.value) != "False":
            found.append(f"{module.name}:{node.value.lineno} sets allow_pickle")
    return found


def jax_loaded_by(name: str, modules: Iterable[Module]) -> str | None:
    """The chain of imports by which loading `name` loads JAX, or None. Follows what runs at import, with parents."""
    by_name = {module.name: module for module in modules}
    pending = [(name, name)]
    seen = set()
    while pending:
        current, chain = pending.pop()
        if current in seen or current not in by_name:
            continue
        seen.add(current)
        if "." in current:
            pending.append((current.rpartition(".")[0], chain))
        for item in imports_of(by_name[current]):
            if item.lazy or item.typing_only:
                continue
            own = own_name(item.target)
            if own is None:
                if item.target.partition(".")[0] in JAX:
                    return f"{chain} -> {item.target}"
            else:  # the target is a module, or a name in the module above it
                pending += [(found, f"{chain} -> {found}") for found in (own, own.rpartition(".")[0])]
    return None


def import_cycle(modules: Iterable[Module]) -> list[str] | None:
    """Modules that import each other in a circle while they load, or None."""
    by_name = {module.name: module for module in modules}
    loads = {name: sorted(_loaded_names(module, by_name)) for name, module in by_name.items()}
    done: set[str] = set()

    def visit(name: str, path: list[str]) -> list[str] | None:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in done:
            return None
        for other in loads[name]:
            if cycle := visit(other, [*path, name]):
                return cycle
        done.add(name)
        return None

    return next((cycle for name in loads if (cycle := visit(name, []))), None)


def _loaded_names(module: Module, by_name: Container[str]) -> Iterator[str]:
    for item in imports_of(module):
        own = own_name(item.target)
        if own is None or item.lazy or item.typing_only:
            continue
        found = own if own in by_name else own.rpartition(".")[0]
        if found in by_name and found != module.name:
            yield found


def too_long(module: Module) -> str | None:
    lines = len(module.source.splitlines())
    if lines <= MAX_LINES or module.name in LONG:
        return None
    return f"{module.name} has {lines} lines: if it is two things, split it; if not, add it to LONG with the reason"


def shared_class_names(modules: Iterable[Module]) -> list[str]:
    """Public classes of one name: a reader who finds one would take it for the other."""
    places: dict[str, list[str]] = {}
    for module in modules:
        for node in ast.walk(ast.parse(module.source)):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(f"{module.name}:{node.lineno}")
    return [f"{name} is a class in {' and '.join(found)}" for name, found in sorted(places.items()) if len(found) > 1]


def misnamed_limits(module: Module) -> list[str]:
    """Constants that begin with MOST_ or LEAST_. Limits are called MAX_ and MIN_."""
    return [
        f"{module.name}:{node.lineno} names a limit {node.id}: begin it with MAX_ or MIN_"
        for node in ast.walk(ast.parse(module.source))
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id.lstrip("_").startswith(LIMITS)
    ]


def crowded(modules: Iterable[Module]) -> list[str]:
    """Folders in which nobody finds anything."""
    held = Counter(module.name.rpartition(".")[0] for module in modules if not module.is_package)
    return [f"{folder or PACKAGE} holds {held[folder]} modules" for folder in held if held[folder] > MAX_MODULES]
