"""The configuration keys that the code and the documents tell a user to set."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import dreamfleet
from dreamfleet.config.keys import known_keys
from dreamfleet.config.schema import Config, Sampling

SOURCE = Path(dreamfleet.__file__).parent
GAP = "\0"  # what an f-string fills in
_GROUPS = "|".join(name for name in Config.model_fields if name not in Sampling.model_fields)
_WORD = re.compile(rf"(?<![\w.])(?:(?:{_GROUPS})(?:\.[\w{GAP}]+)+|{'|'.join(Sampling.model_fields)})(?!\w)")


def keys_in(text: str) -> set[str]:
    """A gap stands for any name: `run.{name}_timeout_s` for every key of that form."""
    found: set[str] = set()
    for word in _WORD.findall(text):
        pattern = re.compile(re.escape(word).replace(GAP, "[a-z_]+"))
        matching = {key for key in known_keys() if pattern.fullmatch(key)}
        if word.startswith("env.kwargs."):
            matching = {"env.kwargs"}
        if GAP not in word or len(matching) < len(known_keys()) // 10:  # else the gap is the whole name: no one key
            found |= matching
    return found


def keys_in_code() -> set[tuple[str, str]]:
    """Every key in a text of the package, with its module. Descriptions of keys and docstrings are no messages."""
    return {
        (str(path.relative_to(SOURCE)), key)
        for path in sorted(SOURCE.rglob("*.py"))
        for text in _texts(ast.parse(path.read_text()))
        for key in keys_in(text)
    }


def _texts(tree: ast.Module) -> Iterator[str]:
    silent: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node):
            silent.update(ast.walk(node.body[0]))
        elif isinstance(node, ast.keyword) and node.arg == "description":
            silent.update(ast.walk(node.value))
        elif isinstance(node, ast.JoinedStr):
            silent.update(node.values)
            yield "".join(part.value if isinstance(part, ast.Constant) else GAP for part in node.values)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in silent:
            yield node.value
