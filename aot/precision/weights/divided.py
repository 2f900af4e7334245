"""What would have been seen of a tensor, had its channels been divided by factors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from aot.channels import BINS as BINS_OF_CHANNELS
from aot.channels import SHIFT, Channels
from aot.histogram import BINS, Histogram, bins_of, edges
from aot.statistics import Tensor

Array = np.ndarray[Any, Any]

# Bits of the whole numbers that sums are kept in.
_BITS = 52


def divided(tensor: Tensor, factor: Array, gain: Array | None = None) -> Tensor:
    """The tensor's statistics with channel c divided by `factor[c]` > 0. gain: [C], what the channels weigh.

    Largest magnitudes, means and products are exact. The histograms are made of those of the channels, whose values
    count as spread evenly over their bins; which sign the largest value has is known for the tensor alone.

    A tensor without channels gets the extremes that it cannot exceed, and no histogram.
    """
    channels = tensor.channels
    if channels is None or len(factor) != len(channels.amax):
        least = float(factor.min())
        return Tensor(tensor.low / least, tensor.high / least, tensor.count)
    scaled = _divided(channels, factor)
    amax = float(scaled.amax.max(initial=0.0))
    return replace(
        tensor,
        low=-amax if tensor.low < 0 else 0.0,
        high=amax if tensor.high > 0 else 0.0,
        histogram=None if tensor.histogram is None else _histogram(channels, factor, np.ones(len(factor))),
        weighted=None if tensor.weighted is None or gain is None else _histogram(channels, factor, gain),
        channels=scaled,
    )


def _divided(channels: Channels, factor: Array) -> Channels:
    rows, bins = np.nonzero(channels.coarse)
    old = bins + channels.first
    moved = np.rint(np.log2(factor) * (1 << (7 - SHIFT))).astype(np.int64)
    # Bin 0 holds zeros, which stay; what is not zero stays above it.
    new = np.where(old == 0, 0, np.clip(old - moved[rows], 1, BINS_OF_CHANNELS - 1))
    first = int(new.min(initial=BINS_OF_CHANNELS))
    coarse = np.zeros((len(factor), int(new.max(initial=first - 1)) - first + 1), np.int64)
    np.add.at(coarse, (rows, new - first), channels.coarse[rows, bins])
    products = channels.products
    return Channels(
        channels.axis,
        channels.amax / factor,
        channels.rows,
        first,
        coarse,
        _whole(channels.mean * max(channels.rows, 1) / factor),
        None if products is None else _whole(products / np.outer(factor, factor)),
    )


def _whole(total: Array) -> dict[int, Array]:
    """As whole numbers times a power of two, to 52 bits of the largest."""
    power = int(np.frexp(np.abs(total).max(initial=0.0))[1]) - _BITS
    return {power: np.rint(np.ldexp(total, -power)).astype(np.int64)}


def _histogram(channels: Channels, factor: Array, gain: Array) -> Histogram:
    """One histogram of all channels, divided; a coarse bin's values are spread over the fine ones that it holds."""
    found = np.zeros(BINS)
    fine = edges()
    rows, bins = np.nonzero(channels.coarse)
    counts = channels.coarse[rows, bins] * gain[rows]
    start = (bins + channels.first) << SHIFT
    parts = 1 << SHIFT
    for step in range(parts):
        value = fine[np.minimum(start + step, len(fine) - 1)] / factor[rows]
        found += np.bincount(bins_of(value.astype(np.float32)).astype(np.int64), counts / parts, BINS)[:BINS]
    # Whole numbers with the same total below every edge.
    return Histogram(np.diff(np.rint(np.cumsum(found)), prepend=0.0).astype(np.int64))
