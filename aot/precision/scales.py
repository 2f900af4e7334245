"""From magnitudes to scales and stored values."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aot.precision.formats import Float, Quantized

Array = NDArray[np.float32]

# Scales that are tried for a format of few values, as shares of the one that clips nothing.
_SHARES = tuple(float(share) for share in np.linspace(1.0, 0.5, 13))
# A format with at most so many values above zero is worth the search: INT4. For INT8 clipping gains next to nothing.
_FEW = 7
# Scales that are tried for a floating-point format, as multiples of the one that clips nothing: the steps of its
# numbers double with each octave, and within one they fit the largest values well or badly. Of 24 values that share a
# scale the best of these takes three tenths of the squared error away, of 400 a tenth; beyond it is not worth the time.
_OCTAVE = tuple(float(2 ** (k / 8)) for k in range(8))
_MANY = 512


@dataclass(frozen=True)
class Grain:
    """Which values of a weight share a scale. axis None: all of them. block None: those of one index of `axis`. Else
    `block` that follow each other along `axis`, which they divide evenly: scales have the rank of the weight."""

    axis: int | None = None
    block: int | None = None

    def over(self, values: NDArray[np.generic], reduce: np.ufunc) -> NDArray[np.generic]:
        """`reduce` over the values that share a scale, in the shape of the scales."""
        if self.axis is None:
            return np.asarray(reduce.reduce(values, axis=None))
        if self.block is None:
            others = tuple(i for i in range(values.ndim) if i != self.axis)
            return np.asarray(reduce.reduce(values, axis=others))
        cut = (*values.shape[: self.axis], -1, self.block, *values.shape[self.axis + 1 :])
        return np.asarray(reduce.reduce(values.reshape(cut), axis=self.axis + 1))

    def spread(self, scales: Array, rank: int) -> Array:
        """The scales, shaped to be broadcast over a weight of that rank."""
        if self.axis is None:
            return scales
        if self.block is None:
            return scales.reshape([-1 if i == self.axis else 1 for i in range(rank)])
        return np.repeat(scales, self.block, axis=self.axis)


def activation_scale(amax: float, form: Quantized, compute: Float) -> float:
    """amax / top, rounded up to the compute dtype and never below its smallest normal value.

    A quantizer may multiply by the reciprocal, and the reciprocal of a subnormal FP16 value overflows.
    """
    return float(_rounded_up(np.asarray(amax / form.top, np.float32), compute, compute.tiny))


def weight_scales(
    weight: Array, grain: Grain, form: Quantized, compute: Float, importance: NDArray[np.floating] | None = None
) -> Array:
    """The scales of a weight: shape [], [n], or the weight's with `axis` cut into blocks.

    Rounded up to the compute dtype, so that no value is clipped; a row of zeros or of values too small for any
    scale gets the smallest one and becomes zeros. For a format of few values each scale is the one, of some below
    that, with the least squared error, which clips the largest values; for a floating-point format, where few values
    share a scale, of some above it. `importance`, which broadcasts over the weight, says how much an error counts.
    """
    amax = grain.over(np.abs(weight), np.maximum).astype(np.float32)
    full = _rounded_up(amax / np.float32(form.top), compute, compute.step)
    tried = _tried(form, weight.size // max(full.size, 1))
    if not tried:
        return full
    counts = None if importance is None else (importance / (importance.max(initial=0.0) or 1)).astype(np.float32)
    best, least = full, np.full(full.shape, np.inf)
    for share in tried:
        scales = _rounded_up(amax * np.float32(share / form.top), compute, compute.step)
        wide = grain.spread(scales, weight.ndim)
        error = np.square(form.rounded(weight / wide) * wide - weight)
        if counts is not None:
            error *= counts
        total = grain.over(error, np.add)
        best = np.where(total < least, scales, best)
        least = np.minimum(total, least)
    return np.asarray(best, np.float32)


def _tried(form: Quantized, values: int) -> tuple[float, ...]:
    """The shares of the scale that clips nothing to try, where so many values share one; none where it is taken."""
    if form.top <= _FEW:
        return _SHARES
    return _OCTAVE if not form.whole and values <= _MANY else ()


def _rounded_up(scale: Array, compute: Float, least: float) -> Array:
    """The next values of the compute dtype that are not below `scale` and not below `least`, as float32."""
    wanted = np.maximum(scale, np.float32(least))
    found = wanted.astype(compute.numpy)
    # Rounding went down: take the next value up. Positive floats are ordered like their bits.
    bits = found.view(np.uint32 if compute.name == "fp32" else np.uint16)
    up = (bits + 1).astype(bits.dtype).view(compute.numpy)
    return np.where(found.astype(np.float32) < wanted, up, found).astype(np.float32)


def stored(weight: Array, scales: Array, grain: Grain, form: Quantized) -> NDArray[np.generic]:
    """weight / scale rounded to the nearest value of the format, in its dtype."""
    quantized: NDArray[np.generic] = form.rounded(weight / grain.spread(scales, weight.ndim)).astype(form.numpy)
    return quantized
