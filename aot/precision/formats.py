"""The number formats: what a quantized tensor can hold, and where a compute dtype loses values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import ml_dtypes
import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

Compute = Literal["fp32", "fp16", "bf16"]


@dataclass(frozen=True)
class Quantized:
    """A quantized format, symmetric: real value = stored value x scale, zero point 0.

    top: the largest value that is used, low: the smallest. E4M3FN has no infinity; what a cast finds above 448 becomes
    NaN, so values are clipped first. INT8 leaves -128 out, which has no counterpart; INT4 has too few values for that.
    opset: the first whose QuantizeLinear takes the format, with scales in FP16 and BF16. activations:
    whether kernels take activations in it.
    """

    name: str
    onnx: ir.DataType
    numpy: np.dtype[np.generic]
    top: float
    low: float
    opset: int
    activations: bool = True

    @property
    def whole(self) -> bool:
        """Whether values are whole numbers."""
        return self.onnx.is_integer()

    def rounded(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """The nearest values of the format, ties to even; what is beyond its ends becomes its ends."""
        clipped = np.clip(values, np.float32(self.low), np.float32(self.top))
        return np.rint(clipped) if self.whole else clipped.astype(self.numpy).astype(np.float32)


INT8 = Quantized("int8", ir.DataType.INT8, np.dtype(np.int8), 127.0, -127.0, 19)
FP8 = Quantized("fp8", ir.DataType.FLOAT8E4M3FN, np.dtype(ml_dtypes.float8_e4m3fn), 448.0, -448.0, 19)
INT4 = Quantized("int4", ir.DataType.INT4, np.dtype(ml_dtypes.int4), 7.0, -8.0, 21, activations=False)
QUANTIZED = {form.name: form for form in (INT8, FP8, INT4)}


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
