"""Generates the reference of all keys and presets from the schema.

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

<!-- Generated from the schema by `scripts/document`: edit src/dreamfleet/config and run it again. -->

    dreamfleet train [PRESET ...] [KEY=VALUE ...] --run-dir DIR

```
dreamfleet train crafter size50m run.envs=32 --print-config
```

- **Presets** are arguments without `=`.
  They are applied to the defaults in the given order.
- **Overrides** have the form `key=value` and are applied after all presets.
  If a key is set twice, the last value wins.
  Values use YAML syntax: `2e4`, `true`, `[0, 1]`, `{name: dummy}`, `null`.
- **Keys** are dotted paths.
  A key with characters other than letters, digits, `_`, `.` and `-` is a regular expression.
  It sets every key that it fully matches: `'agent\\..*\\.units=512'`.
  A pattern without a match is an error.
- **`env=NAME` and `agent=NAME`** set `env.name` and `agent.name`.
  A new name resets the other keys of the group to their defaults, unless both names have the same suite or module, the
  part before the colon.
  For example, `atari env=atari:boxing` keeps the preset's image settings, while `atari env=crafter:reward` does not.
- **`--print-config`** shows the resolved configuration and the origin of each value, without starting a run.
- **The run folder** stores the configuration in `config.yaml`.
  `dreamfleet train --run-dir DIR` resumes the run with it.
  Add presets and overrides to change it, such as `agent.opt.lr=1e-5` or `env.restarts=100`.
- **Fixed keys** cannot change once the run has a snapshot.
  The column `fixed by` shows what depends on the key: the `task`, the saved `agent`, its `networks` with their weights
  and statistics, or their `first weights`.
  All other keys can change when the run is resumed, and the optimizer keeps its state.
  With `run.script=single`, `seed` and the numbers of environments are also fixed.
  To use other networks, start a new run and load the weights that fit with `run.from_checkpoint`.
- **Checks** run before anything starts.
  They cover unknown keys, types, bounds, conflicting keys, and the memory and disk space for the replay.
  A mistake results in a one-line error with the fix and exit code 2.
"""
RULE = """\
There are four kinds of presets, from general to specific: `defaults`, suites, sizes and modifiers.
A preset may override values of a more general one before it: `dmc_proprio size12m` trains a larger agent than
`dmc_proprio`.
Overriding a preset of the same or a more specific kind is an error.
Examples are two suites, two sizes, or `size12m dmc_proprio`, which would silently train at `size1m`.
"""
TITLES = {"suites": "Suites", "sizes": "Sizes", "modifiers": "Modifiers"}
WORDS = {int: "whole number", float: "number", bool: "true or false", str: "text", dict: "mapping"}
LARGE = 100_000  # write numbers of at least this size with an exponent
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
        yield "| preset | description | values |\n|---|---|---|"
        for preset in all_presets().values():
            if preset.kind == kind:
                settings = ", ".join(f"`{key}={_code(value)}`" for key, value in flatten(preset.values))
                yield f"| `{preset.name}` | {preset.about} | {settings} |"
        yield ""


def _sizes() -> Iterator[str]:
    yield (
        "A size preset is the same as `agent.size=NAME`, which sets the width of all layers. Later keys override it.\n"
    )
    keys = ("deter", "hidden", "classes", "depth", "units")
    yield f"| preset | description | {' | '.join(f'`{key}`' for key in keys)} |\n|---|---|{'---:|' * len(keys)}"
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
    if model is AgentGroup:  # list the frequently used keys first, before the inherited ones
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
    """Format a value as a user would type it: 5e6, not 5000000."""
    text = value if isinstance(value, str) else dump_inline(value)
    if isinstance(value, int | float) and LARGE <= value < math.inf:
        short = f"{value:.2g}".replace("e+0", "e").replace("e+", "e")
        text = short if float(short) == value else str(int(value))
    return text.replace("|", "\\|")


def main() -> None:
    sys.stdout.write((show_defaults() if sys.argv[1:] == ["defaults"] else document()).rstrip("\n") + "\n")


if __name__ == "__main__":
    main()
