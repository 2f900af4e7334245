"""The range whose quantized distribution tells the most of the original one (Kullback-Leibler divergence).

The method is that of TensorRT's INT8 calibration: S. Migacz, «8-bit Inference with TensorRT», GTC 2017. Over 2048 equal
bins up to the largest magnitude, zeros left out, each range from 128 bins on is tried. P is what lies in it, with all
that lies beyond added to its last bin; Q is P without that, as the format's levels see it: the values that share a
level are spread evenly over the level's bins that are not empty. The range with the smallest KL(P || Q) is taken. Where
the last bin is empty, Q has half a value there for what lies beyond: else no range could end in a gap, and one outlier
would set it. For FP8 the levels are those of its own numbers, narrow near zero and wide at the top.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from aot.calibrator import Calibrator
from aot.statistics import Level, Tensor

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from aot.histogram import Histogram
    from aot.precision.formats import Quantized

    Floats = NDArray[np.float64]
    Indices = NDArray[np.intp]

BINS, FIRST = 2048, 128
# What Q has in an empty last bin, in values.
_EMPTY = 0.5


class Entropy(Calibrator):
    """amax = argmin KL(P || Q)."""

    name = "entropy"
    needs = Level.HISTOGRAM

    def amax(self, tensor: Tensor, form: Quantized) -> float:
        """All ranges at once, from running sums."""
        import numpy as np

        if tensor.histogram is None or not tensor.amax:
            return tensor.amax
        divergence = divergences(linear(tensor.histogram, tensor.amax), form)
        best = len(divergence) - 1 - int(np.argmin(divergence[::-1]))  # the widest of equals
        return tensor.amax * (FIRST + best) / BINS


def levels(form: Quantized) -> Floats:
    """Where the levels of the format begin, as shares of the range, [n + 1] with its end.

    INT8: 128 equal ones, as in the source. FP8: the values that are rounded to each number.
    """
    import numpy as np

    if form.numpy.kind == "i":
        return np.linspace(0, 1, 129)
    from aot.calibrators._error import grid_of

    grid, halfway, _ = grid_of(form)
    return np.concatenate([[0.0], halfway / grid[-1], [1.0]])


def linear(histogram: Histogram, largest: float) -> Floats:
    """The counts in 2048 equal bins up to `largest`, zeros left out; values lie evenly within the bins they were in."""
    import numpy as np

    from aot.histogram import edges

    first, last = histogram.window
    first = max(first, 1)
    if last <= first:
        return np.zeros(BINS)
    bounds = np.minimum(edges()[first : last + 1], largest)
    below = np.concatenate([[0.0], np.cumsum(histogram.counts[first:last])])
    return np.diff(np.interp(np.linspace(0, largest, BINS + 1), bounds, below))


def divergences(counts: Floats, form: Quantized) -> Floats:
    """KL(P || Q) for the ranges of 128, 129, ... bins.

    sum P log(P / Q) is the sum of P log P less that of P log Q, and Q is constant over a level's bins: running sums of
    counts, of bins that are not empty and of count x log(count) hold all that is needed.
    """
    import numpy as np

    filled = np.concatenate([[0.0], np.cumsum(counts > 0)])
    mass = np.concatenate([[0.0], np.cumsum(counts)])
    own = np.concatenate([[0.0], np.cumsum(_xlogx(counts))])
    ends = np.arange(FIRST, len(counts) + 1)
    total = mass[-1]
    if not total:
        return np.zeros(len(ends))
    starts, stops, level, last_level = _windows(form, len(counts))
    inside, bins = mass[stops] - mass[starts], filled[stops] - filled[starts]
    logs = np.log(np.where(inside > 0, inside, 1.0) / np.maximum(bins, 1))
    crossed = (inside * logs)[level].sum(axis=1)
    last, beyond = counts[ends - 1], total - mass[ends]
    log_last = np.where(last > 0, logs[last_level], -np.inf)
    reference = own[ends] - _xlogx(last) + _xlogx(last + beyond)
    candidate = crossed + beyond * np.maximum(log_last, np.log(_EMPTY))
    with np.errstate(divide="ignore", invalid="ignore"):
        found: Floats = (reference - candidate) / total - np.log(total) + np.log(mass[ends])
    return found


@cache
def _windows(form: Quantized, size: int) -> tuple[Indices, Indices, Indices, Indices]:
    """The levels of every range, [R, levels], and the last one that is not empty of each, [R]: as indices into all
    that there are, of bins `starts` to before `stops`. Ranges share most of theirs, which are worked out once.
    """
    import numpy as np

    ends = np.arange(FIRST, size + 1)
    # Bin j belongs to the level in which it begins.
    cuts = np.ceil(ends[:, None] * levels(form) - 1e-9).astype(np.intp)
    widths = np.diff(cuts, axis=1)
    most = int(widths.max()) + 1
    numbers = cuts[:, :-1] * most + widths
    used = np.zeros((size + 1) * most, bool)
    used[numbers] = True
    starts, lengths = np.divmod(np.flatnonzero(used), most)
    level = (np.cumsum(used) - 1)[numbers]
    last = level.shape[1] - 1 - np.argmax(cuts[:, -2::-1] < ends[:, None], axis=1)
    return starts, starts + lengths, level, level[np.arange(len(ends)), last]


def _xlogx(x: Floats) -> Floats:
    import numpy as np

    return x * np.log(np.where(x > 0, x, 1.0))


CALIBRATOR = Entropy
