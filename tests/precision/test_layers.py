"""Every form of a linear layer: which operand is the weight and which axis its scales lie on, against numpy.

Each test rounds input and weight by hand and compares with what onnxruntime makes of the graph.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from aot.config import Placement, Recipe
from tests.precision.graphs import Array, converted, graph, node, observe, reasons, run

rng = np.random.default_rng(11)


def normal(*shape: int) -> Array:
    """Values whose channels differ by a factor of 100, so that a scale on the wrong axis is seen."""
    spread = np.logspace(-1, 1, shape[-1]) if len(shape) == 1 else np.ones(shape[-1])
    return (0.2 * rng.standard_normal(shape) * spread).astype(np.float32)


def uneven(axis: int, *shape: int) -> Array:
    """A weight whose output channels, on that axis, differ by a factor of 100."""
    gains = np.logspace(-1, 1, shape[axis]).reshape([-1 if i == axis else 1 for i in range(len(shape))])
    return (0.2 * rng.standard_normal(shape) * gains).astype(np.float32)


def rounded(array: Array, form: str, axis: int | tuple[int, ...] | None) -> Array:
    """Quantized and dequantized. axis: those that share a scale."""
    amax = np.abs(array).max(axis=axis, keepdims=axis is not None)
    if form == "int8":
        scale = amax / 127
        return np.clip(np.rint(array / scale), -127, 127) * scale
    scales = [amax / 448 * 2 ** (k / 8) for k in range(8 if axis is not None else 1)]
    tried = [(array / scale).astype(ml_dtypes.float8_e4m3fn).astype(np.float32) * scale for scale in scales]
    # Of a weight's scales, for each output channel the one with the least error.
    best = np.argmin([np.square(one - array).sum(axis=axis, keepdims=True) for one in tried], axis=0)
    found: Array = np.take_along_axis(np.stack(tried), best[None], axis=0)[0] if best.ndim else tried[int(best)]
    return found


def others(rank: int, axis: int | None) -> tuple[int, ...] | None:
    return None if axis is None else tuple(i for i in range(rank) if i != axis)


PLAIN = Placement(ops=("MatMul", "Gemm", "Conv", "ConvTranspose"), min_channels=1, attention=True)


def outputs(body: str, feeds: dict[str, Array], form: str, **weights: Array) -> tuple[Array, Array, Any]:
    """What the graph gives without and with quantization, computed in FP32, and the scales' axis of the weight."""
    made = graph(body, 20, **weights)
    wanted = Recipe(precision=form, compute="fp32", placement=PLAIN)  # type: ignore[arg-type]
    model, outcome = converted(made, wanted, observe(made, feeds))
    layer = node(model, "y")
    assert {d.node: d.precision for d in outcome.decisions}["y"] == form, reasons(outcome)
    pairs = [v.producer() for v in layer.inputs if v is not None and v.producer() is not None]
    [weight] = [p for p in pairs if p is not None and p.inputs[0] is not None and p.inputs[0].const_value is not None]
    axis = weight.attributes["axis"].as_int() if "axis" in weight.attributes else None
    return run(made, feeds)["y"], run(model, feeds)["y"], axis


MATRICES = [
    ("(float[B, 32] x) => (float[B, 48] y) { y = MatMul(x, w) }", (5, 32), (32, 48), 1, lambda x, w: x @ w),
    ("(float[B, 5, 32] x) => (float[B, 5, 48] y) { y = MatMul(x, w) }", (2, 5, 32), (32, 48), 1, lambda x, w: x @ w),
    ("(float[32, N] x) => (float[48, N] y) { y = MatMul(w, x) }", (32, 5), (48, 32), 0, lambda x, w: w @ x),
    ("(float[B, 32, N] x) => (float[B, 48, N] y) { y = MatMul(w, x) }", (2, 32, 5), (48, 32), 0, lambda x, w: w @ x),
    (
        "(float[3, N, 32] x) => (float[3, N, 48] y) { y = MatMul(x, w) }",
        (3, 5, 32),
        (3, 32, 48),
        2,
        lambda x, w: x @ w,
    ),
    (
        "(float[3, 32, N] x) => (float[3, 48, N] y) { y = MatMul(w, x) }",
        (3, 32, 5),
        (3, 48, 32),
        1,
        lambda x, w: w @ x,
    ),
    ("(float[B, 32] x) => (float[B, 48] y) { y = Gemm(x, w) }", (5, 32), (32, 48), 1, lambda x, w: x @ w),
    (
        "(float[B, 32] x) => (float[B, 48] y) { y = Gemm <transB = 1> (x, w) }",
        (5, 32),
        (48, 32),
        0,
        lambda x, w: x @ w.T,
    ),
    (
        "(float[32, B] x) => (float[B, 48] y) { y = Gemm <transA = 1> (x, w) }",
        (32, 5),
        (32, 48),
        1,
        lambda x, w: x.T @ w,
    ),
    (
        "(float[32, B] x) => (float[B, 48] y) { y = Gemm <transA = 1, transB = 1> (x, w) }",
        (32, 5),
        (48, 32),
        0,
        lambda x, w: x.T @ w.T,
    ),
    ("(float[32, N] x) => (float[48, N] y) { y = Gemm(w, x) }", (32, 16), (48, 32), 0, lambda x, w: w @ x),
    (
        "(float[32, N] x) => (float[48, N] y) { y = Gemm <transA = 1> (w, x) }",
        (32, 16),
        (32, 48),
        1,
        lambda x, w: w.T @ x,
    ),
]


