"""Every op whose meaning was rewritten between opset 7 and 20 gives what it gave."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from aot.errors import GraphError
from tests.onnx_input.models import node_model, prepared, run, same

RNG = np.random.default_rng(0)


def drawn(*shape: int) -> np.ndarray[Any, Any]:
    return RNG.normal(size=shape).astype(np.float32)


def stats(*shape: int) -> dict[str, np.ndarray[Any, Any]]:
    return {name: np.abs(drawn(*shape)) + 0.5 for name in ("scale", "bias", "mean", "var")}


X = drawn(2, 3, 4, 6)
INT = onnx.TensorProto.INT64

# op, opset, what else the node takes
FORMS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "batch normalization 7": ("BatchNormalization", 7, {"fixed": stats(3)}),
    "batch normalization 9": ("BatchNormalization", 9, {"fixed": stats(3), "epsilon": 1e-2}),
    "dropout 7": ("Dropout", 7, {"ratio": 0.5}),
    "dropout 10": ("Dropout", 10, {}),
    "clip 7": ("Clip", 7, {"min": -0.5, "max": 0.25}),
    "clip 10 from below": ("Clip", 10, {"min": -0.5}),
    "clip 10 from above": ("Clip", 10, {"max": 0.25}),
    "clip 9 unbounded": ("Clip", 9, {}),
    "pad 7": ("Pad", 7, {"pads": [0, 0, 1, 2, 0, 0, 0, 3]}),
    "pad 10 with a value": ("Pad", 10, {"pads": [0, 0, 1, 2, 0, 0, 0, 3], "value": 1.5}),
    "pad 10 reflected": ("Pad", 10, {"pads": [0, 0, 1, 2, 0, 0, 1, 3], "mode": "reflect"}),
    "slice 7": ("Slice", 7, {"starts": [1, -3], "ends": [2, 100], "axes": [1, 3]}),
    "slice 9 without axes": ("Slice", 9, {"starts": [0, 1], "ends": [1, 3]}),
    "top-k 7": ("TopK", 7, {"k": 2, "axis": 3, "outputs": ("v", "i"), "dtypes": (1, INT)}),
    "top-k 10": ("TopK", 10, {"fixed": {"k": np.array([2])}, "outputs": ("v", "i"), "dtypes": (1, INT)}),
    "upsample 7 nearest": ("Upsample", 7, {"scales": [1.0, 1.0, 2.0, 3.0]}),
    "upsample 7 linear": ("Upsample", 7, {"scales": [1.0, 1.0, 2.0, 1.5], "mode": "linear"}),
    "upsample 9": ("Upsample", 9, {"fixed": {"s": np.array([1, 1, 2, 2], np.float32)}}),
    "resize 10 nearest": ("Resize", 10, {"fixed": {"s": np.array([1, 1, 2, 1.5], np.float32)}}),
    "resize 10 smaller": ("Resize", 10, {"fixed": {"s": np.array([1, 1, 0.5, 0.5], np.float32)}}),
    "resize 10 linear": ("Resize", 10, {"fixed": {"s": np.array([1, 1, 2, 0.5], np.float32)}, "mode": "linear"}),
    "softmax 7": ("Softmax", 7, {}),
    "softmax 11 in the middle": ("Softmax", 11, {"axis": 2}),
    "softmax 12 at the last": ("Softmax", 12, {"axis": 3}),
    "softmax 11 of everything": ("Softmax", 11, {"axis": 0}),
    "log-softmax 11": ("LogSoftmax", 11, {}),
    "hardmax 11": ("Hardmax", 11, {"axis": 2}),
    "unsqueeze 11": ("Unsqueeze", 11, {"axes": [0, 5]}),
    "reduce-sum 11": ("ReduceSum", 11, {"axes": [1, 3], "keepdims": 0}),
    "reduce-mean 13": ("ReduceMean", 13, {"axes": [2]}),
    "reduce-max 12 of everything": ("ReduceMax", 12, {"keepdims": 0}),
    "reduce-l2 17": ("ReduceL2", 17, {"axes": [-1]}),
    "reduce-log-sum-exp 11": ("ReduceLogSumExp", 11, {"axes": [1]}),
    "split 7": ("Split", 7, {"axis": 3, "split": [1, 2, 3], "outputs": ("a", "b", "c")}),
    "split 11 in equal parts": ("Split", 11, {"axis": 3, "outputs": ("a", "b")}),
    "split 13 in equal parts": ("Split", 13, {"axis": 1, "outputs": ("a", "b", "c")}),
    "global average pool 7": ("GlobalAveragePool", 7, {}),
    "add 7": ("Add", 7, {"fixed": {"b": drawn(6)}}),
    "p-relu 7": ("PRelu", 7, {"fixed": {"slope": np.abs(drawn(3, 1, 1))}}),
    "flatten 9": ("Flatten", 9, {"axis": 2}),
}


@pytest.mark.parametrize("form", FORMS)
def test_an_old_form_gives_what_it_gave(form: str, tmp_path: Path) -> None:
    op, opset, rest = FORMS[form]
    after = same(node_model(op, {"x": X}, opset=opset, **rest), tmp_path, {"x": X})
    assert after.opset_import[0].version == 20


def test_squeeze_11(tmp_path: Path) -> None:
    x = drawn(1, 3, 1, 2)
    same(node_model("Squeeze", {"x": x}, opset=11, axes=[0]), tmp_path, {"x": x})


def test_scatter_9(tmp_path: Path) -> None:
    x, index, new = drawn(3, 3), np.array([[1, 0, 2]]), drawn(1, 3)
    model = node_model("Scatter", {"x": x, "i": index, "u": new}, opset=9)
    assert "ScatterElements" in [
        node.op_type for node in same(model, tmp_path, {"x": x, "i": index, "u": new}).graph.node
    ]


def test_gemm_7_and_recurrent_layers_of_9(tmp_path: Path) -> None:
    x = drawn(4, 3)
    same(node_model("Gemm", {"x": x}, opset=7, fixed={"w": drawn(5, 3), "b": drawn(5)}, transB=1), tmp_path, {"x": x})
    sequence, weights = drawn(5, 2, 3), {"w": drawn(1, 12, 3), "r": drawn(1, 12, 4)}
    model = node_model("GRU", {"x": sequence}, opset=9, fixed=weights, hidden_size=4, outputs=("y", "h"))
    same(model, tmp_path, {"x": sequence}, rtol=1e-4)


def test_roi_align_10_has_no_half_pixel(tmp_path: Path) -> None:
    image, rois, batch = drawn(1, 1, 8, 8), np.array([[1, 1, 6, 5]], np.float32), np.array([0])
    inputs = {"x": image, "r": rois, "b": batch}
    same(node_model("RoiAlign", inputs, opset=10, output_height=3, output_width=3), tmp_path, inputs)


def test_statistics_per_position(tmp_path: Path) -> None:
    """onnxruntime has no spatial=0: (x - mean) / sqrt(var + eps) * scale + bias, by numpy."""
    x, s = drawn(2, 3, 4), stats(3, 4)
    model = node_model("BatchNormalization", {"x": x}, opset=7, fixed=s, spatial=0, epsilon=1e-3)
    after, _ = prepared(model, tmp_path, {"x": x.shape})
    want = (x - s["mean"]) / np.sqrt(s["var"] + 1e-3) * s["scale"] + s["bias"]
    np.testing.assert_allclose(run(after, {"x": x})["y"], want, rtol=1e-5, atol=1e-6)


def test_inside_a_loop(tmp_path: Path) -> None:
    """Opset 11: x = x.sum(1, keepdims) broadcast back, three times."""
    text = """
        <ir_version: 6, opset_import: ["" : 11]>
        main (float[2, 3] x) => (float[2, 3] y) <int64 n = {3}, bool go = {1}>
        {
            y = Loop (n, go, x) <body = body (int64 i, bool c, float[2, 3] s) => (bool d, float[2, 3] t) {
                d = Identity (c)
                total = ReduceSum <axes = [1], keepdims = 1> (s)
                t = Softmax <axis = 1> (Sub (s, total))
            }>
        }
    """
    text = text.replace("t = Softmax <axis = 1> (Sub (s, total))", "u = Sub (s, total) t = Softmax <axis = 1> (u)")
    x = drawn(2, 3)
    same(onnx.parser.parse_model(text), tmp_path, {"x": x})


def test_what_has_no_newer_form_is_refused_by_node(tmp_path: Path) -> None:
    x, s = drawn(2, 3, 4), stats(3)
    outputs = ("y", "m", "v", "sm", "sv")
    model = node_model("BatchNormalization", {"x": x}, opset=9, fixed=s, outputs=outputs)
    with pytest.raises(GraphError, match="running statistics are read") as caught:
        prepared(model, tmp_path, {"x": x.shape})
    assert "node 'node' (BatchNormalization)" in str(caught.value)
