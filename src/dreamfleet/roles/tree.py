"""Walks nested dicts, lists and tuples. Everything else is a leaf, `None` too.

Meant to be used as `tree.map(...)`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any


def map(fn: Callable[..., Any], *trees: Any) -> Any:
    """Applies `fn` to the leaves at the same place of each tree; the result has the structure of the first one."""
    return _map(fn, trees, "")


def leaves(tree: Any) -> list[Any]:
    return [leaf for _, leaf in _walk(tree, "")]


def flatten(tree: Any) -> dict[str, Any]:
    """The leaves by path, keys and positions joined by "/". Empty containers leave no trace."""
    flat: dict[str, Any] = {}
    for path, leaf in _walk(tree, ""):
        if path in flat:
            raise ValueError(f"two leaves have the path '{path}': one of the keys contains a '/'")
        flat[path] = leaf
    return flat


def _children(tree: Any) -> dict[Any, Any] | None:
    if isinstance(tree, dict):
        return tree
    if isinstance(tree, list | tuple):
        return dict(enumerate(tree))
    return None


def _walk(tree: Any, path: str) -> Iterator[tuple[str, Any]]:
    children = _children(tree)
    if children is None:
        yield path, tree
        return
    for key, child in children.items():
        yield from _walk(child, _join(path, key))


def _map(fn: Callable[..., Any], trees: tuple[Any, ...], path: str) -> Any:
    first = trees[0]
    children = [_children(tree) for tree in trees]
    keys = children[0]
    for other, found in zip(trees[1:], children[1:], strict=True):
        if (found is None) != (keys is None) or (found or {}).keys() != (keys or {}).keys():
            raise ValueError(f"trees differ at '{path or '/'}': {_shape(first)} and {_shape(other)}")
    if keys is None:
        return fn(*trees)
    mapped = {}
    for key in keys:
        at_key = tuple(found[key] for found in children if found is not None)
        mapped[key] = _map(fn, at_key, _join(path, key))
    if isinstance(first, dict):
        return mapped
    if hasattr(first, "_fields"):  # a named tuple takes its fields one by one
        return type(first)(*mapped.values())
    return type(first)(mapped.values())


def _join(path: str, key: Any) -> str:
    return f"{path}/{key}" if path else str(key)


def _shape(tree: Any) -> str:
    children = _children(tree)
    name = type(tree).__name__
    return name if children is None else f"{name} with keys {sorted(str(key) for key in children)}"
