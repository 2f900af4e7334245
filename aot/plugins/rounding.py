# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""What QuantizeLinear does behind its division, in a kernel.

Imports triton; only files of plugins import it.
"""

import triton
import triton.language as tl


@triton.jit
def to_int8(value):
    """FP32 rounded half to even, within -128 to 127."""
    # FP32 holds no fractions from 2^23 on: there and back rounds half to even.
    return (tl.minimum(tl.maximum(value, -128.0), 127.0) + 12582912.0 - 12582912.0).to(tl.int8)


@triton.jit
def to_fp8(value):
    """FP32 as E4M3, within -448 to 448."""
    return tl.minimum(tl.maximum(value, -448.0), 448.0).to(tl.float8e4nv)
