"""How often each magnitude occurs, in bins that never move.

A bin is what the upper half of a float32 says: sign dropped, the exponent and seven bits of the mantissa, 128 bins an
octave, each 0.5 to 0.8 % wide. It depends on the value alone, so counts are whole numbers that add up to the same
whatever the order, the batches or the process they were counted in, and no range has to be known beforehand.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = np.ndarray[Any, Any]

# 15 bits: 8 of the exponent, 7 of the mantissa. Bin 0 holds zero (and what is below 2**-133).
BINS = 1 << 15
# Values taken at a time: what is made of them on the way stays in the cache.
_CHUNK = 1 << 16


@cache
def edges() -> NDArray[np.float64]:
    """The lower edge of every bin, and the upper edge of the last that holds finite values: [32641], of bins 0 to
    32639."""
    found = (np.arange(0x7F81, dtype=np.uint32) << 16).view(np.float32).astype(np.float64)
    found[-1] = 2.0**128
    found.flags.writeable = False
    return found


def bins_of(array: Array) -> NDArray[np.uint16]:
    """The bin of every value of a float array, flat, with the value's sign as bit 15."""
    # The upper half of every value: little-endian whatever the machine, so that it is the second one.
    return np.ascontiguousarray(array, dtype="<f4").reshape(-1).view("<u2")[1::2]


@dataclass
class Histogram:
    """counts: int64 [32768], how many values fell into each bin of magnitude (or what they weigh, all told)."""

    counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(BINS, np.int64))

    def add(self, array: Array) -> None:
        """Count every value of a float array."""
        for _, bins in _chunks(array):
            np.add.at(self.counts, bins, 1)

    def add_with(self, weighted: Histogram, array: Array, gain: NDArray[np.int64], axis: int) -> None:
        """Count every value of a float array, and in `weighted` as often as `gain` says of its index along `axis`."""
        one = np.repeat(gain, math.prod(array.shape[axis % array.ndim + 1 :]))
        # So often that it holds a chunk wherever that begins, or all there is.
        gains = np.tile(one, min(1 + -(-_CHUNK // len(one)), array.size // len(one)))
        for start, bins in _chunks(array):
            offset = start % len(one)
            np.add.at(self.counts, bins, 1)
            np.add.at(weighted.counts, bins, gains[offset : offset + len(bins)])

    def merge(self, other: Histogram) -> None:
        """Count what `other` has counted."""
        self.counts += other.counts

    @property
    def total(self) -> int:
        """The sum of all counts."""
        return int(self.counts.sum())

    @property
    def window(self) -> tuple[int, int]:
        """The first bin that is not empty, and the one after the last."""
        filled = np.flatnonzero(self.counts)
        return (int(filled[0]), int(filled[-1]) + 1) if len(filled) else (0, 0)


def _chunks(array: Array) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """The bins of some values at a time, with the index of the first; each is gone when the next is asked for.

    Whole words are shifted, which takes half as long as reading every other half of one.
    """
    words = np.ascontiguousarray(array, np.float32).reshape(-1).view(np.uint32)
    size = min(_CHUNK, len(words))
    narrow, bins = np.empty(size, np.uint32), np.empty(size, np.int64)
    for start in range(0, len(words), _CHUNK):
        part = words[start : start + _CHUNK]
        np.left_shift(part, 1, out=narrow[: len(part)])  # drops the sign
        np.right_shift(narrow, 17, out=narrow)
        bins[:] = narrow  # wide, as numpy wants indices
        yield start, bins[: len(part)]
