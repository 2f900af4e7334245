"""INT8 layers that TensorRT 10.6 gets wrong when their output goes on in floating point."""

from __future__ import annotations

import numpy as np
import pytest

from tests.precision.graphs import Array, converted, graph, node, observe, precisions, reasons, recipe

rng = np.random.default_rng(5)


def normal(*shape: int) -> Array:
    return rng.standard_normal(shape).astype(np.float32)


DEPTHWISE = "d = Conv <group = 32, pads = [1, 1, 1, 1]> (x, w)  r = Relu(d)"
POINTWISE = "y = Conv(r, v)"


@pytest.mark.parametrize(
    ("body", "precision"),
    [
        (f"{{ {DEPTHWISE}  {POINTWISE} }}", "int8"),
        (f"{{ {DEPTHWISE}  s = Sigmoid(r)  t = Mul(r, s)  y = Conv(t, v) }}", "fp16"),
        (f"{{ {DEPTHWISE}  y = Identity(r) }}", "fp16"),
    ],
)
def test_a_depthwise_convolution_is_int8_only_where_its_output_is(body: str, precision: str) -> None:
    weights = {"w": normal(32, 1, 3, 3)} | ({"v": normal(32, 32, 1, 1)} if "v)" in body else {})
    made = graph(f"g (float[B, 32, 6, 6] x) => (float[B, 32, 6, 6] y) {body}", **weights)
    feeds = {"x": normal(2, 32, 6, 6)}
    _, outcome = converted(made, recipe("int8", depthwise=True), observe(made, feeds))
    assert precisions(outcome)["d"] == precision
    assert ("TensorRT 10.6" in reasons(outcome)["d"]) == (precision == "fp16")


def test_where_the_recipe_wants_sensitive_layers_it_has_one_weight_scale() -> None:
    made = graph(
        f"g (float[B, 32, 6, 6] x) => (float[B, 32, 6, 6] y) {{ {DEPTHWISE}  y = Identity(r) }}", w=normal(32, 1, 3, 3)
    )
    model, outcome = converted(made, recipe("int8", sensitive=True), observe(made, {"x": normal(2, 32, 6, 6)}))
    assert precisions(outcome)["d"] == "int8"
    dequantized = node(model, "d").inputs[1].producer()
    assert dequantized.inputs[1].shape.numpy() == ()
    assert "one weight scale" in reasons(outcome)["d"]


def test_taking_one_back_takes_back_the_one_whose_output_it_had_quantized() -> None:
    chain = "{ d = Conv <group = 32> (x, w)  r = Relu(d)  y = Conv <group = 32> (r, w) }"
    made = graph(f"g (float[B, 32, 6, 6] x) => (float[B, 32, 6, 6] y) {chain}", w=normal(32, 1, 1, 1))
    _, outcome = converted(made, recipe("int8", depthwise=True), observe(made, {"x": normal(2, 32, 6, 6)}))
    assert precisions(outcome) == {"d": "fp16", "r": "fp16", "y": "fp16"}
    assert outcome.qdq == 0


@pytest.mark.parametrize(
    ("body", "scales"),
    [
        ("{ h = MatMul(x, w)  r = Add(h, b)  g = Gelu(r)  y = MatMul(g, v) }", (48,)),
        ("{ h = MatMul(x, w)  r = Add(h, b)  y = Gelu(r) }", ()),
        ("{ h = MatMul(x, w)  y = Add(h, b) }", (48,)),
    ],
)
def test_a_linear_layer_has_one_scale_where_a_gelu_behind_it_stays_in_floating_point(
    body: str, scales: tuple[int, ...]
) -> None:
    weights = {"w": normal(32, 48), "b": normal(48)} | ({"v": normal(48, 48)} if "v)" in body else {})
    made = graph(f"g (float[B, 32] x) => (float[B, 48] y) {body}", **weights)
    model, outcome = converted(made, "int8", observe(made, {"x": normal(16, 32)}))
    assert precisions(outcome)["h"] == "int8"
    dequantized = node(model, "h").inputs[1].producer()
    assert dequantized.inputs[1].shape.numpy() == scales
    assert ("overflows in the GELU" in reasons(outcome)["h"]) == (scales == ())
