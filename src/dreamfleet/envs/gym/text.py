"""Text as an agent can take it: which words and which pairs of neighbouring words are there, hashed into bits.

The width is fixed however long the text is, and pairs keep what the order of words says: "red ball" is not "ball red".
`agent.export.policy_file` does the same for exported policies.
"""

from __future__ import annotations

import itertools
import re
import zlib

import numpy as np

_WORD = re.compile(r"\w+")


def hashed_words(text: str, bits: int) -> np.ndarray:
    """Return booleans, true where a word or a pair of the text falls. The same text gives the same everywhere."""
    words = _WORD.findall(text.lower())
    found = np.zeros(bits, bool)
    for part in [*words, *map(" ".join, itertools.pairwise(words))]:
        found[zlib.crc32(part.encode(errors="replace")) % bits] = True
    return found
