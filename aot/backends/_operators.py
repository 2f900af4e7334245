"""What TensorRT's ONNX parser takes, as data, for machines that cannot ask it, and what it takes too lightly.

`TYPES` is drawn from the support matrix of onnx-tensorrt 10.1 (opsets 9 to 20), newer ops from what later versions
take. `_rules.py` holds what the matrix states as restrictions, and what passes the parser and then fails in the
builder. The parser itself, where it can be asked, overrules this table: see `_nvinfer.Nvinfer.unsupported`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aot import origins
from aot.backend import Unsupported
from aot.backends import _rules
from aot.backends._graph import ONNX_DOMAINS, name_of

if TYPE_CHECKING:
    import onnx_ir as ir

_FLOATS = frozenset({"FLOAT", "FLOAT16", "BFLOAT16"})
_NUMBERS = _FLOATS | {"INT8", "INT32", "INT64"}
_ALL = _NUMBERS | {"BOOL"}

_LISTS: tuple[tuple[frozenset[str], str], ...] = (
    (
        _FLOATS,
        "Acos Acosh Asin Asinh Atan Atanh Attention AveragePool BatchNormalization Ceil Celu Conv ConvTranspose Cos "
        "Cosh Dropout Einsum Elu Erf Exp Floor Gelu Gemm GlobalAveragePool GlobalLpPool GlobalMaxPool GridSample "
        "GroupNormalization GRU HardSigmoid HardSwish Hardmax InstanceNormalization IsInf LayerNormalization LeakyRelu "
        "Log LogSoftmax LpNormalization LpPool LRN LSTM MatMul MaxPool MeanVarianceNormalization Mish "
        "NonMaxSuppression PRelu Reciprocal Resize RMSNormalization RNN RoiAlign Round Selu Shrink Sigmoid Sin "
        "Sinh Softmax Softplus Softsign Sqrt Swish Tan Tanh ThresholdedRelu Upsample DeformConv RotaryEmbedding "
        "RandomNormal RandomNormalLike RandomUniform RandomUniformLike STFT",
    ),
    (
        _NUMBERS,
        "Abs Add ArgMax ArgMin Clip CumSum DepthToSpace Div Equal Greater GreaterOrEqual IsNaN Less LessOrEqual Max "
        "Mean Min Mod Mul Neg Pad Range ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean "
        "ReduceMin ReduceProd ReduceSum ReduceSumSquare Relu Scatter ScatterElements ScatterND Sign SpaceToDepth Sub "
        "Sum TopK TensorScatter Pow BlackmanWindow HammingWindow HannWindow",
    ),
    (
        _ALL,
        "Concat Constant ConstantOfShape Expand EyeLike Flatten Gather GatherElements GatherND Identity If Loop "
        "NonZero OneHot Reshape ReverseSequence Scan Shape Size Slice Split Squeeze Tile Transpose Trilu "
        "Unsqueeze Where",
    ),
    (frozenset({"BOOL"}), "And Not Or Xor"),
    (_ALL | {"UINT8", "FLOAT8E4M3FN", "INT8", "INT4", "DOUBLE"}, "Cast CastLike QuantizeLinear DequantizeLinear"),
)
TYPES: dict[str, frozenset[str]] = {op: types for types, ops in _LISTS for op in ops.split()}
"""Op type -> the dtypes its data may have."""

NEWER = frozenset(
    {"Attention", "RMSNormalization", "RotaryEmbedding", "TensorScatter", "Swish", "STFT"}
    | {"BlackmanWindow", "HammingWindow", "HannWindow"}
)
"""Ops that the matrix does not hold and later versions take."""

PLUGINS = frozenset({"RoiAlign", "DeformConv", "NonZero"})
"""Ops that TensorRT implements with plugins of its own, which TensorRT-RTX comes without."""

_KNOWN = _ALL | {"DOUBLE", "UINT8", "INT8", "INT4", "FLOAT8E4M3FN", "FLOAT4E2M1"}
_VENDOR = ("TRT",)

_PLUGIN = "TensorRT has a plugin for it, which TensorRT-RTX comes without"
_WHOLE = "the message is all that its parser says; --backend onnxruntime may say more"
_FIXES = {
    "NonZero": "compute with a mask and torch.where instead of indices, or build with --backend tensorrt",
    "Compress": "compute with a mask and torch.where instead of a selection",
    "Unique": "do it before or after the engine",
    "DynamicQuantizeLinear": "build from the float model with --precision int8",
    "ConvInteger": "build from the float model with --precision int8",
    "MatMulInteger": "build from the float model with --precision int8",
    "QLinearConv": "build from the float model with --precision int8",
    "QLinearMatMul": "build from the float model with --precision int8",
    "RoiAlign": "build with --backend tensorrt, which has a plugin for it",
    "DeformConv": "build with --backend tensorrt, which has a plugin for it",
    "Det": "write it with other ops, or give it as a plugin: plugins/Det.py",
}


def unsupported(model: ir.Model, backend: str, *, parsed: bool) -> list[Unsupported]:
    """What the table refuses of the model; parsed: only what the vendor's parser lets pass and its builder refuses."""
    functions = {(domain, name) for domain, name, _ in model.functions}
    found = []
    for node in model.graph.all_nodes():
        reason = _rules.late(node, backend)
        if reason is None and not parsed and (node.domain, node.op_type) not in functions:
            reason = _refused(node, backend)
        if reason is not None:
            found.append(made(node, reason))
    return found


def told(node: ir.Node | None, op: str, reason: str) -> Unsupported:
    """What a parser said of a node; None: of the graph as a whole."""
    return made(node, reason) if node is not None else Unsupported("", op, None, reason, _WHOLE)


def made(node: ir.Node, reason: str) -> Unsupported:
    """The node, why it cannot be built (empty: its parser gave no reason), and what would help."""
    op = node.op_type
    if op in PLUGINS and "plugin" in reason.lower():
        reason = _PLUGIN
    reason = reason or ("it is none of its ops" if op not in TYPES else "its parser gives no reason")
    return Unsupported(name_of(node), op, origins.of(node), reason, _FIXES.get(op, _fix(node)))


def _refused(node: ir.Node, backend: str) -> str | None:
    """Why the matrix excludes the node; None where it does not."""
    op = node.op_type
    if node.domain not in ONNX_DOMAINS:
        return None if node.domain in _VENDOR else f"nothing implements {node.domain}::{op}"
    if op not in TYPES:
        return "it is none of its ops"
    if backend == "tensorrt_rtx" and op in PLUGINS:
        return _PLUGIN
    for value in (*node.inputs, *node.outputs):
        if value is not None and value.dtype is not None and value.dtype.name not in _KNOWN:
            return f"'{value.name}' is of type {value.dtype.name}, which it lacks"
    data = node.inputs[0] if node.inputs else None
    if data is not None and data.dtype is not None and data.dtype.name not in TYPES[op] | {"DOUBLE"}:
        return f"it does not take {data.dtype.name}"
    return _rules.stated(node)


def _fix(node: ir.Node) -> str:
    inside = "write that line with other ops"
    return f"{inside}, or give the op as a plugin: plugins/{node.op_type}.py"
