"""The number formats: what a quantized tensor can hold, and where a compute dtype loses values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import ml_dtypes
import numpy as np
import onnx_ir as ir

Compute = Literal["fp32", "fp16", "bf16"]


@dataclass(frozen=True)
class Quantized:
    """A quantized format, symmetric: real value = stored value x scale, zero point 0.

    top: the largest magnitude that is used. E4M3FN has no infinity; what a cast finds above 448 becomes NaN,
    so values are clipped first.
    """

    name: str
    onnx: ir.DataType
    numpy: np.dtype[np.generic]
    top: float


INT8 = Quantized("int8", ir.DataType.INT8, np.dtype(np.int8), 127.0)
FP8 = Quantized("fp8", ir.DataType.FLOAT8E4M3FN, np.dtype(ml_dtypes.float8_e4m3fn), 448.0)
QUANTIZED = {form.name: form for form in (INT8, FP8)}


@dataclass(frozen=True)
class Float:
    """A compute dtype.

    top: the largest finite value. tiny: the smallest normal value. step: the smallest value above zero.
    exact: up to this magnitude every integer is exact.
    """

    name: str
    onnx: ir.DataType
    numpy: np.dtype[np.generic]
    top: float
    tiny: float
    step: float
    exact: int


FLOATS: dict[str, Float] = {
    "fp32": Float("fp32", ir.DataType.FLOAT, np.dtype(np.float32), 3.4028235e38, 2.0**-126, 2.0**-149, 2**24),
    "fp16": Float("fp16", ir.DataType.FLOAT16, np.dtype(np.float16), 65504.0, 2.0**-14, 2.0**-24, 2**11),
    "bf16": Float("bf16", ir.DataType.BFLOAT16, np.dtype(ml_dtypes.bfloat16), 3.3895314e38, 2.0**-126, 2.0**-133, 2**8),
}
