"""What a recipe insists on, and what it names itself."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from aot import origins
from aot.config import Placement, Recipe
from aot.errors import GraphError, UsageError
from aot.origins import Origin
from tests.precision.graphs import Array, converted, graph, node, observe, precisions, reasons, run

rng = np.random.default_rng(9)
LINEAR = "g (float[B, 32] x) => (float[B, 20] y) { h = MatMul(x, w)  a = Gelu(h)  y = MatMul(a, v) }"
X = {"x": rng.standard_normal((8, 32)).astype(np.float32)}


def normal(*shape: int) -> Array:
    return (0.2 * rng.standard_normal(shape)).astype(np.float32)


WEIGHTS = {"w": normal(32, 48), "v": normal(48, 20)}


def fp8(**keys: Any) -> Recipe:
    placement = Placement(**{"min_channels": 0, "attention": True, **keys.pop("placement", {})})
    return Recipe(precision="fp8", placement=placement, **keys)


def test_a_strict_recipe_refuses_with_every_layer_and_its_reason() -> None:
    made = graph(LINEAR, 20, **WEIGHTS)
    amax = observe(made, X)
    origins.set(node(made, "y"), Origin("net.head", "m.py", 7))
    with pytest.raises(GraphError) as caught:
        converted(made, fp8(strict=True), amax)
    assert "1 cannot be fp8" in caught.value.what
    said = "node 'y' (MatMul), module 'net.head', m.py:7: FP8 matrix kernels are for sizes in multiples"
    assert said in caught.value.what
    assert "placement.keep" in str(caught.value.fix)


def test_a_strict_recipe_passes_where_all_is_quantized_or_named() -> None:
    made = graph(LINEAR, 20, **WEIGHTS)
    amax = observe(made, X)
    _, outcome = converted(made, fp8(strict=True, placement={"keep": ("y",)}), amax)
    assert precisions(outcome) == {"h": "fp8", "a": "fp16", "y": "fp16"}
    _, outcome = converted(made, fp8(strict=True, keep=("y",)), amax)
    assert precisions(outcome) == {"h": "fp8", "a": "fp16", "y": "fp32"}


def test_a_strict_recipe_refuses_a_graph_without_layers() -> None:
    made = graph("g (float[B, 8] x) => (float[B, 8] y) { y = Relu(x) }")
    with pytest.raises(GraphError, match="nothing to quantize: the graph has no MatMul, Gemm, Conv"):
        converted(made, fp8(strict=True), {"x": 1.0, "y": 1.0})


@pytest.mark.parametrize("keys", [{"keep": ("*",)}, {"placement": {"keep": ("h", "y")}}], ids=["keep", "placement"])
def test_a_strict_recipe_that_keeps_every_layer_says_that_it_does(keys: dict[str, Any]) -> None:
    made = graph(LINEAR, 20, **WEIGHTS)
    with pytest.raises(GraphError, match="nothing to quantize: it keeps every layer wide") as caught:
        converted(made, fp8(strict=True, **keys), observe(made, X))
    assert "keep" in str(caught.value.where)


def test_an_op_type_that_nothing_has_is_refused_with_the_nearest_and_one_that_the_graph_lacks_is_not() -> None:
    made = graph(LINEAR, 20, **WEIGHTS)
    with pytest.raises(UsageError, match="unknown op type 'Sofmax'") as caught:
        converted(made, Recipe(precision="fp16", keep_fp32=("Gelu", "Sofmax")), {})
    assert caught.value.fix == "did you mean 'Softmax'?"
    _, outcome = converted(made, Recipe(precision="fp16", keep_fp32=("Gelu", "Softmax")), {})
    assert precisions(outcome) == {"h": "fp16", "a": "fp32", "y": "fp16"}


@pytest.mark.parametrize("precision", ["fp16", "bf16", "int8", "fp8"])
@pytest.mark.parametrize("pattern", ["a", "net.act*"])
def test_nodes_and_modules_that_the_recipe_keeps_are_fp32(precision: str, pattern: str) -> None:
    made = graph(LINEAR, 20, **WEIGHTS)
    origins.set(node(made, "a"), Origin("net.act", "m.py", 3))
    wanted = Recipe(precision=precision, keep=(pattern, "nowhere"))  # type: ignore[arg-type]
    model, outcome = converted(made, wanted, observe(made, X))
    assert precisions(outcome)["a"] == "fp32"
    assert reasons(outcome)["a"] == f"the recipe keeps '{pattern}' in FP32"
    assert "the recipe keeps 'nowhere' in FP32, but no node or module is called that" in outcome.warnings
    assert not any(f"'{pattern}'" in warning for warning in outcome.warnings)
    assert np.isfinite(run(model, X)["y"]).all() if precision != "bf16" else True


def test_a_kept_layer_computes_what_fp32_does() -> None:
    """Values of 75,000 in the middle, which FP16 has not, and which calibration did not see."""
    nodes = "h = MatMul(x, w)  s = Mul(h, big)  t = Div(s, big)  y = MatMul(t, w)"
    body = f"g (float[B, 32] x) => (float[B, 32] y) {{ {nodes} }}"
    made = graph(body, 20, w=np.eye(32, dtype=np.float32), big=np.array(3e4, np.float32))
    x = np.full((1, 32), 2.5, np.float32)
    model, _ = converted(made, Recipe(precision="fp16", keep=("s", "t")), {})
    np.testing.assert_allclose(run(model, {"x": x})["y"], x, rtol=1e-3)


def test_weights_alone_are_rounded_by_channel_and_computed_wide() -> None:
    made = graph(LINEAR, 20, **WEIGHTS)
    wanted = Recipe(precision="int8", activations=False, compute="fp32")
    model, outcome = converted(made, wanted, {})  # nothing was observed, and nothing needs to be
    assert [n.op_type for n in model.graph] == ["DequantizeLinear", "MatMul", "Gelu", "DequantizeLinear", "MatMul"]
    assert outcome.ops == {"MatMul": 2}

    def rounded(w: Array) -> Array:
        scale = np.abs(w).max(0) / 127
        return np.asarray(np.rint(w / scale) * scale)

    h = X["x"] @ rounded(WEIGHTS["w"])
    erf = np.vectorize(math.erf)
    expected = (0.5 * h * (1 + erf(h / np.sqrt(2)))) @ rounded(WEIGHTS["v"])
    np.testing.assert_allclose(run(model, X)["y"], expected, rtol=1e-3, atol=1e-4)


def test_weights_alone_have_no_kernels_to_fit() -> None:
    """Depthwise and grouped convolutions and layers in front of a GELU keep their channels' scales."""
    body = "g (float[B, 32, 6, 6] x) => (float[B, 32, 6, 6] y) { y = Conv <group = 32> (x, w) }"
    wanted = Recipe(precision="fp8", activations=False)
    _, outcome = converted(graph(body, 20, w=normal(32, 1, 1, 1)), wanted, {})
    assert precisions(outcome) == {"y": "fp8"}
    assert reasons(outcome)["y"] == "a weight scale for each index of axis 0"


@pytest.mark.parametrize(
    ("body", "shape", "reason"),
    [
        ("(float[B, 96] x) => (float[B, 32] y) { y = MatMul(x, w) }", (96, 32), "96 input channels, which blocks"),
        ("(float[2, B, 64] x) => (float[2, B, 32] y) { y = MatMul(x, w) }", (2, 64, 32), "weights that are one matrix"),
        ("(float[B, 64, 4] x) => (float[B, 32, 4] y) { y = Conv(x, w) }", (32, 64, 1), "weights that are one matrix"),
    ],
)
def test_weights_that_no_block_divides_stay_wide(body: str, shape: tuple[int, ...], reason: str) -> None:
    wanted = Recipe(precision="int4", activations=False, weights={"block": 64})  # type: ignore[arg-type]
    _, outcome = converted(graph(f"g {body}", 21, w=normal(*shape)), wanted, {})
    assert precisions(outcome) == {"y": "fp16"}
    assert reason in reasons(outcome)["y"]
