"""Which snapshots of a run are kept, and of which only the agent."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

NEWEST, MILESTONE, BEST = "newest", "milestone", "best"


@dataclass(frozen=True)
class Retention:
    """The newest `keep` stay whole, so that the run can continue from any of them. Of the others, the first one of
    every `every` steps and the `best` ones by score keep their agent alone: their replay would fill the disk.
    """

    keep: int = 2
    every: int = 0
    best: int = 0

    def reasons(self, manifests: Sequence[Mapping[str, Any]]) -> list[list[str]]:
        """Why each snapshot is kept, oldest first as they are given; those without a reason go."""
        found: list[list[str]] = [[] for _ in manifests]
        whole = [index for index, manifest in enumerate(manifests) if not manifest.get("agent_only")]
        for index in whole[-self.keep :]:
            found[index].append(NEWEST)
        seen = {0}  # the time before the first milestone
        for index, manifest in enumerate(manifests):
            number = int(manifest["step"]) // self.every if self.every else 0
            if number not in seen:
                seen.add(number)
                found[index].append(MILESTONE)
        for index in sorted(range(len(manifests)), key=lambda index: (-score(manifests[index]), -index))[: self.best]:
            if score(manifests[index]) > -math.inf:
                found[index].append(BEST)
        return found


def score(manifest: Mapping[str, Any]) -> float:
    found = manifest.get("score")
    return -math.inf if found is None else float(found)
