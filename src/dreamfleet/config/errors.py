"""One-line error messages for configurations. They name the key, the value and the fix."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from dreamfleet.core.errors import ConfigError
from dreamfleet.core.text.suggestions import closest_names

_EXPECTED = {
    "int_type": "expected a whole number",
    "float_type": "expected a number",
    "bool_type": "expected true or false",
    "string_type": "expected text",
    "dict_type": "expected a mapping",
    "tuple_type": "expected a list",
    "finite_number": "expected a finite number",
}


def unknown_key(key: str, known: Sequence[str]) -> ConfigError:
    if meant := closest_key(key, known):
        return ConfigError(f"unknown config key '{key}': did you mean '{meant}'?")
    roots = dict.fromkeys(other.partition(".")[0] for other in known)
    return ConfigError(f"unknown config key '{key}': keys start with {', '.join(roots)}")


def closest_key(key: str, known: Sequence[str]) -> str | None:
    """Return the known key with the most similar spelling. Also compare last parts, in any group."""
    by_name = {other.rpartition(".")[2]: other for other in reversed(known)}
    name = key.rpartition(".")[2]
    if name in by_name:
        return by_name[name]
    if alike := closest_names(key, known):
        return alike[0]
    return next((by_name[other] for other in closest_names(name, by_name)), None)


def explain(error: ValidationError) -> ConfigError:
    """Join all validation errors into one line."""
    return ConfigError("; ".join(_problem(detail) for detail in error.errors(include_url=False)))


def _problem(detail: ErrorDetails) -> str:
    if detail["type"] == "value_error":
        return str(detail["ctx"]["error"])  # the message of a cross-field check already names its keys
    key = ".".join(str(part) for part in detail["loc"])
    expected = _EXPECTED.get(detail["type"]) or detail["msg"].replace("Input should be", "expected a value")
    return f"config key '{key}' cannot be {detail['input']!r}: {expected}"
