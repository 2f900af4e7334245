"""Sizes at which tensors are large: to time a kernel at, and to see offsets that do not fit into 32 bits."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from aot.plugins import cases
from aot.plugins.header import REST
from aot.plugins.loading import Plugin

HUGE = 1 << 31
"""One more element than an int32 counts."""
_AXIS = 65535
"""The most programs on the second and third axis of a grid (CUDA C++ Programming Guide, compute capabilities), so the
most of any one size as long as another can grow too. Leading axes are many by nature."""


def grown(
    plugin: Plugin, symbols: Iterable[str], elements: int, given: Mapping[str, Any] | None = None
) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """(sizes, attributes) with which an input or output has more than `elements`; None where SIZES allows none.

    symbols: those that may grow, the ones named first as far as they can; the rest stays as it is in `given`, or as
    small as it is checked.
    """
    base, attributes = cases.base(plugin)
    base.update(given or {})
    names = list(symbols)
    for most in (_AXIS, None):
        sizes = dict(base)
        for name in names:
            sizes[name] = _least(plugin, sizes, attributes, name, elements, None if name == REST else most)
            if _largest(plugin, sizes, attributes) > elements:
                return sizes, attributes
    return None


def usual(plugin: Plugin) -> dict[str, Any]:
    """Sizes that a layer may have, where `cases.base` has those that are odd and small: what may be large is 256."""
    base, _ = cases.base(plugin)
    if plugin.cases:
        return base
    wide = [name for name in base if name != REST and (plugin.bound(name).greatest or _AXIS) >= 1024]
    return base | {name: plugin.bound(name).near(256) for name in wide}


def _least(
    plugin: Plugin,
    sizes: Mapping[str, Any],
    attributes: Mapping[str, Any],
    name: str,
    elements: int,
    most: int | None,
) -> Any:
    """The least size of that name with which a tensor has more elements, or the greatest that it may be."""
    bound = plugin.bound(name)
    now = math.prod(sizes[name]) if name == REST else sizes[name]
    limit = min(one for one in (bound.greatest, most, elements + 1) if one is not None)

    def is_enough(size: int) -> bool:
        size = bound.near(size)
        return _largest(plugin, {**sizes, name: (size,) if name == REST else size}, attributes) > elements

    low, high = now, max(limit, now)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle + 1, high)
    found = now if low == now else bound.near(low)
    return (found,) if name == REST else found


def _largest(plugin: Plugin, sizes: Mapping[str, Any], attributes: Mapping[str, Any]) -> int:
    """Elements of the largest input or output."""
    shapes = cases.shapes(plugin, sizes)
    return max(int(math.prod(shape)) for shape in (*shapes.values(), *plugin.outputs(shapes, attributes)))
