"""Integer arithmetic as float arithmetic: equal where it must be, near where rounding is what went."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

from aot.config import Request
from aot.pipeline import build
from aot.progress import Silent
from aot.store import Store
from tests.onnx_input.models import Array, node_model, ops, prepared, run, same

RNG = np.random.default_rng(2)
UINT8, INT8, INT32 = onnx.TensorProto.UINT8, onnx.TensorProto.INT8, onnx.TensorProto.INT32


def drawn(*shape: int) -> Array:
    return RNG.normal(size=shape).astype(np.float32)


def whole(low: int, high: int, *shape: int, dtype: str = "uint8") -> Array:
    return RNG.integers(low, high, shape).astype(dtype)


DYNAMIC = """
    <ir_version: 8, opset_import: ["" : 13]>
    main (float[5, 8] x) => (float[5, 3] y)
        <uint8[8, 3] w = {WEIGHT}, uint8 z = {130}, float s = {0.02}>
    {
        q, qs, qz = DynamicQuantizeLinear (x)
        total = MatMulInteger (q, w, qz, z)
        wide = Cast <to = 1> (total)
        scale = Mul (qs, s)
        y = Mul (wide, scale)
    }
"""


def test_a_quantizer_of_every_call_is_dropped(tmp_path: Path) -> None:
    """The float product of x and the dequantized weight, by numpy; the file itself is off by its rounding."""
    weight = whole(0, 256, 8, 3)
    model = onnx.parser.parse_model(DYNAMIC.replace("WEIGHT", ", ".join(map(str, weight.ravel()))))
    x = drawn(5, 8)
    after, done = prepared(model, tmp_path, {"x": x.shape})
    got = run(after, {"x": x})["y"]
    want = x @ ((weight.astype(np.float32) - 130) * np.float32(0.02))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(got, run(model, {"x": x})["y"], atol=0.1)
    assert done.requantized
    assert "quantized at every call by their own range (1) stay float" in done.notes[0]
    assert "MatMul" in ops(after)


@pytest.mark.parametrize("zero", [0, 7])
def test_integers_that_stay_integers(tmp_path: Path, zero: int) -> None:
    # 7 bits: without VNNI onnxruntime adds products of uint8 and int8 up in 16 bits, which overflow.
    a, b = whole(0, 256, 4, 6), whole(-63, 64, 6, 3, dtype="int8")
    zeros = {"az": np.array(zero, np.uint8), "bz": np.array(-zero, np.int8)}
    model = node_model("MatMulInteger", {"a": a, "b": b}, opset=10, fixed=zeros, dtypes=[INT32])
    same(model, tmp_path, {"a": a, "b": b}, rtol=0, atol=0)


def test_a_convolution_of_integers(tmp_path: Path) -> None:
    x, w = whole(0, 256, 1, 2, 6, 6), whole(0, 256, 3, 2, 3, 3)
    fixed = {"w": w, "xz": np.array(11, np.uint8), "wz": np.array(100, np.uint8)}
    same(node_model("ConvInteger", {"x": x}, opset=10, fixed=fixed, dtypes=[INT32]), tmp_path, {"x": x}, rtol=0, atol=0)


def test_quantized_convolution_and_product(tmp_path: Path) -> None:
    x = whole(0, 256, 1, 2, 6, 6)
    scale = {"xs": np.float32(0.02), "xz": np.uint8(120)}
    kernel = {
        "w": whole(-63, 64, 3, 2, 3, 3, dtype="int8"),
        "ws": np.abs(drawn(3)) * 0.01,
        "wz": np.zeros(3, np.int8),
    }
    out = {"ys": np.float32(0.05), "yz": np.uint8(100), "b": whole(-90, 90, 3, dtype="int32")}
    fixed = {name: np.asarray(value) for name, value in {**scale, **kernel, **out}.items()}
    model = node_model("QLinearConv", {"x": x}, opset=10, fixed=fixed, dtypes=[UINT8])
    # A sum that falls between two integers may round to either.
    after = same(model, tmp_path, {"x": x}, rtol=0, atol=1)
    assert "QLinearConv" not in ops(after)


STATIC = """
    <ir_version: 8, opset_import: ["" : 13]>
    main (float[4, 6] x) => (float[4, 6] y) <float s = {0.05}, uint8 z = {ZERO}>
    {
        q = QuantizeLinear (x, s, z)
        turned = Reshape (q, shape)
        y = DequantizeLinear (turned, s, z)
    }
