"""How often each magnitude occurs, in bins that never move.

A bin is what the upper half of a float32 says: sign dropped, the exponent and seven bits of the mantissa, 128 bins an
octave, each 0.5 to 0.8 % wide. It depends on the value alone, so counts are whole numbers that add up to the same
whatever the order, the batches or the process they were counted in, and no range has to be known beforehand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = np.ndarray[Any, Any]

# 15 bits: 8 of the exponent, 7 of the mantissa. Bin 0 holds zero (and what is below 2**-133).
BINS = 1 << 15
# Values taken at a time: what is made of them on the way stays in the cache.
_CHUNK = 1 << 16


def edges() -> NDArray[np.float64]:
    """The lower edge of every bin and the upper edge of the last finite one, [32641] for bins 0 to 32639."""
    return (np.arange(0x7F81, dtype=np.uint32) << 16).view(np.float32).astype(np.float64)


def centres() -> NDArray[np.float64]:
    """The magnitude that stands for a bin, [32768]: its middle, 0 for bin 0 and for the bins of no finite value."""
    found = np.zeros(BINS)
    bounds = edges()[:-1]
    found[1 : len(bounds)] = bounds[1:] + np.diff(bounds, append=2.0 * bounds[-1] - bounds[-2])[1:] / 2
    return found


def bins_of(array: Array) -> NDArray[np.uint16]:
    """The bin of every value of a float32 array, flat: values keep their sign bit as bit 15."""
    flat = np.ascontiguousarray(array, dtype="<f4").reshape(-1)
    return flat.view("<u2")[1::2]


@dataclass
class Histogram:
    """counts: int64 [32768], how many values fell into each bin of magnitude (or what they weigh, all told)."""

    counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(BINS, np.int64))

    def add(self, array: Array, weights: NDArray[np.int64] | None = None) -> None:
        """Count every value of a float array; `weights`: whole numbers that broadcast to it, how often each counts."""
        bins = bins_of(array)
        weight = None if weights is None else np.broadcast_to(weights, array.shape).reshape(-1)
        for start in range(0, len(bins), _CHUNK):
            part = slice(start, start + _CHUNK)
            found = np.bincount(bins[part], None if weight is None else weight[part], 2 * BINS)
            # Sums of whole numbers below 2**53 are exact in the float64 that weights give.
            self.counts += found.reshape(2, BINS).sum(axis=0).astype(np.int64)

    def merge(self, other: Histogram) -> None:
        """Count what `other` has counted."""
        self.counts += other.counts

    @property
    def window(self) -> tuple[int, int]:
        """The first bin that is not empty, and the one after the last."""
        filled = np.flatnonzero(self.counts)
        return (int(filled[0]), int(filled[-1]) + 1) if len(filled) else (0, 0)
