"""From magnitudes to scales and stored values."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from aot.precision.formats import Float, Quantized

Array = NDArray[np.float32]


def activation_scale(amax: float, form: Quantized, compute: Float) -> float:
    """amax / top, rounded up to the compute dtype and never below its smallest normal value.

    A quantizer may multiply by the reciprocal, and the reciprocal of a subnormal FP16 value overflows.
    """
    return float(_rounded_up(np.asarray(amax / form.top, np.float32), compute, compute.tiny))


def weight_scales(weight: Array, axis: int | None, form: Quantized, compute: Float) -> Array:
    """One scale for the whole weight (shape []), or one for each index of `axis` (shape [n]).

    Rounded up to the compute dtype, so that no value is clipped; a row of zeros or of values too small for any
    scale gets the smallest one and becomes zeros.
    """
    magnitude = np.abs(weight)
    if axis is None:
        amax = np.asarray(magnitude.max(initial=0.0))
    else:
        amax = magnitude.max(axis=tuple(i for i in range(weight.ndim) if i != axis), initial=0.0)
    return _rounded_up((amax / form.top).astype(np.float32), compute, compute.step)


def _rounded_up(scale: Array, compute: Float, least: float) -> Array:
    """The next values of the compute dtype that are not below `scale` and not below `least`, as float32."""
    wanted = np.maximum(scale, np.float32(least))
    found = wanted.astype(compute.numpy)
    # Rounding went down: take the next value up. Positive floats are ordered like their bits.
    bits = found.view(np.uint32 if compute.name == "fp32" else np.uint16)
    up = (bits + 1).astype(bits.dtype).view(compute.numpy)
    return np.where(found.astype(np.float32) < wanted, up, found).astype(np.float32)


def stored(weight: Array, scales: Array, axis: int | None, form: Quantized) -> NDArray[np.generic]:
    """round(weight / scale), clipped to [-top, top] before the cast: beyond 448 a cast to E4M3FN gives NaN."""
    if axis is not None:
        scales = scales.reshape([-1 if i == axis else 1 for i in range(weight.ndim)])
    values = np.clip(weight / scales, -form.top, form.top)
    if form.numpy.kind == "i":
        values = np.rint(values)
    quantized: NDArray[np.generic] = values.astype(form.numpy)
    return quantized
