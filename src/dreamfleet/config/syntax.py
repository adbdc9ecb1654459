"""How values are written: YAML with the plain scalars of YAML 1.2.

PyYAML follows YAML 1.1, where 2e4 is a text, `no` a boolean, 1:30 the number 90 and 2024-01-01 a date. Here a number is
what looks like one, only true and false are booleans, and everything else is text.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

_SCALARS = {
    "null": r"~|null|Null|NULL|",
    "bool": r"true|True|TRUE|false|False|FALSE",
    "int": r"[-+]?(0|[1-9][0-9_]*)",
    "float": r"[-+]?(\.[0-9]+|[0-9][0-9_]*\.[0-9]*)([eE][-+]?[0-9]+)?"  # .5, 1., 1.5e3
    r"|[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+"  # 2e4
    r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
}


class MissingValue(yaml.YAMLError):
    """A key within braces has nothing behind it, as in `{a:5}`, which YAML reads as the key `a:5`."""


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[Any, Any] = {}  # noqa: RUF012, PyYAML's own declaration

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        for key, value in node.value if node.flow_style else ():
            if isinstance(value, yaml.ScalarNode) and not value.value and value.style is None:
                raise MissingValue(_missing_value(str(key.value)))
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """Keeps the scalars of YAML 1.1 beside ours: a text that either could misread is quoted."""


for _name, _pattern in _SCALARS.items():
    for _kind in (_Loader, _Dumper):
        # None: tried whatever the first character is.
        _kind.add_implicit_resolver(f"tag:yaml.org,2002:{_name}", re.compile(f"^(?:{_pattern})$"), None)


def _missing_value(key: str) -> str:
    name, colon, value = key.partition(":")
    if colon and value:
        return f"{key!r} has no value: write {{{name}: {value}}}, with a space after the colon"
    return f"{key!r} has no value: write {{{key}: VALUE}}, or {{{key}: null}}"


def parse_yaml(text: str) -> Any:
    return yaml.load(text, _Loader)


def dump_yaml(value: Any) -> str:
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def dump_inline(value: Any) -> str:
    """On one line, as it may stand behind a key."""
    plain = list(value) if isinstance(value, tuple) else value
    text = yaml.dump(
        plain, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=True, width=float("inf")
    )
    return text.removesuffix("...\n").rstrip("\n")
