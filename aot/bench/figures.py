"""From the seconds of single calls to the figures of a row."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import ceil
from statistics import median

P99_FROM = 100
"""Runs from which on one of them lies beyond the 99th percentile; with fewer it would only be the slowest."""
P99_KNOWN = 299
"""Runs from which on the slowest bounds the true 99th percentile with 95 % confidence: 1 - 0.99 ** 299 > 0.95
(Wilks, «Determination of sample sizes for setting tolerance limits», 1941)."""


def percentile(values: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile, a value that was measured: the smallest that `percent` of 100 do not exceed."""
    return sorted(values)[max(0, ceil(len(values) * percent / 100) - 1)]


def spread(blocks: Sequence[Sequence[float]]) -> float | None:
    """How far the medians of blocks lie apart: their 90th percentile less their 10th, as a share of their median.

    None for fewer than two blocks.
    """
    medians = [median(block) for block in blocks if block]
    if len(medians) < 2:
        return None
    return (percentile(medians, 90) - percentile(medians, 10)) / median(medians)


def alike(timed: Sequence[tuple[str, float, float | None]]) -> list[tuple[str, str, float, float]]:
    """Neighbours by time whose difference is no larger than the spread of either's blocks.

    timed: (name, median, spread as a share of it). Returns (faster, slower, difference, spread), the last two as shares
    of the faster one's time.
    """
    found = []
    ranked = sorted(timed, key=lambda one: one[1])
    for (fast, one, noise), (slow, other, noise2) in pairwise(ranked):
        width = max((noise or 0) * one, (noise2 or 0) * other)
        if other - one <= width:
            found.append((fast, slow, (other - one) / one, width / one))
    return found
