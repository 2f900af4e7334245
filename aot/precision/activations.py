"""What rounding an activation does to it, from the histogram that calibration kept of its magnitudes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from aot.histogram import edges
from aot.precision.formats import Quantized
from aot.precision.scales import Array

if TYPE_CHECKING:
    from aot.statistics import Statistics, Tensor

# Places within a bin of the histogram at which an error is looked at.
_PLACES = (np.arange(8) + 0.5) / 8
# Ranges that are tried for a floating-point format, as multiples of the one that the calibrator chose.
_OCTAVE = 2.0 ** (np.arange(16) / 16)


def magnitudes(tensor: Tensor) -> tuple[int, Array, Array]:
    """The number of the first bin of a tensor's histogram that holds anything but zeros, which are exact in every
    format; values of each bin from there on, [n, places] float32; and how many there are of them, [n]."""
    assert tensor.histogram is not None
    first, last = tensor.histogram.window
    first = max(first, 1)
    lower = edges()[first:last]
    upper = np.minimum(edges()[first + 1 : last + 1], tensor.amax)  # the last bin ends where values do
    values = lower[:, None] + (upper - lower)[:, None] * _PLACES
    return first, values.astype(np.float32), tensor.histogram.counts[first:last].astype(np.float64)


def errors(values: Array, scale: float, form: Quantized) -> Array:
    """Q(x) - x, float32."""
    found: Array = form.rounded(values / np.float32(scale)) * np.float32(scale) - values
    return found


def fitted(amax: dict[str, float], statistics: Statistics, form: Quantized) -> dict[str, float]:
    """The ranges, each up to an octave above the one that was chosen, where FP8 is closest to what was seen.

    The steps of FP8's numbers double with each octave, and within one they fit the values that matter well or badly;
    a wider range clips no more than the chosen one and costs only the smallest numbers. Whole numbers have nothing to
    gain, and values without a histogram keep their ranges.
    """
    if form.whole:
        return amax
    found = dict(amax)
    for name, chosen in amax.items():
        tensor = statistics.get(name)
        if tensor is None or tensor.histogram is None or not chosen:
            continue
        _, values, counts = magnitudes(tensor)
        values /= np.float32(chosen)  # squares of the largest numbers do not overflow
        off = [(counts * np.square(errors(values, more / form.top, form)).mean(axis=1)).sum() for more in _OCTAVE]
        found[name] = chosen * float(_OCTAVE[int(np.argmin(off))])
    return found
