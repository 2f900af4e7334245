"""Small networks that quantizers and converters of the field get wrong, from their issue threads.

Each is written here in numpy as well, which every comparison is made with.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aot.config import Budget, Placement, Recipe
from tests.precision.graphs import Array, Feeds, converted, graph, node, observe, ops, precisions, run, sqnr

LAYERS = Placement(ops=("MatMul", "Gemm", "Conv", "ConvTranspose"), min_channels=1, residual=True)
INT8 = Recipe(precision="int8", placement=LAYERS)
FP8 = Recipe(precision="fp8", placement=Placement(min_channels=1))
FP16 = Recipe(precision="fp16")


def normal(seed: int, *shape: int, scale: float = 1.0) -> Array:
    return (scale * np.random.default_rng(seed).standard_normal(shape)).astype(np.float32)


def build(body: str, wanted: Recipe, data: list[Feeds], **weights: Array) -> tuple[Any, Any]:
    """The graph after calibration on `data`, and what was decided."""
    made = graph(body, 20, **weights)
    seen = [observe(made, feeds) for feeds in data]
    return converted(made, wanted, {name: max(one[name] for one in seen) for name in seen[0]})


# onnxruntime#19694: per-channel INT8 of ConvTranspose takes the wrong axis and breaks with groups.


def transposed(x: Array, w: Array, b: Array, stride: int, pad: int, extra: int, groups: int = 1) -> Array:
    n, inputs, height, width = x.shape
    each, k = inputs // groups, w.shape[2]
    size = [(d - 1) * stride + k - 2 * pad + extra for d in (height, width)]
    y = np.zeros((n, w.shape[1] * groups, size[0] + 2 * pad, size[1] + 2 * pad))
    for g in range(groups):
        into, out = slice(g * each, (g + 1) * each), slice(g * w.shape[1], (g + 1) * w.shape[1])
        for i in range(k):
            for j in range(k):
                part = np.einsum("nchw,co->nohw", x[:, into], w[into, :, i, j])
                y[:, out, i : i + stride * height : stride, j : j + stride * width : stride] += part
    return np.asarray(y[:, :, pad : pad + size[0], pad : pad + size[1]] + b[:, None, None])


def test_a_decoder_whose_channels_differ_a_hundredfold() -> None:
    gains = np.logspace(-1.5, 0.5, 8).astype(np.float32)
    w = normal(1, 3, 8, 3, 3, scale=0.2) * gains[None, :, None, None]
    v, b, c = normal(2, 8, 3, 2, 2, scale=0.3), normal(3, 8, scale=0.5), normal(4, 6, scale=0.3)
    body = """g (float[B, 3, 6, 6] x) => (float[B, 6, 24, 24] y) {
        a = ConvTranspose <strides = [2, 2], pads = [1, 1, 1, 1], output_padding = [1, 1]> (x, w, b)
        r = Relu(a)  y = ConvTranspose <strides = [2, 2], group = 2> (r, v, c) }"""
    data = [{"x": normal(10 + i, 1, 3, 6, 6)} for i in range(8)]
    model, outcome = build(body, INT8, data, w=w, v=v, b=b, c=c)
    assert precisions(outcome) == {"a": "int8", "r": "fp16", "y": "int8"}
    scales = {n: node(model, n).inputs[1].producer().inputs[1].shape.numpy() for n in ("a", "y")}
    assert scales == {"a": (8,), "y": ()}
    x = normal(99, 1, 3, 6, 6)
    hidden = np.maximum(transposed(x, w, b, 2, 1, 1), 0).astype(np.float32)
    assert sqnr(transposed(hidden, v, c, 2, 0, 0, groups=2), run(model, {"x": x})["y"]) > 30


# onnxruntime#22020, TensorRT#3360: an INT32 bias overflows where weights are tiny, and TensorRT takes none.


def test_biases_of_five_beside_weights_of_a_billionth() -> None:
    w, v = normal(1, 4, 3, 1, 1, scale=0.3), normal(2, 4, 4, 1, 1, scale=0.3)
    w[:2] *= 1e-9
    b, c = np.array([5.0, -4.5, 0.1, 0.2], np.float32), normal(3, 4)
    body = "g (float[B, 3, 8, 8] x) => (float[B, 4, 8, 8] y) { h = Conv(x, w, b)  y = Conv(h, v, c) }"
    model, outcome = build(body, INT8, [{"x": normal(i, 1, 3, 8, 8)} for i in range(8)], w=w, v=v, b=b, c=c)
    assert precisions(outcome) == {"h": "int8", "y": "int8"}
    assert all(node(model, name).inputs[2].const_value is not None for name in ("h", "y"))
    x = normal(99, 1, 3, 8, 8)
    hidden = np.einsum("nchw,oc->nohw", x, w[:, :, 0, 0]) + b[:, None, None]
    expected = np.einsum("nchw,oc->nohw", hidden, v[:, :, 0, 0]) + c[:, None, None]
    assert np.linalg.norm(run(model, {"x": x})["y"] - expected) < 0.01 * np.linalg.norm(expected)


# TensorRT#1992, #3270: without Q/DQ on the skip input a residual Add runs in floating point.


def convolved(x: Array, w: Array, stride: int = 1) -> Array:
    pad = w.shape[2] // 2
    x = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    size = [(d - w.shape[2]) // stride + 1 for d in x.shape[2:]]
    y = np.zeros((len(x), len(w), *size))
    for i in range(w.shape[2]):
        for j in range(w.shape[2]):
            window = x[:, :, i : i + stride * size[0] : stride, j : j + stride * size[1] : stride]
            y += np.einsum("nchw,oc->nohw", window, w[:, :, i, j])
    return y.astype(np.float32)


def test_a_residual_network_with_an_identity_and_a_projected_shortcut() -> None:
    shapes = {"w0": (8, 3, 3, 3), "w1": (8, 8, 3, 3), "w2": (8, 8, 3, 3), "w3": (16, 8, 3, 3), "w4": (16, 16, 3, 3)}
    shapes |= {"w5": (16, 8, 1, 1)}
    w = {n: normal(i, *s, scale=float(np.prod(s[1:])) ** -0.5) for i, (n, s) in enumerate(shapes.items())}
    head = normal(20, 16, 5, scale=0.3)
    p = "pads = [1, 1, 1, 1]"
    body = f"""g (float[B, 3, 16, 16] x) => (float[B, 5] y) {{
        s = Conv <{p}> (x, w0)  s1 = Relu(s)
        a = Conv <{p}> (s1, w1)  a1 = Relu(a)  b = Conv <{p}> (a1, w2)  t = Add(b, s1)  t1 = Relu(t)
        c = Conv <{p}, strides = [2, 2]> (t1, w3)  c1 = Relu(c)  d = Conv <{p}> (c1, w4)
        e = Conv <strides = [2, 2]> (t1, w5)  u = Add(d, e)  u1 = Relu(u)
        m = GlobalAveragePool(u1)  f = Flatten(m)  y = MatMul(f, head) }}"""
    model, outcome = build(body, INT8, [{"x": normal(30 + i, 4, 3, 16, 16)} for i in range(8)], **w, head=head)
    found = precisions(outcome)
    assert (found["t"], found["u"]) == ("int8", "int8")
    producers = {n: [v.producer().op_type for v in node(model, n).inputs] for n in ("t", "u")}
    assert producers == {"t": ["Conv", "DequantizeLinear"], "u": ["Conv", "DequantizeLinear"]}
    assert node(model, "t").inputs[1] is node(model, "a").inputs[0]
    assert model.graph.inputs[0].shape[0].value == "B"

    x = normal(99, 5, 3, 16, 16)
    stem = np.maximum(convolved(x, w["w0"]), 0)
    one = np.maximum(convolved(np.maximum(convolved(stem, w["w1"]), 0), w["w2"]) + stem, 0)
    main = convolved(np.maximum(convolved(one, w["w3"], 2), 0), w["w4"])
    two = np.maximum(main + np.einsum("nchw,oc->nohw", one[:, :, ::2, ::2], w["w5"][:, :, 0, 0]), 0)
    assert sqnr(two.mean((2, 3)) @ head, run(model, {"x": x})["y"]) > 30


# onnx#7222, ml_dtypes#400: a cast beyond 448 gives NaN where TensorRT saturates.


def test_fp8_of_rows_a_billion_apart_and_an_input_far_outside() -> None:
    w, v = normal(1, 32, 64, scale=0.2), normal(2, 64, 16, scale=0.2)
    w[:, 0] *= 1000
    v[:, 3] *= 1e-6
    body = "g (float[B, 32] x) => (float[B, 16] y) { h = MatMul(x, w)  r = Relu(h)  y = MatMul(r, v) }"
    data = [{"x": normal(i, 8, 32)} for i in range(8)]
    model, outcome = build(body, FP8, data, w=w, v=v)
    assert precisions(outcome) == {"h": "fp8", "r": "fp16", "y": "fp8"}
    for stored in model.graph.initializers.values():
        if stored.dtype.name == "FLOAT8E4M3FN":
            assert not {0x7F, 0xFF} & {*stored.const_value.numpy().view(np.uint8).reshape(-1)}
    assert all(n.attributes["saturate"].as_int() == 1 for n in model.graph if n.op_type == "QuantizeLinear")
    x = normal(99, 8, 32)
    x[0, 0] = 900.0
    got = run(model, {"x": x})["y"]
    assert np.isfinite(got).all()
    # A quantizer that saturates reads the outlier as the largest value of calibration, and FP8 keeps three bits.
    top = max(float(np.abs(feeds["x"]).max()) for feeds in data)
    expected = np.maximum(np.clip(x, -top, top) @ w, 0) @ v
    for column in (slice(0, 3), slice(3, 4), slice(4, None)):
        assert np.linalg.norm(got[:, column] - expected[:, column]) < 0.08 * np.linalg.norm(expected[:, column])


# TensorRT#2564, #4493: norms of a residual stream of some hundreds overflow in FP16.


def test_norms_of_a_residual_stream_of_two_thousand() -> None:
    up, head = normal(1, 16, 64, scale=150.0), normal(2, 64, 8, scale=0.1)
    body = """g (float[B, 5, 16] x) => (float[B, 5, 8] y, float[B, 5, 8] z) {
        r = MatMul(x, up)  n = LayerNormalization <axis = -1> (r, one, zero)  y = MatMul(n, head)
        q = Mul(r, r)  m = ReduceMean <keepdims = 1> (q, axis)  e = Add(m, eps)  s = Sqrt(e)  i = Reciprocal(s)
        k = Mul(r, i)  z = MatMul(k, head) }"""
    weights = {"up": up, "head": head, "one": np.ones(64, np.float32), "zero": np.zeros(64, np.float32)}
    weights |= {"eps": np.array(1e-6, np.float32), "axis": np.array([-1])}
    x = normal(3, 2, 5, 16)
    model, outcome = build(body, FP16, [{"x": x}], **weights)
    r = x.astype(np.float64) @ up
    assert np.abs(r).max() > 1000
    found = precisions(outcome)
    assert {found[n] for n in ("n", "q", "m", "e", "s", "i", "k")} == {"fp32"}
    assert (found["r"], found["y"], found["z"]) == ("fp16", "fp16", "fp16")
    got = run(model, {"x": x})
    layer = (r - r.mean(-1, keepdims=True)) / np.sqrt(r.var(-1, keepdims=True) + 1e-5)
    root = r / np.sqrt((r**2).mean(-1, keepdims=True) + 1e-6)
    np.testing.assert_allclose(got["y"], layer @ head, rtol=2e-2, atol=2e-2)
    np.testing.assert_allclose(got["z"], root @ head, rtol=2e-2, atol=2e-2)


# TensorRT#2466: masks of -1e12 and the lowest number, an eps of 1e-12.


def test_masked_attention_and_a_normalisation_with_a_tiny_eps() -> None:
    body = """g (float[B, 5, 16] x, float[B, 5] keep) => (float[B, 5, 16] y) {
        q = MatMul(x, wq)  k = MatMul(x, wk)  t = Transpose <perm = [0, 2, 1]> (k)  p = MatMul(q, t)  s = Div(p, four)
        u = Unsqueeze(keep, one_axis)  n = Sub(one, u)  m = Mul(n, big)  a = Add(s, m)  b = Where(later, low, a)
        w = Softmax <axis = -1> (b)  o = MatMul(w, x)  l = ReduceL2 <keepdims = 1> (o, last)  d = Add(l, eps)
        h = Div(o, d)  g = Unsqueeze(keep, last)  y = Mul(h, g) }"""
    later = np.triu(np.ones((5, 5), bool), 1)
    weights: dict[str, Array] = {"wq": normal(1, 16, 16, scale=0.3), "wk": normal(2, 16, 16, scale=0.3)}
    weights |= {"four": np.array(4.0, np.float32), "one": np.array(1.0, np.float32), "later": later}
    weights |= {"big": np.array(-1e12, np.float32), "low": np.array(np.finfo(np.float32).min)}
    weights |= {"eps": np.array(1e-12, np.float32), "one_axis": np.array([1]), "last": np.array([-1])}
    x, keep = normal(3, 2, 5, 16), np.ones((2, 5), np.float32)
    keep[1, :2] = 0
    feeds = {"x": x, "keep": keep}
    model, outcome = build(body, FP16, [feeds], **weights)
    scores = (x @ weights["wq"]) @ (x @ weights["wk"]).transpose(0, 2, 1) / 4 + (1 - keep[:, None]) * -1e12
    scores = np.where(later, np.finfo(np.float32).min, scores)
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    mixed = shares / shares.sum(-1, keepdims=True) @ x
    expected = mixed / (np.linalg.norm(mixed, axis=-1, keepdims=True) + 1e-12) * keep[..., None]
    got = run(model, feeds)["y"]
    np.testing.assert_allclose(got, expected, atol=2e-2)
    assert np.isfinite(got).all()
    found = precisions(outcome)
    assert found["w"] == "fp16"
    assert {found[n] for n in ("l", "d", "h")} == {"fp32"}


# TensorRT#3473, #3450: NaN on both sides. polygraphy and TensorRT#2895: values around zero.


def test_outputs_of_nan_and_infinity_are_the_same_before_and_after() -> None:
    body = """g (float[B, 3] x) => (float[B, 3] l, float[B, 3] r, bool[B, 3] n, float[B, 3] e) {
        l = Log(x)  s = ReduceSum <keepdims = 1> (x, axis)  r = Div(x, s)  q = Sqrt(x)  n = IsNaN(q)
        h = Mul(x, hundred)  e = Exp(h) }"""
    x = np.array([[1.0, -1.0, 0.0], [2.0, 3.0, 4.0]], np.float32)
    made = graph(body, 20, axis=np.array([1]), hundred=np.array(100.0, np.float32))
    model, _ = converted(made, FP16, {})
    got = run(model, {"x": x})
    with np.errstate(all="ignore"):
        wanted = {
            "l": np.log(x),
            "r": x / x.sum(-1, keepdims=True),
            "n": np.isnan(np.sqrt(x)),
            "e": np.exp(x * np.float32(100)),
        }
    from aot.compare import compare

    verdict = compare(wanted, got, Budget(cosine=0.999))
    assert verdict.accepted, verdict.reasons
    assert any("NaN or infinite" in notice for notice in verdict.notices)
    worse = {**got, "l": np.where(np.isnan(got["l"]), 0.0, got["l"]).astype(np.float32)}
    assert not compare(wanted, worse, Budget(cosine=0.999)).accepted


@pytest.mark.parametrize("precision", ["fp16", "int8"])
def test_an_output_of_a_billionth_is_kept_and_zeros_in_its_place_fail(precision: str) -> None:
    from aot.compare import compare

    f, g = normal(1, 256, 256, scale=1 / 16), normal(2, 256, 64, scale=1 / 16)
    body = """g (float[B, 256] x) => (float[B, 64] c, float[B, 64] t, bool[B, 64] p) {
        a = MatMul(x, f)  h = Tanh(a)  y = MatMul(h, g)  m = ReduceMean <keepdims = 1> (y, axis)  c = Sub(y, m)
        t = Mul(y, tiny)  p = Greater(y, zero) }"""
    weights = {"f": f, "g": g, "axis": np.array([-1]), "tiny": np.array(1e-9, np.float32)}
    weights |= {"zero": np.array(0.0, np.float32)}
    wanted_recipe = FP16 if precision == "fp16" else INT8
    x = normal(3, 8, 256)
    model, _ = build(body, wanted_recipe, [{"x": x}, {"x": normal(4, 8, 256)}], **weights)
    y = np.tanh(x @ f) @ g
    wanted = {"c": y - y.mean(-1, keepdims=True), "t": (y * np.float32(1e-9)).astype(np.float32), "p": y > 0}
    got = run(model, {"x": x})
    budget = Budget(cosine=0.999)
    assert compare(wanted, got, budget).accepted
    assert not compare(wanted, {**got, "t": np.zeros_like(got["t"])}, budget).accepted
    assert ops(model).count("QuantizeLinear") == (0 if precision == "fp16" else 2)
