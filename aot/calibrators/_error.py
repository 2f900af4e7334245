"""The squared error of quantizing what a histogram counts, for any range: what `mse` and `output_error` minimise."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from aot.histogram import Histogram
    from aot.precision.formats import Quantized

    Floats = NDArray[np.float64]

# Ranges that are tried: so many steps an octave, so many octaves below the largest magnitude; then finer ones around
# the best of them.
_STEPS, _OCTAVES, _FINER = 8, 10, 8
# How far rounding in sums may be off, in shares of as many squares of the largest magnitude.
_SLACK = 1e-12
# The width of a bin whose values all lie at its lower edge, in shares of that.
_NARROW = 1e-6
# Four of the histogram's bins are taken as one.
_TOGETHER = 4


def best(histogram: Histogram, largest: float, form: Quantized) -> float:
    """The range, at most `largest`, whose quantization leaves the smallest squared error; the wider one of equals."""
    bounds, counts = coarse(histogram, largest)
    if not len(counts):
        return largest
    ranges = largest * 2.0 ** -(np.arange(_STEPS * _OCTAVES) / _STEPS)
    # A range of every octave says which of the narrower ones cut off so much that they cannot be the best.
    reached = errors(bounds, counts, ranges[::_STEPS], form).min()
    slack = _SLACK * counts.sum() * largest**2
    ranges = ranges[clipped(bounds, counts, ranges) <= reached + slack]
    # What every range that is left rounds to zero tells none from another.
    nothing = ranges[-1] / 2 ** (1 / _STEPS) / form.top * grid_of(form)[1][0]
    first = max(int(np.searchsorted(bounds, nothing, side="right")) - 1, 0)
    bounds, counts = bounds[first:], counts[first:]
    found = float(ranges[np.argmin(errors(bounds, counts, ranges, form))])
    around = np.arange(_FINER, -_FINER - 1, -1) / (_STEPS * _FINER)
    finer = np.minimum(found * 2.0**around, largest)
    return float(finer[np.argmin(errors(bounds, counts, finer, form))])


def errors(bounds: Floats, counts: Floats, ranges: Floats, form: Quantized) -> Floats:
    """The sum of (x - quantized x)^2 for each range, [R], where values lie evenly within their bins.

    bounds: [n + 1], edges of the bins; counts: [n]. A value beyond the range is clipped to it.

    With s = range / top, the error of all values in [0, x) is s^3 F(x / s), F that of the grid of the format's own
    numbers: in closed form, since between two halfway points the error is the distance to one number.
    """
    grid, halfway, before = grid_of(form)
    scales = ranges / form.top
    x = bounds / scales[:, None]  # [R, n + 1]
    if form.numpy.kind == "i":
        cell = np.minimum(x + 0.5, form.top).astype(np.intp)
    else:
        cell = np.searchsorted(halfway, x, side="right")
    beyond = x - grid[cell]
    below = before[cell] + beyond * beyond * beyond / 3
    density = counts / np.diff(bounds)
    total: Floats = scales**3 * (np.diff(below, axis=1) @ density)
    return total


def clipped(bounds: Floats, counts: Floats, ranges: Floats) -> Floats:
    """The part of `errors` that is due to bins that lie beyond each range: no more than all of it, whatever the form.

    Sums of 1, x and x^2 over all values from each bin on hold what is needed.
    """
    low, high = bounds[:-1], bounds[1:]
    powers = np.stack([counts, counts * (low + high) / 2, counts * (low * low + low * high + high * high) / 3])
    beyond = np.zeros((3, len(counts) + 2))  # the largest magnitude may lie above all bins
    beyond[:, : len(counts)] = powers[:, ::-1].cumsum(axis=1)[:, ::-1]
    zeroth, first, second = beyond[:, np.searchsorted(bounds, ranges)]
    found: Floats = second - 2 * ranges * first + ranges * ranges * zeroth
    return found


@lru_cache
def grid_of(form: Quantized) -> tuple[Floats, Floats, Floats]:
    """The format's numbers from 0 to top, [G]; the points halfway between them, [G - 1]; and the error of all values
    below each number, [G]."""
    if form.numpy.kind == "i":
        grid = np.arange(form.top + 1)
    else:
        every = np.arange(1 << 7, dtype=np.uint8).view(form.numpy).astype(np.float64)
        grid = every[every <= form.top]  # leaves NaN out
    halfway = (grid[1:] + grid[:-1]) / 2
    gaps = np.diff(grid)
    # Either side of a halfway point, values at up to half a gap from their number: (gap / 2)^3 / 3.
    half = (gaps / 2) ** 3 / 3
    before = np.concatenate([[0.0], np.cumsum(2 * half)])
    return grid, halfway, before


def coarse(histogram: Histogram, largest: float) -> tuple[Floats, Floats]:
    """Edges and counts of wider bins, from the first that matters to the largest magnitude; zeros left out, for they
    are exact in every format, and so are bins far below any range's smallest step."""
    from aot.histogram import edges

    first, last = histogram.window
    first = max(first, 1, last - 128 * (2 * _OCTAVES + 8))
    if last <= first:
        return np.zeros(1), np.zeros(0)
    first -= first % _TOGETHER
    bounds = np.append(edges()[first:last:_TOGETHER], edges()[last])
    counts = np.add.reduceat(histogram.counts[first:last].astype(np.float64), np.arange(0, last - first, _TOGETHER))
    if not first:
        counts[0] -= histogram.counts[0]
    # The last bin ends where the values do; not so narrow that differences over it are rounded away.
    bounds[-1] = max(min(bounds[-1], largest), bounds[-2] * (1 + _NARROW))
    return bounds, counts