"""
STATIC = STATIC.replace("uint8 z = {ZERO}>", "uint8 z = {ZERO}, int64[2] shape = {4, 6}>")


def test_a_zero_point_becomes_a_clip_that_keeps_the_relu_inside(tmp_path: Path) -> None:
    """Zero point 0 of uint8 is a Relu; 255 * 0.05 = 12.75 is the other end."""
    x = drawn(4, 6) * 8
    after, done = prepared(onnx.parser.parse_model(STATIC.replace("ZERO", "0")), tmp_path, {"x": x.shape})
    np.testing.assert_allclose(run(after, {"x": x})["y"], np.clip(x, 0, 12.75), rtol=1e-5, atol=1e-6)
    assert not {"QuantizeLinear", "DequantizeLinear"} & set(ops(after))
    assert done.requantized


def test_a_zero_point_in_the_middle_is_int8_exactly(tmp_path: Path) -> None:
    x = drawn(4, 6) * 8
    model = onnx.parser.parse_model(STATIC.replace("ZERO", "128"))
    after, done = prepared(model, tmp_path, {"x": x.shape})
    np.testing.assert_array_equal(run(after, {"x": x})["y"], run(model, {"x": x})["y"])
    zeros = [onnx.numpy_helper.to_array(t) for t in after.graph.initializer if t.data_type == INT8]
    assert {"QuantizeLinear", "DequantizeLinear"} <= set(ops(after))
    assert not any(zero.any() for zero in zeros)
    assert not done.requantized


def test_what_tensorrt_takes_stays_as_it_is(tmp_path: Path) -> None:
    text = STATIC.replace("uint8 z = {ZERO}", "int8 z = {0}")
    after, done = prepared(onnx.parser.parse_model(text), tmp_path, {"x": (4, 6)})
    assert [op for op in ops(after) if op.endswith("Linear")] == ["QuantizeLinear", "DequantizeLinear"]
    assert not done.notes


def test_weights_with_zero_points_are_floats(tmp_path: Path) -> None:
    """A scale and a zero point a column, and a Cast with arithmetic in the place of DequantizeLinear."""
    columns, x = whole(0, 256, 6, 3), drawn(4, 6)
    weights = {"q": columns, "s": np.abs(drawn(3)), "z": whole(0, 256, 3)}
    nodes = [
        onnx.helper.make_node("DequantizeLinear", ["q", "s", "z"], ["w"], axis=1),
        onnx.helper.make_node("MatMul", ["x", "w"], ["a"]),
        onnx.helper.make_node("Cast", ["q"], ["c"], to=1),
        onnx.helper.make_node("Mul", ["c", "s"], ["v"]),
        onnx.helper.make_node("MatMul", ["x", "v"], ["b"]),
    ]
    model = node_model("Relu", {"x": x}, opset=13, fixed=weights, names=("x",), outputs=("a",))
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    model.graph.output.append(onnx.helper.make_tensor_value_info("b", 1, None))
    assert ops(same(model, tmp_path, {"x": x}, rtol=1e-4, atol=1e-3)) == ["MatMul", "MatMul"]


def test_a_quantizer_at_the_end_is_written_out(tmp_path: Path) -> None:
    x = drawn(3, 5)
    fixed = {"s": np.array([0.1, 0.2, 0.05, 0.3, 0.02], np.float32), "z": whole(0, 256, 5)}
    same(node_model("QuantizeLinear", {"x": x}, opset=13, fixed=fixed, dtypes=[UINT8]), tmp_path, {"x": x}, atol=0)
    q = whole(0, 256, 3, 5)
    same(node_model("DequantizeLinear", {"q": q}, opset=13, fixed=fixed), tmp_path, {"q": q})


def test_a_dynamic_quantizer_whose_integers_leave_the_graph(tmp_path: Path) -> None:
    outputs, kinds = ("q", "s", "z"), (UINT8, onnx.TensorProto.FLOAT, UINT8)
    model = node_model("DynamicQuantizeLinear", {"x": drawn(3, 5)}, opset=11, outputs=outputs, dtypes=kinds)
    assert "DynamicQuantizeLinear" not in ops(same(model, tmp_path, {"x": drawn(3, 5)}, atol=1))


def test_a_build_says_that_it_compares_with_a_rounded_model(tmp_path: Path) -> None:
    """The file rounds x to 8 bits, the graph does not; FP32's own limits would refuse that."""
    weight = whole(0, 256, 8, 3)
    path = tmp_path / "net.onnx"
    onnx.save(onnx.parser.parse_model(DYNAMIC.replace("WEIGHT", ", ".join(map(str, weight.ravel())))), path)
    request = Request(model=str(path), precision="fp32", until="graph", output=tmp_path / "net.aot")
    progress = Silent()
    result = build(request, Store(tmp_path / "store"), progress)
    checked = result.summary["verification"]["graph"]
    assert result.accepted
    assert 0.95 < checked["cosine"] < 0.999999
    assert any("cosine 0.95 is asked for" in warning for warning in progress.warnings)
