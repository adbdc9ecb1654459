"""Which observations a user means by a name or a glob, such as `mission` or `arm/*`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

from dreamfleet.core.errors import ConfigError
from dreamfleet.core.text.suggestions import closest_names, did_you_mean


def select(option: str, patterns: Iterable[str], keys: Sequence[str], kind: str) -> dict[str, str]:
    """Return the keys that the patterns match, each with the last pattern that does.

    A pattern matches a key, or a group that the key is in: `arm` stands for `arm/0` too. Raises `ConfigError` where one
    matches nothing, with the closest of `keys`; `kind` says in that message what they are.
    """
    found: dict[str, str] = {}
    for pattern in patterns:
        matched = [key for key in keys if any(part == pattern or fnmatchcase(part, pattern) for part in _parts(key))]
        if not matched:
            raise ConfigError(f"{option}: {pattern!r} matches no {kind}: {_hint(pattern, keys)}")
        found |= dict.fromkeys(matched, pattern)
    return found


def select_sizes(option: str, sizes: Mapping[str, int], keys: Sequence[str], kind: str) -> dict[str, int]:
    return {key: sizes[pattern] for key, pattern in select(option, sizes, keys, kind).items()}


def _parts(key: str) -> list[str]:
    """The key and the groups that it is in: a, a/b and a/b/c of a/b/c."""
    names = key.split("/")
    return ["/".join(names[: depth + 1]) for depth in range(len(names))]


def _hint(pattern: str, keys: Sequence[str]) -> str:
    known = list(dict.fromkeys(part for key in keys for part in _parts(key)))
    listed = f"there are {', '.join(sorted(keys))}" if keys else "there are none"
    return did_you_mean(closest_names(pattern, known), listed)
