"""Mean and second moments of what a layer multiplies its weights with, from those of the channels of its input.

A matrix product multiplies channels, so there they are what was seen. A convolution multiplies a window of them, of
which the channels were seen alone; values of different places in the window count as sharing the channels' means and
nothing else:

    E[x_ck x_dl] = E[x_c x_d] for the same place, k = l, and E[x_c] E[x_d] for different ones.

That is exact for windows of one place and leaves out how much neighbours resemble each other. Zeros of the padding
count like any other place.
"""

from __future__ import annotations

import numpy as np

from aot.channels import Channels
from aot.precision.layers import Layer
from aot.precision.weights.absorb import Array
from aot.precision.weights.layers import window


def spread(each: Array, layer: Layer, shape: tuple[int, ...]) -> Array:
    """[groups, inputs x window], one number a channel of the input as one a weight of shape `shape`."""
    return np.repeat(each.reshape(layer.groups, -1), window(layer, shape), axis=1)


def mean_squares(channels: Channels) -> Array:
    """[C], E[x^2] of every channel, from the coarse histograms: to about 5 %."""
    middle = np.sqrt(channels.edges[:-1] * channels.edges[1:])
    found: Array = (channels.counts * middle**2).sum(axis=1) / max(channels.rows, 1)
    return found


def squares(channels: Channels, layer: Layer, shape: tuple[int, ...]) -> Array:
    """[groups, inputs x window], the mean square of what each weight is multiplied with."""
    return spread(mean_squares(channels), layer, shape)


def second(channels: Channels, layer: Layer, shape: tuple[int, ...]) -> Array | None:
    """[groups, n, n] with n = inputs x window, E[x x^T]; None where products of channels were not collected.

    Not about the mean, though a bias takes the mean error back: the means of other data differ.
    """
    products = channels.products
    if products is None:
        return None
    mean = channels.mean.reshape(layer.groups, -1)
    size = mean.shape[1]
    blocks = (products / max(channels.rows, 1)).reshape(layer.groups, size, layer.groups, size)
    about = np.stack([blocks[g, :, g] - np.outer(mean[g], mean[g]) for g in range(layer.groups)])
    places = window(layer, shape)
    found = about if places == 1 else np.stack([np.kron(one, np.eye(places)) for one in about])
    full = np.repeat(mean, places, axis=1)
    return found + full[:, :, None] * full[:, None, :]
