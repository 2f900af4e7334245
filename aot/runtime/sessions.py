"""Sessions of onnxruntime's CPU provider, with the same options everywhere.

They execute Q/DQ as written. By default onnxruntime fuses DequantizeLinear-op-QuantizeLinear into integer kernels,
whose intermediate sums saturate at 16 bits on CPUs without VNNI: another arithmetic than that of the engine, which
dequantizes exactly and accumulates wide. So those fusions are off (`session.disable_quant_qdq`). MatMulInteger and
QLinearConv that a file holds itself take unsigned weights instead, whose sums do not saturate
(`session.x64quantprecision`); onnxruntime 1.32 does not do the same for QLinearMatMul.
Off as well is the rule that drops a Relu before QuantizeLinear where the zero point is the end of the range: it takes
an FP8 zero for such an end, and negative values come through (seen in 1.32).
"""

from __future__ import annotations

import ctypes
import os
import re
from typing import Any

from aot import toolchain

NAME = "onnxruntime"
_KINDS = {"bfloat16": 16, "float8_e4m3fn": 17, "float8_e5m2": 19}
"""TensorProto.DataType of what numpy lacks."""
UNSOUND = ("ReluQuantRewrite", "ClipQuantRewrite")
# Official builds send usage data from 1.32 on, unless this says otherwise before they are imported (their Privacy.md).
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")


def version() -> str | None:
    """The installed version, None where it is not installed. Imports nothing."""
    return toolchain.version("onnxruntime") or toolchain.version("onnxruntime-gpu")


def options(*, optimize: bool = True, spin: bool = True) -> Any:
    """Options of every session: exact Q/DQ, threads for the CPUs there are. optimize: False loads faster.

    spin: whether threads wait for work without sleep.
    """
    import onnxruntime as ort

    made = ort.SessionOptions()
    made.log_severity_level = 4  # its errors come as exceptions
    made.intra_op_num_threads = threads()
    made.add_session_config_entry("session.disable_quant_qdq", "1")
    made.add_session_config_entry("session.x64quantprecision", "1")
    made.add_session_config_entry("session.intra_op.allow_spinning", "1" if spin else "0")
    levels = ort.GraphOptimizationLevel
    made.graph_optimization_level = levels.ORT_ENABLE_ALL if optimize else levels.ORT_DISABLE_ALL
    return made


def session(model: str | bytes, options: Any) -> Any:
    """A session on the CPU from a file's path or a model's bytes. Raises one of `errors`."""
    import onnxruntime as ort

    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"], disabled_optimizers=list(UNSOUND))


def value(array: Any, dtype: str) -> Any:
    """An array as onnxruntime takes it; elements of a dtype that numpy lacks by their bits."""
    import onnxruntime as ort

    array = array if array.flags.c_contiguous else array.copy()
    kind = _KINDS.get(dtype)
    if kind is None:
        return ort.OrtValue.ortvalue_from_numpy(array)
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, kind)


def elements(value: Any, dtype: Any) -> Any:
    """A copy of what onnxruntime made, read as elements of a numpy dtype."""
    import numpy as np

    shape = tuple(value.shape())
    made = np.empty(shape, dtype)
    ctypes.memmove(made.ctypes.data, value.data_ptr(), made.nbytes)
    return made


def threads() -> int:
    """The CPUs this process may use; its own guess pins threads to cores that a container may not have."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    available = len(toolchain.cpus())
    return min(int(asked), available) if asked.isdigit() and int(asked) > 0 else available


def errors() -> tuple[type[Exception], ...]:
    """What onnxruntime raises: its own classes, none of them under a common base of its own."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    names = ("Fail", "InvalidArgument", "InvalidGraph", "InvalidProtobuf", "NoSuchFile", "NotImplemented",
             "RuntimeException", "EPFail", "NoModel")  # fmt: skip
    return tuple(getattr(state, name) for name in names if hasattr(state, name))


def said(error: Exception) -> str:
    """Its sentence without code and status, nor the place in its own source."""
    text = re.sub(r"/onnxruntime_src/.* was false\. ", "", " ".join(str(error).split()))
    return re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", text)
