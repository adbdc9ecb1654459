"""Import names of user functions and classes, for other processes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dreamfleet.core.errors import ConfigError

# Prefixes of the main modules of a fleet's processes.
OWN_PROCESSES = ("dreamfleet.supervision.", "dreamfleet.launch.", "dreamfleet.commands.")


def name_of(factory: str | Callable[..., Any], kind: str) -> str:
    """Return `module:attribute`, as on the command line. A name is returned unchanged."""
    if isinstance(factory, str):
        return factory
    module, attribute = getattr(factory, "__module__", None), getattr(factory, "__qualname__", None)
    if module is None or attribute is None:
        hint = "; pass its arguments as env.kwargs" if kind == "env" else ""
        raise ConfigError(f"{kind}={factory!r} cannot be imported by other processes: pass a function or class{hint}")
    if not attribute.isidentifier():
        raise ConfigError(
            f"{kind}={attribute}: other processes cannot import lambdas or nested definitions: "
            "define it at the top level of a file"
        )
    if module == "__main__":
        module = _main_module(kind, attribute)
    elif getattr(sys.modules.get(module), attribute, None) is not factory:
        raise ConfigError(
            f"{kind}: {module}.{attribute} is a different object than the one passed: pass the object of that name"
        )
    return f"{module}:{attribute}"


def expect_user_process() -> None:
    """Raise an error if a process of the fleet imports the script that starts the fleet."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec and spec.name.startswith(OWN_PROCESSES):
        raise ConfigError(
            "dreamfleet.train was called while a process of the fleet imported the script: "
            'put the call under `if __name__ == "__main__":`'
        )


def _main_module(kind: str, attribute: str) -> str:
    """Return the import name of the running script."""
    main = sys.modules["__main__"]
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if spec is not None:  # python -m package.module
        return str(spec.name.removesuffix(".__main__") if spec.name != "__main__" else spec.name)
    if file is None or not Path(file).stem.isidentifier():
        where = "an interactive session" if file is None else Path(file).name
        raise ConfigError(
            f"{kind}={attribute} is defined in {where}, which other processes cannot import: move it into a .py file "
            "and import it from there"
        )
    name = Path(file).stem
    if sys.modules.setdefault(name, main) is not main:  # already imported in this process, so it need not run again
        raise ConfigError(
            f"{kind}={attribute} is defined in {name}.py, but {name!r} is another module: rename the file"
        )
    return name
