"""Writes the reference of all keys and presets from the schema.

python -m dreamfleet.config.document > docs/configuration.md
python -m dreamfleet.config.document defaults > src/dreamfleet/config/presets/defaults.yaml
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from dreamfleet.config.agent import AgentGroup
from dreamfleet.config.keys import fixed, flatten, group_of
from dreamfleet.config.presets import KINDS, all_presets
from dreamfleet.config.schema import Config, Sampling
from dreamfleet.config.show import show_defaults
from dreamfleet.config.syntax import dump_inline
from dreamfleet.core.hyperparameters import SIZES

INTRO = """\
# Configuration

<!-- Made from the schema by `scripts/document`: change src/dreamfleet/config and run it again. -->

    dreamfleet train [PRESET ...] [KEY=VALUE ...] --run-dir DIR

```
dreamfleet train crafter size50m run.envs=32 --print-config
```

- **Presets** are words without `=`. They are applied in the order given, on top of the defaults.
- **Overrides**, `key=value`, come after all presets, in order; of two for the same key the last one counts. A value
  is written as in YAML: `2e4`, `true`, `[0, 1]`, `{name: dummy}`, `null`.
- **A key** is a dotted path. One with other characters than letters, digits, `_`, `.` and `-` is a regular
  expression that sets every key it matches as a whole: `'agent\\..*\\.units=512'`. One that matches nothing is an
  error.
- **`env=NAME` and `agent=NAME`** set `env.name` and `agent.name`. Another name brings the other keys of that group
  back to their defaults, unless it is of the same suite or module, which is what stands before the colon: `atari
  env=atari:boxing` keeps what the preset says about images, `atari env=crafter:reward` does not.
- **`--print-config`** shows the result and where each value comes from, and starts nothing.
- **A run folder keeps its configuration** in `config.yaml`. `dreamfleet train --run-dir DIR` alone resumes it;
  presets and overrides go on top, such as `agent.opt.lr=1e-5` or `env.restarts=100`.
- **A fixed key** cannot change once the run holds a snapshot. The column `fixed by` says what depends on it: the
  `task`, the saved `agent`, its `networks` with their weights and statistics, or their `first weights`. All other
  keys can change whenever the run is resumed; the optimizer keeps its state. (In lock step, `run.script=single`,
  `seed` and the numbers of environments are fixed too.) A new run with other networks can take over the weights that
  fit, by `run.from_checkpoint`.
- **Everything is checked before anything starts**: unknown keys, types, bounds, keys that do not go together, and
  whether memory and disk suffice for the replay. A mistake is one line that says what to do; the exit code is 2.
"""
RULE = """\
There are four kinds, from the most general to the most special: `defaults`, suites, sizes, modifiers. A preset may
change what one of a more general kind before it has set: `dmc_proprio size12m` trains a larger agent than
`dmc_proprio` alone. It is an error if a preset changes what one of its own kind, or of a more special one before
it, has set: two suites, two sizes, or `size12m dmc_proprio`, which would silently train at `size1m`.
"""
TITLES = {"suites": "Suites", "sizes": "Sizes", "modifiers": "Modifiers"}
WORDS = {int: "whole number", float: "number", bool: "true or false", str: "text", dict: "mapping"}
LARGE = 100_000  # numbers from here on are written with an exponent
BOUNDS = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}


def document() -> str:
    return "\n".join([INTRO, *_presets(), "## Keys\n", *_table(Sampling, ""), *_groups(Config, "")])


def _presets() -> Iterator[str]:
    yield "## Presets\n"
    yield RULE
    for kind in KINDS[1:]:
        yield f"### {TITLES[kind]}\n"
        if kind == "sizes":
            yield from _sizes()
            continue
        yield "| preset | what | sets |\n|---|---|---|"
        for preset in all_presets().values():
            if preset.kind == kind:
                settings = ", ".join(f"`{key}={_code(value)}`" for key, value in flatten(preset.values))
                yield f"| `{preset.name}` | {preset.about} | {settings} |"
        yield ""


def _sizes() -> Iterator[str]:
    yield "As `agent.size=NAME`, which sets the widths of all layers. Single keys after it change them again.\n"
    keys = ("deter", "hidden", "classes", "depth", "units")
    yield f"| preset | what | {' | '.join(f'`{key}`' for key in keys)} |\n|---|---|{'---:|' * len(keys)}"
    for name, size in SIZES.items():
        numbers = " | ".join(str(getattr(size, key)) for key in keys)
        yield f"| `{name}` | {all_presets()[name].about} | {numbers} |"
    yield ""


def _groups(model: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, field in model.model_fields.items():
        if group := group_of(field):
            yield f"{'####' if prefix else '###'} `{prefix}{name}`\n\n{field.description}\n"
            yield from _table(group, f"{prefix}{name}.")
            yield from _groups(group, f"{prefix}{name}.")


def _table(model: type[BaseModel], prefix: str) -> Iterator[str]:
    rows = [(name, field) for name, field in model.model_fields.items() if not group_of(field)]
    if model is AgentGroup:  # what is set most often first, not what is inherited
        own = list(AgentGroup.__annotations__)
        rows.sort(key=lambda row: own.index(row[0]) if row[0] in own else len(own))
    marks = {name: mark for name, _ in rows if (mark := fixed(f"{prefix}{name}"))}
    yield "| key | default | type | meaning |" + " fixed by |" * bool(marks)
    yield "|---|---|---|---|" + "---|" * bool(marks)
    for name, field in rows:
        default = field.get_default(call_default_factory=True)
        row = f"| `{prefix}{name}` | `{_code(default)}` | {_type(field)} | {_code(field.description)} |"
        yield row + (f" {marks[name].by if name in marks else ''} |" if marks else "")
    yield ""


def _type(field: FieldInfo) -> str:
    found = [
        f"{BOUNDS[name]} {getattr(item, name):g}" for item in field.metadata for name in BOUNDS if hasattr(item, name)
    ]
    return ", ".join([_kind(field.annotation), *found])


def _kind(kind: Any) -> str:
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Literal:
        return ", ".join(f"`{choice}`" for choice in inner)
    if origin in (Union, UnionType):
        return " or ".join("`null`" if part is type(None) else _kind(part) for part in inner)
    if origin is tuple:
        count = "" if Ellipsis in inner else f"{len(inner)} "
        kinds = get_args(inner[0]) if get_origin(inner[0]) is UnionType else (inner[0],)
        return f"list of {count}{' or '.join(f'{_kind(kind)}s' for kind in kinds)}"
    if origin is Annotated:
        return _kind(inner[0])
    return WORDS[origin or kind]


def _code(value: Any) -> str:
    """As it would be typed: 5e6, not 5000000."""
    text = value if isinstance(value, str) else dump_inline(value)
    if isinstance(value, int | float) and LARGE <= value < math.inf:
        short = f"{value:.2g}".replace("e+0", "e").replace("e+", "e")
        text = short if float(short) == value else str(int(value))
    return text.replace("|", "\\|")


def main() -> None:
    sys.stdout.write((show_defaults() if sys.argv[1:] == ["defaults"] else document()).rstrip("\n") + "\n")


if __name__ == "__main__":
    main()
