"""A strongly typed builder takes the graphs: TensorRT-RTX, which needs no GPU to build."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from tests.precision.graphs import converted, graph, observe, recipe
from tests.precision.rtx import build

pytest.importorskip("tensorrt_rtx")
rng = np.random.default_rng(4)


def normal(*shape: int) -> np.ndarray[Any, Any]:
    return (0.2 * rng.standard_normal(shape)).astype(np.float32)


NETWORK = """g (float[4, 16, 8, 8] x) => (float[4, 16] y, float[4, 64] p) {
    a = Conv <pads = [1, 1, 1, 1]> (x, w, b)  c = Relu(a)  d = Conv <pads = [1, 1, 1, 1]> (c, v)  s = Add(d, x)
    m = GlobalAveragePool(s)  f = Flatten(m)  n = LayerNormalization(f, g, b)  e = Gemm(n, u)  h = Gelu(e)
    k = Gemm <transB = 1> (h, t)  y = Softmax(k)  q = ReduceL2(h, axis)  r = Add(q, eps)  p = Div(h, r)
}"""


def network() -> ir.Model:
    return graph(
        NETWORK,
        w=normal(16, 16, 3, 3),
        v=normal(16, 16, 3, 3),
        b=normal(16),
        g=np.ones(16, np.float32),
        u=normal(16, 64),
        t=normal(16, 64),
        axis=np.array([1]),
        eps=np.array(1e-12, np.float32),
    )


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16", "int8", "fp8"])
def test_tensorrt_rtx_builds_every_precision(precision: str) -> None:
    made = network()
    amax = observe(made, {"x": normal(4, 16, 8, 8)})
    model, outcome = converted(made, recipe(precision, residual=precision == "int8", slow=True), amax)
    assert outcome.ops == {"int8": {"Add": 1, "Conv": 2, "Gemm": 2}, "fp8": {"Conv": 2, "Gemm": 2}}.get(precision, {})

    build(model)


def test_tensorrt_rtx_builds_fp8_convolutions_of_any_sixteen_channels_or_more() -> None:
    body = "g (float[4, 24, 8, 8] x) => (float[4, 40, 8, 8] y) { h = Conv(x, w)  r = Relu(h)  y = Conv(r, v) }"
    made = graph(body, w=normal(17, 24, 1, 1), v=normal(40, 17, 1, 1))
    model, outcome = converted(made, recipe("fp8", slow=True), observe(made, {"x": normal(4, 24, 8, 8)}))
    assert outcome.ops == {"Conv": 2}
    build(model)


@pytest.mark.parametrize(("inputs", "outputs"), [(40, 360), (120, 66), (17, 33)])
def test_tensorrt_rtx_builds_fp8_products_of_sizes_that_sixteen_does_not_divide(inputs: int, outputs: int) -> None:
    body = f"g (float[8, 16, {inputs}] x) => (float[8, 16, {outputs}] y) {{ y = MatMul(x, w) }}"
    made = graph(body, w=normal(inputs, outputs))
    model, outcome = converted(made, recipe("fp8", slow=True), {"x": 3.0, "y": 3.0})
    assert outcome.ops == {"MatMul": 1}
    build(model)


ENCODER = """g (float[B, 32, 64] x) => (float[B, 32, 64] y) {
    q = MatMul(x, wq)  q1 = Add(q, b)  q2 = Reshape(q1, split)  q3 = Transpose <perm = [0, 2, 1, 3]> (q2)
    q4 = Mul(q3, d)
    k = MatMul(x, wk)  k1 = Add(k, b)  k2 = Reshape(k1, split)  k3 = Transpose <perm = [0, 2, 3, 1]> (k2)
    v = MatMul(x, wv)  v1 = Add(v, b)  v2 = Reshape(v1, split)  v3 = Transpose <perm = [0, 2, 1, 3]> (v2)
    s = MatMul(q4, k3)  p = Softmax <axis = -1> (s)  m = MatMul(p, v3)
    m1 = Transpose <perm = [0, 2, 1, 3]> (m)  m2 = Reshape(m1, join)  o = MatMul(m2, wo)  r = Add(o, x)
    n = LayerNormalization <axis = -1> (r, g, b)  f = MatMul(n, up)  h = Gelu(f)  e = MatMul(h, down)  y = Add(e, n)
}"""


def encoder() -> ir.Model:
    """A transformer's layer: two heads of 32, attention as surgery leaves it."""
    weights = {name: normal(64, 64) for name in ("wq", "wk", "wv", "wo")} | {"up": normal(64, 128)}
    weights |= {"down": normal(128, 64), "b": normal(64), "g": np.ones(64, np.float32)}
    weights |= {"d": np.array(32**-0.5, np.float32), "split": np.array([0, 32, 2, 32]), "join": np.array([0, 32, 64])}
    return graph(ENCODER, 20, **weights)


@pytest.mark.parametrize(("precision", "pairs"), [("fp8", 8), ("int8", 8)])
def test_tensorrt_rtx_builds_a_layer_with_quantized_attention(precision: str, pairs: int) -> None:
    made = encoder()
    amax = observe(made, {"x": normal(4, 32, 64)})
    model, outcome = converted(made, recipe(precision, attention=True), amax)
    assert outcome.ops == {"MatMul": 8}
    assert sum(n.op_type == "QuantizeLinear" for n in model.graph) == pairs  # x, q, k, v, softmax, m2, n, h
    model.graph.inputs[0].shape = ir.Shape([4, 32, 64])
    build(model)


@pytest.mark.parametrize("precision", ["int8", "fp8"])
def test_tensorrt_rtx_builds_weights_that_are_quantized_alone(precision: str) -> None:
    made = encoder()
    wanted = recipe(precision).model_copy(update={"activations": False})
    model, outcome = converted(made, wanted, observe(made, {"x": normal(4, 32, 64)}))
    assert (outcome.ops, outcome.qdq) == ({"MatMul": 6}, 6)
    model.graph.inputs[0].shape = ir.Shape([4, 32, 64])
    build(model)


@pytest.mark.parametrize("precision", ["int8", "fp8"])
@pytest.mark.parametrize(
    ("body", "shape"),
    [
        ("(float[64, 48] x) => (float[32, 48] y) { y = MatMul(w, x) }", (32, 64)),
        ("(float[3, 48, 64] x) => (float[3, 48, 32] y) { y = MatMul(x, w) }", (3, 64, 32)),
        ("(float[64, 48] x) => (float[48, 32] y) { y = Gemm <transA = 1> (x, w) }", (64, 32)),
        ("(float[64, 48] x) => (float[32, 48] y) { y = Gemm <transA = 1> (w, x) }", (64, 32)),
        ("(float[1, 16, 8, 8] x) => (float[1, 16, 10, 10] y) { y = ConvTranspose <group = 2> (x, w) }", (16, 8, 3, 3)),
    ],
)
def test_tensorrt_rtx_builds_weights_on_either_side(precision: str, body: str, shape: tuple[int, ...]) -> None:
    """The axes of their scales are checked in test_layers.py."""
    made = graph(f"g {body}", 20, w=normal(*shape))
    sizes = [int(dim) for dim in body[len("(float[") : body.index("]")].split(",")]
    layers = recipe(precision, ops=("MatMul", "Gemm", "ConvTranspose"))
    model, outcome = converted(made, layers, observe(made, {"x": normal(*sizes)}))
    assert sum(outcome.ops.values()) == (0 if precision == "fp8" and "Conv" in body else 1)
    build(model)
