"""Arguments as Python takes them: YAML has no tuples, and some callables insist on them."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any


def with_tuples(factory: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments, a list as a tuple where the parameter is annotated with one, or has one as its default."""
    try:
        parameters = inspect.signature(factory).parameters
    except (TypeError, ValueError):  # as some built-in ones have none
        return dict(arguments)
    return {
        key: tuple(value) if isinstance(value, list) and key in parameters and _is_tuple(parameters[key]) else value
        for key, value in arguments.items()
    }


def _is_tuple(parameter: inspect.Parameter) -> bool:
    if isinstance(parameter.default, tuple):
        return True
    annotation = parameter.annotation
    if annotation is parameter.empty:
        return False
    try:
        tree = ast.parse(annotation if isinstance(annotation, str) else inspect.formatannotation(annotation))
    except SyntaxError:
        return False
    names = {_name(node) for statement in tree.body if isinstance(statement, ast.Expr) for node in _or(statement.value)}
    return bool(names & {"tuple", "Tuple"})


def _or(node: ast.expr) -> Iterator[ast.expr]:
    """The alternatives of `a | b`, Union[a, b] and Optional[a]."""
    if isinstance(node, ast.BinOp):
        yield from _or(node.left)
        yield from _or(node.right)
    elif isinstance(node, ast.Subscript) and _name(node.value) in ("Union", "Optional"):
        for inner in node.slice.elts if isinstance(node.slice, ast.Tuple) else (node.slice,):
            yield from _or(inner)
    else:
        yield node.value if isinstance(node, ast.Subscript) else node


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
