"""Estimates of memory, against sums by hand and against plans that were built."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from aot.config import Request
from aot.declaration import Dim, Input, ModelSpec
from aot.explain import explain
from aot.explain.memory import estimate
from aot.progress import Silent
from aot.store import Store
from tests.backends.graphs import write

SPEC = ModelSpec("m", {"x": Input([Dim("batch", min=1, opt=4, max=16), 64])})
PROFILES = ({"batch": (1, 4, 8)}, {"batch": (1, 4, 16)})
FLOAT = 4


def activations(path: Path) -> int:
    return estimate(ir.load(path), SPEC, PROFILES).activations


def test_values_live_from_where_they_are_made_to_where_they_are_last_read(tmp_path: Path) -> None:
    """a and b at once, then b and c; d is an output, which the caller holds. At the largest batch of any profile."""
    text = """g (float[batch, 64] x) => (float[batch, 8] d) {
        a = MatMul(x, w)  b = MatMul(a, v)  c = MatMul(b, u)  d = MatMul(c, t) }"""
    sizes = {"w": (64, 100), "v": (100, 30), "u": (30, 50), "t": (50, 8)}
    weights: Any = {name: np.ones(shape, np.float32) for name, shape in sizes.items()}
    path = write(tmp_path / "m.onnx", text, **weights)
    assert activations(path) == 16 * (100 + 30) * FLOAT


def test_a_value_that_is_read_late_stays(tmp_path: Path) -> None:
    text = """g (float[batch, 64] x) => (float[batch, 64] d) {
        a = MatMul(x, w)  b = MatMul(a, w)  c = MatMul(b, w)  d = Concat<axis = 0>(a, c) }"""
    path = write(tmp_path / "m.onnx", text, w=np.ones((64, 64), np.float32))
    assert activations(path) == 16 * 3 * 64 * FLOAT


def test_arithmetic_on_elements_and_views_take_no_room_of_their_own(tmp_path: Path) -> None:
    text = """g (float[batch, 64] x) => (float[batch, 8, 2] y) <int64[3] s = {0, 8, 8}> {
        a = MatMul(x, w)  b = Relu(a)  c = Reshape(b, s)  e = Tanh(c)  d = Softmax(e)  y = MatMul(d, v) }"""
    path = write(tmp_path / "m.onnx", text, w=np.ones((64, 64), np.float32), v=np.ones((8, 2), np.float32))
    assert activations(path) == 16 * 64 * FLOAT


def test_sizes_that_values_decide_are_left_out_and_counted(tmp_path: Path) -> None:
    text = "g (float[batch, 64] x) => (int64[2, n] y) { n1 = NonZero(x)  y = Neg(n1) }"
    found = estimate(ir.load(write(tmp_path / "m.onnx", text)), SPEC, PROFILES)
    assert found.unknown == 1


def test_weights_are_counted_in_the_dtype_of_the_engine(tmp_path: Path) -> None:
    text = "g (float16[batch, 64] x) => (float16[batch, 32] y) { y = MatMul(x, w) }"
    found = estimate(ir.load(write(tmp_path / "m.onnx", text, w=np.ones((64, 32), np.float16))), SPEC, PROFILES)
    assert found.weights == 64 * 32 * 2


@pytest.mark.slow
@pytest.mark.parametrize("example", ["minilm", "mobilenet"])
@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8", "fp8"])
def test_the_engine_is_as_large_as_estimated(root: Path, tmp_path: Path, example: str, precision: Any) -> None:
    """Within 25 %, against plans of TensorRT-RTX."""
    pytest.importorskip("tensorrt_rtx")
    from aot.pipeline import build

    request = Request(model=str(root / "examples" / example / "model.py"), precision=precision, targets=("sm89",),
                      output=tmp_path / "x.aot")  # fmt: skip
    found = explain(request, Store(), Silent())
    assert found.memory is not None
    made = build(request, Store(), Silent())
    assert found.memory.engine == pytest.approx(made.summary["engines"][0]["bytes"], rel=0.25)
