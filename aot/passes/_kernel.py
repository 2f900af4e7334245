"""What the numpy forms of ops share: the table they are in, and the bound on what they may make."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

Array = np.ndarray[Any, Any]
Kernel = Callable[..., "Array | list[Array]"]

LARGEST = 1 << 26
"""Bytes. What is larger is not even computed on the way to something small."""

KERNELS: dict[str, Kernel] = {}
"""Op type -> function `(node, opset, *inputs) -> output or outputs`."""


_NARROW = (np.dtype(np.float16), ir.DataType.BFLOAT16.numpy())


class Unfoldable(Exception):
    """The node has no result that is certain, or too large a one."""


def kernel(*ops: str) -> Callable[[Kernel], Kernel]:
    """Enter a function into the table."""

    def enter(function: Kernel) -> Kernel:
        KERNELS.update(dict.fromkeys(ops, function))
        return function

    return enter


def room(shape: Sequence[int], itemsize: int) -> None:
    """Raise Unfoldable where an array of that shape would be larger than `LARGEST`."""
    if math.prod(shape) * itemsize > LARGEST:
        raise Unfoldable(f"{math.prod(shape) * itemsize:,} bytes are too many to compute beforehand")


def wide(x: Array) -> Array:
    """A narrow float as FP32, in which sums of narrow floats are taken; anything else as it is."""
    return x.astype(np.float32) if x.dtype in _NARROW else x
