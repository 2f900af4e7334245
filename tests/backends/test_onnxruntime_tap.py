"""Reading values inside a graph."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest

from aot.backends.onnxruntime_tap import Tap
from aot.errors import GraphError


def write(path: Path, body: str) -> Path:
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20, "own" : 1]> {body}')
    for node in model.graph.node:
        node.name = f"node_{node.output[0]}"
    onnx.save(onnx.shape_inference.infer_shapes(model), path)
    return path


def test_bf16_in_the_models_own_code_is_emulated(tmp_path: Path) -> None:
    body = "g (float[2] x) => (float[2] y) { b = Cast<to = 16>(x)  s = Add(b, b)  y = Cast<to = 1>(s) }"
    x = np.array([1.00390625, 3.3], np.float32)
    found, _ = Tap(write(tmp_path / "m.onnx", body), ["s", "y"])({"x": x})
    narrow = x.astype(ml_dtypes.bfloat16)
    expected = (narrow + narrow).astype(np.float32)
    np.testing.assert_array_equal(found["s"], expected)
    np.testing.assert_array_equal(found["y"], expected)


@pytest.mark.parametrize(("dtype", "code"), [(np.float16, "float16"), (ml_dtypes.bfloat16, "bfloat16")])
def test_inputs_of_a_narrow_dtype_are_fed_and_given_as_fp32(dtype: Any, code: str, tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx", f"g ({code}[2] x) => ({code}[2] y) {{ y = Add(x, x) }}")
    x = np.array([1.00390625, 3.3], dtype)
    found, _ = Tap(path, ["x", "y"])({"x": x})
    for name, expected in (("x", x), ("y", x + x)):
        assert found[name].dtype == np.float32
        np.testing.assert_array_equal(found[name], expected.astype(np.float32))


def test_a_graph_that_only_hands_on_its_input_needs_no_run(tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx", "g (float[2] x) => (float[2] y) { y = Identity(x) }")
    x = np.ones(2, np.float32)
    np.testing.assert_array_equal(Tap(path, ["x"])({"x": x})[0]["x"], x)


def test_an_op_without_a_kernel_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx", "g (float[2] x) => (float[2] y) { h = own.Strange(x)  y = Neg(h) }")
    with pytest.raises(GraphError) as caught:
        Tap(path, ["y"])
    assert "Strange" in str(caught.value)
