"""Ops of onnxruntime's own domain, written out, give what onnxruntime's kernels give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.onnx_input.models import Array, node_model, ops, same

RNG = np.random.default_rng(1)
DOMAIN = "com.microsoft"


def drawn(*shape: int) -> Array:
    return RNG.normal(size=shape).astype(np.float32)


def whole(low: int, high: int, *shape: int, dtype: str = "uint8") -> Array:
    return RNG.integers(low, high, shape).astype(dtype)


def number(value: float, dtype: str = "float32") -> Array:
    return np.array(value, dtype)


X = drawn(2, 5, 8)
IDS = whole(0, 7, 2, 5, dtype="int32")

# op, inputs, weights, attributes
FORMS: dict[str, tuple[str, dict[str, Array], dict[str, Array], dict[str, Any]]] = {
    "fused conv": (
        "FusedConv",
        {"x": drawn(1, 2, 5, 5)},
        {"w": drawn(3, 2, 3, 3), "b": drawn(3)},
        {"activation": "LeakyRelu", "activation_params": [0.2], "pads": [1, 1, 1, 1]},
    ),
    "fused mat-mul": ("FusedMatMul", {"x": X}, {"w": drawn(2, 3, 8)}, {"transB": 1, "alpha": 0.5}),
    "fused gemm": ("FusedGemm", {"x": drawn(4, 8)}, {"w": drawn(8, 3), "b": drawn(3)}, {"activation": "Relu"}),
    "gelu": ("Gelu", {"x": X}, {}, {}),
    "bias gelu": ("BiasGelu", {"x": X}, {"b": drawn(8)}, {}),
    "fast gelu": ("FastGelu", {"x": X}, {"b": drawn(8)}, {}),
    "quick gelu": ("QuickGelu", {"x": X}, {}, {"alpha": 1.5}),
    "skip layer normalization": (
        "SkipLayerNormalization",
        {"x": X, "s": drawn(2, 5, 8)},
        {"g": drawn(8), "b": drawn(8), "bias": drawn(8)},
        {"epsilon": 1e-5},
    ),
    "skip simplified layer normalization": (
        "SkipSimplifiedLayerNormalization",
        {"x": X, "s": drawn(2, 5, 8)},
        {"g": drawn(8)},
        {"epsilon": 1e-5},
    ),
    "attention with lengths and a mask of the future": (
        "Attention",
        {"x": X},
        {"w": drawn(8, 24), "b": drawn(24), "m": np.array([3, 5], np.int32)},
        {"num_heads": 2, "unidirectional": 1},
    ),
    "attention with a mask": (
        "Attention",
        {"x": X, "m": np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32)},
        {"w": drawn(8, 24), "b": drawn(24)},
        {"num_heads": 4, "names": ("x", "w", "b", "m")},
    ),
    "multi-head attention": (
        "MultiHeadAttention",
        {"q": X, "k": drawn(2, 7, 8), "v": drawn(2, 7, 8)},
        {"b": drawn(24)},
        {"num_heads": 2},
    ),
    "weights of 4 bits": (
        "MatMulNBits",
        {"x": drawn(3, 40)},
        {"w": whole(0, 256, 6, 3, 8), "s": np.abs(drawn(18)), "z": whole(0, 256, 12)},
        {"K": 40, "N": 6, "bits": 4, "block_size": 16},
    ),
    "quantized sum": (
        "QLinearAdd",
        {"x": whole(0, 256, 2, 4), "v": whole(0, 256, 2, 4)},
        {"xs": number(0.1), "xz": number(120, "uint8"), "ys": number(0.2), "yz": number(3, "uint8"),
         "s": number(0.3), "z": number(90, "uint8")},
        {"names": ("x", "xs", "xz", "v", "ys", "yz", "s", "z")},
    ),
    "quantized sigmoid": (
        "QLinearSigmoid",
        {"x": whole(0, 256, 2, 4)},
        {"xs": number(0.05), "xz": number(128, "uint8"), "s": number(1 / 256), "z": number(0, "uint8")},
        {},
    ),
    "quantized gemm": (
        "QGemm",
        {"x": whole(0, 256, 3, 4)},
        {"xs": number(0.02), "xz": number(110, "uint8"), "w": whole(0, 256, 5, 4), "ws": number(0.03),
         "wz": number(127, "uint8"), "c": whole(-500, 500, 5, dtype="int32"), "s": number(0.05),
         "z": number(100, "uint8")},
        {"transB": 1},
    ),
}  # fmt: skip
INTEGER = {"quantized sum", "quantized sigmoid", "quantized gemm"}


@pytest.mark.parametrize("form", FORMS)
def test_written_out_it_gives_the_same(form: str, tmp_path: Path) -> None:
    op, inputs, fixed, attributes = FORMS[form]
    kind = onnx.TensorProto.UINT8 if form in INTEGER else onnx.TensorProto.FLOAT
    model = node_model(op, inputs, opset=17, fixed=fixed, domain=DOMAIN, dtypes=[kind], **attributes)
    # A sum that falls between two integers may round to either.
    after = same(model, tmp_path, inputs, rtol=1e-4, atol=1 if form in INTEGER else 2e-5)
    assert not any(node.domain for node in after.graph.node)


def test_embeddings(tmp_path: Path) -> None:
    segments, mask = whole(0, 2, 2, 5, dtype="int32"), np.array([[1, 1, 1, 0, 0], [1] * 5], np.int32)
    inputs = {"i": IDS, "t": segments, "m": mask}
    weights = {"w": drawn(7, 8), "p": drawn(6, 8), "s": drawn(2, 8), "g": drawn(8), "b": drawn(8)}
    model = node_model(
        "EmbedLayerNormalization", inputs, opset=17, fixed=weights, domain=DOMAIN, outputs=("y", "n"),
        dtypes=(1, onnx.TensorProto.INT32), names=("i", "t", "w", "p", "s", "g", "b", "m"),
    )  # fmt: skip
    same(model, tmp_path, inputs, rtol=1e-4, atol=1e-5)


def test_a_product_quantized_at_every_call_is_a_float_product(tmp_path: Path) -> None:
    weight = whole(0, 256, 8, 4)
    model = node_model(
        "DynamicQuantizeMatMul", {"x": drawn(6, 8)}, opset=17, domain=DOMAIN,
        fixed={"w": weight, "s": number(0.02), "z": number(130, "uint8"), "b": drawn(4)},
    )  # fmt: skip
    after = same(model, tmp_path, {"x": drawn(6, 8)}, rtol=0.05, atol=0.1)
    assert set(ops(after)) <= {"MatMul", "Add", "Gemm"}


def test_a_variant_that_is_not_written_out_stays(tmp_path: Path) -> None:
    """Keys and values that are cached: the node is left to whatever backend has it."""
    fixed = {"w": drawn(8, 24), "b": drawn(24)}
    inputs = {"x": X, "past": drawn(2, 2, 2, 3, 4)}
    model = node_model(
        "Attention", inputs, opset=17, fixed=fixed, domain=DOMAIN, num_heads=2, outputs=("y", "present"),
        dtypes=(1, 1), names=("x", "w", "b", "", "past"),
    )  # fmt: skip
    for output, shape in zip(model.graph.output, ([2, 5, 8], [2, 2, 2, 8, 4]), strict=True):
        output.CopyFrom(onnx.helper.make_tensor_value_info(output.name, 1, shape))
    assert ops(same(model, tmp_path, inputs, rtol=1e-4)) == ["Attention"]