@pytest.mark.parametrize("form", ["int8", "fp8"])
@pytest.mark.parametrize(("body", "given", "shape", "axis", "product"), MATRICES)
def test_products_round_the_weight_by_output_channel(
    form: str, body: str, given: tuple[int, ...], shape: tuple[int, ...], axis: int, product: Any
) -> None:
    x, w = normal(*given), uneven(axis, *shape)
    wide, got, found = outputs(f"g {body}", {"x": x}, form, w=w)
    assert found == axis
    expected = product(rounded(x, form, None), rounded(w, form, others(w.ndim, axis)))
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=2e-5 * float(np.abs(wide).max()))
    assert np.linalg.norm(got - wide) < 0.05 * np.linalg.norm(wide)


def convolved(x: Array, w: Array, groups: int, transposed: bool) -> Array:
    """A convolution of stride 1 without padding, from its definition."""
    n, channels, height, width = x.shape
    k = w.shape[2]
    outs = w.shape[1] * groups if transposed else w.shape[0]
    each_in, each_out = channels // groups, outs // groups
    size = (height + k - 1, width + k - 1) if transposed else (height - k + 1, width - k + 1)
    y = np.zeros((n, outs, *size), np.float64)
    for g in range(groups):
        into, out = slice(g * each_in, (g + 1) * each_in), slice(g * each_out, (g + 1) * each_out)
        for i in range(k):
            for j in range(k):
                if transposed:
                    y[:, out, i : i + height, j : j + width] += np.einsum("nchw,co->nohw", x[:, into], w[into, :, i, j])
                else:
                    window = x[:, into, i : i + size[0], j : j + size[1]]
                    y[:, out] += np.einsum("nchw,oc->nohw", window, w[out, :, i, j])
    return y


@pytest.mark.parametrize(
    ("op", "groups", "shape", "axis"),
    [
        ("Conv", 1, (12, 8, 3, 3), 0),
        ("Conv", 2, (12, 4, 3, 3), 0),
        ("Conv", 8, (8, 1, 3, 3), 0),
        ("ConvTranspose", 1, (8, 12, 3, 3), 1),
        ("ConvTranspose", 2, (8, 6, 3, 3), None),
    ],
)
def test_convolutions_round_the_weight_by_output_channel(
    op: str, groups: int, shape: tuple[int, ...], axis: int | None
) -> None:
    """With groups an index of axis 1 of a transposed convolution stands for a channel of every group, and a kernel
    takes a scale for each output channel or one for all: it gets one."""
    x, w = normal(2, 8, 6, 6), uneven(axis or 0, *shape)
    outs = shape[1] * groups if op == "ConvTranspose" else shape[0]
    # The output is quantized again, without which a depthwise one stays wide.
    body = f"g (float[B, 8, 6, 6] x) => (float[B, 16, P, Q] z) {{ y = {op} <group = {groups}> (x, w)  z = Conv(y, v) }}"
    made = graph(body, 20, w=w, v=normal(16, outs, 1, 1))
    feeds = {"x": x}
    model, _ = converted(made, Recipe(precision="int8", compute="fp32", placement=PLAIN), observe(made, feeds))
    weight = node(model, "y").inputs[1]
    assert weight is not None
    pair = weight.producer()
    assert pair is not None
    assert (pair.attributes["axis"].as_int() if "axis" in pair.attributes else None) == axis
    model.graph.outputs.append(node(model, "y").outputs[0])
    got = run(model, feeds)["y"]
    expected = convolved(rounded(x, "int8", None), rounded(w, "int8", others(4, axis)), groups, op == "ConvTranspose")
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4 * float(np.abs(expected).max()))


def test_one_scale_for_a_grouped_transposed_convolution_has_its_reason() -> None:
    made = graph(
        "g (float[B, 8, 6, 6] x) => (float[B, 12, P, Q] y) { y = ConvTranspose <group = 2> (x, w) }",
        20,
        w=normal(8, 6, 3, 3),
    )
    _, outcome = converted(made, Recipe(precision="int8", placement=PLAIN), observe(made, {"x": normal(2, 8, 6, 6)}))
    assert "stands for an output channel of all 2 groups" in reasons(outcome)["y"]


@pytest.mark.parametrize(
    "body",
    [
        "(float[B, 32] x) => (float[B] y) { y = MatMul(x, w) }",
        "(float[B, 32] x, float[32, 48] w) => (float[B, 48] y) { y = Gemm(x, w) }",
    ],
)
def test_what_is_no_layer_stays_wide(body: str) -> None:
    weights = {} if "Gemm" in body else {"w": normal(32)}
    made = graph(f"g {body}", 20, **weights)
    _, outcome = converted(made, Recipe(precision="int8", placement=PLAIN), {"x": 1.0, "w": 1.0})
    assert reasons(outcome)["y"] == "its weight is computed in the graph"
