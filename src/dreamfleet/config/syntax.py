"""The syntax of values: YAML with the plain scalars of YAML 1.2.

PyYAML follows YAML 1.1, where 2e4 is text, `no` a boolean, 1:30 the number 90 and 2024-01-01 a date. This module parses
numbers such as 2e4, accepts only true and false as booleans, and reads everything else as text.
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
    """A key in braces has no value. For example, YAML reads `{a:5}` as the key `a:5`."""


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[Any, Any] = {}  # noqa: RUF012, declared by PyYAML

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        for key, value in node.value if node.flow_style else ():
            if isinstance(value, yaml.ScalarNode) and not value.value and value.style is None:
                raise MissingValue(_missing_value(str(key.value)))
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """Dumper that quotes text if YAML 1.1 or 1.2 would read it as another type."""


for _name, _pattern in _SCALARS.items():
    for _kind in (_Loader, _Dumper):
        # None: try the resolver for any first character.
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
    """Return the value as YAML on one line."""
    plain = list(value) if isinstance(value, tuple) else value
    text = yaml.dump(
        plain, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=True, width=float("inf")
    )
    return text.removesuffix("...\n").rstrip("\n")
