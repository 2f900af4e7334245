"""Norms written out, in the spellings of exporters, against torch; and what no operator computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch

from aot import passes
from tests.passes.test_fold_scale import model_of, normal
from tests.passes.test_limits import ops, run_by_onnxruntime

EPSILON = np.float32(0.01)
CONSTANTS = {"two": np.float32(2), "low": np.float32(-0.5), "one": np.float32(1), "eps": EPSILON}


def norm(body: str, shape: str = "B,S,8", axes: Any = (-1,), dtype: str = "float", **weights: Any) -> ir.Model:
    text = f"({dtype}[{shape}] x) => ({dtype}[{shape}] y) {{ {body} }}"
    return model_of(text, axes=np.array(axes, np.int64), **{**CONSTANTS, **weights})


def rewritten(model: ir.Model) -> int:
    passes.plain_roots(model)
    return passes.layer_norm(model)


STATISTICS = "m = ReduceMean(x, axes)  d = Sub(x, m)  s = Mul(d, d)  v = ReduceMean(s, axes)  e = Add(v, eps)"
SPELLINGS = {
    "torchscript": f"{STATISTICS} r = Sqrt(e)  n = Div(d, r)  p = Mul(n, g)  y = Add(p, b)".replace(
        "Mul(d, d)", "Pow(d, two)"
    ),
    "difference written twice": (
        "m = ReduceMean(x, axes)  d = Sub(x, m)  f = Sub(x, m)  s = Pow(f, two)  v = ReduceMean(s, axes)"
        " e = Add(eps, v)  r = Sqrt(e)  n = Div(d, r)  p = Mul(g, n)  y = Add(b, p)"
    ),
    "reciprocal": f"{STATISTICS} r = Sqrt(e)  q = Reciprocal(r)  n = Mul(q, d)  p = Mul(n, g)  y = Add(p, b)",
    "one over the root": f"{STATISTICS} r = Sqrt(e)  q = Div(one, r)  n = Mul(d, q)  p = Mul(n, g)  y = Add(p, b)",
    "power": f"{STATISTICS} q = Pow(e, low)  n = Mul(d, q)  p = Mul(n, g)  y = Add(p, b)",
    "scaled before the division": f"{STATISTICS} r = Sqrt(e)  p = Mul(g, d)  n = Div(p, r)  y = Add(n, b)",
    "tensorflow": (
        f"{STATISTICS} r = Sqrt(e)  q = Reciprocal(r)  k = Mul(q, g)  w = Mul(x, k)  u = Mul(m, k)  t = Sub(b, u)"
        " y = Add(w, t)"
    ),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("parameter", [(8,), (1, 1, 8)], ids=["[8]", "[1, 1, 8]"])
def test_every_spelling_is_a_layer_norm(spelling: str, parameter: tuple[int, ...]) -> None:
    g, b = normal(*parameter), normal(*parameter)
    model = norm(SPELLINGS[spelling], g=g, b=b)
    assert rewritten(model) == 1
    assert ops(model) == {"LayerNormalization": 1}
    x = normal(2, 3, 8)
    expected = torch.nn.functional.layer_norm(
        *map(torch.from_numpy, (x,)), (8,), *map(torch.from_numpy, (g.ravel(), b.ravel())), 0.01
    )
    np.testing.assert_allclose(run_by_onnxruntime(model, x=x), expected.numpy(), rtol=1e-5, atol=1e-5)


BARE = f"{STATISTICS} r = Sqrt(e)  n = Div(d, r)"


@pytest.mark.parametrize(
    ("body", "left"),
    [
        (f"{BARE} y = Identity(n)", {"LayerNormalization": 1, "Identity": 1}),
        (f"{BARE} y = Mul(n, g)", {"LayerNormalization": 1}),
        (f"{BARE} y = Add(n, b)", {"LayerNormalization": 1}),
        (f"{BARE} p = Mul(n, each)  y = Add(p, b)", {"LayerNormalization": 1, "Mul": 1, "Add": 1}),
        (f"{BARE} p = Mul(n, g)  y = Add(p, x)", {"LayerNormalization": 1, "Add": 1}),
    ],
    ids=["bare", "scale", "shift", "a scale of each row", "residual"],
)
def test_what_is_no_parameter_stays_behind_the_norm(body: str, left: dict[str, int]) -> None:
    model = norm(body, "2,3,8", g=normal(8), b=normal(8), each=normal(2, 3, 1))
    x = normal(2, 3, 8)
    expected = run_by_onnxruntime(model, x=x)
    assert rewritten(model) == 1
    assert ops(model) == left
    np.testing.assert_allclose(run_by_onnxruntime(model, x=x), expected, rtol=1e-5, atol=1e-5)


def test_a_norm_over_two_axes_has_a_gamma_of_two() -> None:
    model = norm(SPELLINGS["torchscript"], "B,3,8", (1, 2), g=normal(3, 8), b=normal(3, 8))
    x = normal(2, 3, 8)
    expected = run_by_onnxruntime(model, x=x)
    assert rewritten(model) == 1
    assert ops(model) == {"LayerNormalization": 1}
    np.testing.assert_allclose(run_by_onnxruntime(model, x=x), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("spelling", ["torchscript", "tensorflow"])
@pytest.mark.parametrize("size", ["3,5", "H,W"])
def test_a_norm_over_the_image_is_an_instance_norm(spelling: str, size: str) -> None:
    g, b = normal(4, 1, 1), normal(4, 1, 1)
    model = norm(SPELLINGS[spelling], f"B,4,{size}", (2, 3), g=g, b=b)
    assert rewritten(model) == 1
    assert ops(model) == {"InstanceNormalization": 1}
    x = normal(2, 4, 3, 5)
    tensors = map(torch.from_numpy, (g.ravel(), b.ravel()))
    expected = torch.nn.functional.instance_norm(torch.from_numpy(x), None, None, *tensors, True, 0.1, 0.01)
    np.testing.assert_allclose(run_by_onnxruntime(model, x=x), expected.numpy(), rtol=1e-5, atol=1e-5)


def test_an_image_of_any_size_is_normalized_without_parameters() -> None:
    model = norm(f"{BARE} y = Identity(n)", "B,4,H,W", (2, 3))
    x = normal(2, 4, 3, 5)
    expected = run_by_onnxruntime(model, x=x)
    assert rewritten(model) == 1
    assert ops(model)["InstanceNormalization"] == 1
    np.testing.assert_allclose(run_by_onnxruntime(model, x=x), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("body", "shape", "axes"),
    [
        (f"{BARE} y = Identity(n)", "B,4,5,6", (1,)),
        (f"{BARE} y = Identity(n)", "B,S,D", (-1,)),
        (f"{STATISTICS} r = Sqrt(e)  y = Mul(d, r)", "B,S,8", (-1,)),
        (f"{STATISTICS} r = Sqrt(e)  n = Add(r, eps)  y = Div(d, n)", "B,S,8", (-1,)),
        (f"{STATISTICS} r = Sqrt(e)  y = Div(r, d)", "B,S,8", (-1,)),
        (f"{STATISTICS} r = Sqrt(e)  y = Div(x, r)", "B,S,8", (-1,)),
        (BARE.replace("ReduceMean(x, axes)", "ReduceMean(x, first)") + " y = Identity(n)", "B,S,8", (-1,)),
        (BARE.replace("v = ReduceMean", "v = ReduceSum") + " y = Identity(n)", "B,S,8", (-1,)),
        (BARE.replace("Mul(d, d)", "Mul(d, x)") + " y = Identity(n)", "B,S,8", (-1,)),
    ],
    ids=["channels", "any width", "times", "later epsilon", "upside down", "not moved", "axes", "sum", "no square"],
)
def test_what_is_no_norm_of_an_operator_stays(body: str, shape: str, axes: tuple[int, ...]) -> None:
    model = norm(body, shape, axes, first=np.array([1], np.int64))
    before = ops(model)
    assert passes.layer_norm(model) == 0
    assert ops(model) == before


def test_a_norm_in_fp64_stays() -> None:
    model = norm(BARE.replace("n =", "y ="), dtype="double", **{name: np.float64(v) for name, v in CONSTANTS.items()})
    assert passes.layer_norm(model) == 0


def test_statistics_that_are_outputs_too_are_kept() -> None:
    model = model_of(
        f"(float[B,8] x) => (float[B,8] y, float[B,1] m, float[B,1] r) {{ {BARE} p = Mul(n, g)  y = Add(p, b) }}",
        axes=np.array([-1], np.int64),
        g=normal(8),
        b=normal(8),
        **CONSTANTS,
    )
    x = normal(2, 8)
    expected = run_by_onnxruntime(model, x=x)
    rewritten(model)
    assert [value.name for value in model.graph.outputs] == ["y", "m", "r"]
    np.testing.assert_allclose(run_by_onnxruntime(model, x=x), expected, rtol=1e-5, atol=1e-5)


def test_the_norm_of_older_opsets_stays() -> None:
    model = norm(SPELLINGS["torchscript"], g=normal(8), b=normal(8))
    model.opset_imports[""] = 16
    assert passes.layer_norm(model) == 0


SQUARE = "v = ReduceMean(s, axes)  e = Add(v, eps)"
RMS = {
    "llama": f"s = Pow(x, two)  {SQUARE}  r = Sqrt(e)  q = Reciprocal(r)  n = Mul(x, q)  y = Mul(g, n)",
    "t5": f"s = Mul(x, x)  {SQUARE}  q = Pow(e, low)  n = Mul(q, x)  y = Mul(n, g)",
    "divided": f"s = Mul(x, x)  {SQUARE}  r = Sqrt(e)  n = Div(x, r)  y = Mul(n, g)",
    "inverse": f"s = Mul(x, x)  {SQUARE}  r = Sqrt(e)  q = Div(one, r)  n = Mul(q, x)  y = Mul(n, g)",
}


@pytest.mark.parametrize("spelling", RMS)
def test_every_spelling_of_an_rms_norm_comes_to_one_form(spelling: str) -> None:
    g = normal(8)
    model = norm(RMS[spelling], g=g)
    passes.plain_roots(model)
    assert ops(model) == {"Mul": 2, "ReduceMean": 1, "Add": 1, "Sqrt": 1, "Div": 1}
    x = normal(2, 3, 8) * 1000
    expected = x.astype(np.float64) / np.sqrt((x.astype(np.float64) ** 2).mean(-1, keepdims=True) + EPSILON) * g
    np.testing.assert_allclose(run_by_onnxruntime(model, x=x), expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("body", "left"),
    [
        ("s = Mul(x, x)  v = ReduceSum(s, axes)  y = Sqrt(v)", {"ReduceL2": 1}),
        ("v = ReduceSumSquare(x, axes)  y = Sqrt(v)", {"ReduceL2": 1}),
        ("p = Pow(x, half)  y = ReduceSum(p, axes)", {"Sqrt": 1, "ReduceSum": 1}),
        ("p = Pow(x, minus)  y = ReduceSum(p, axes)", {"Reciprocal": 1, "ReduceSum": 1}),
        ("p = Pow(x, three)  y = ReduceSum(p, axes)", {"Pow": 1, "ReduceSum": 1}),
        ("p = Pow(x, low)  y = ReduceSum(p, axes)", {"Pow": 1, "ReduceSum": 1}),
        ("p = Pow(two, x)  y = ReduceSum(p, axes)", {"Pow": 1, "ReduceSum": 1}),
    ],
)
def test_powers_and_lengths(body: str, left: dict[str, int]) -> None:
    model = model_of(
        f"(float[B,S,8] x) => (float[B,S,1] y) {{ {body} }}",
        axes=np.array([-1], np.int64),
        half=np.array([0.5], np.float32),
        minus=np.float32(-1),
        three=np.float32(3),
        **CONSTANTS,
    )
    x = np.abs(normal(2, 3, 8)) + 0.5
    expected = run_by_onnxruntime(model, x=x)
    passes.plain_roots(model)
    assert ops(model) == left
    np.testing.assert_allclose(run_by_onnxruntime(model, x=x), expected, rtol=1e-5)


def test_powers_of_integers_and_of_fewer_dims() -> None:
    whole = model_of("(int32[B] x) => (int32[B] y) { y = Pow(x, n) }", n=np.array([2], np.int64))
    assert passes.plain_roots(whole) == 1
    np.testing.assert_array_equal(run_by_onnxruntime(whole, x=np.array([-3, 4], np.int32)), [9, 16])
    # The result has one dim more than x.
    assert passes.plain_roots(model_of("(float x) => (float[1] y) { y = Pow(x, n) }", n=np.array([2], np.float32))) == 0
    inverse = model_of("(int32[B] x) => (int32[B] y) { y = Div(n, x) }", n=np.int32(1).reshape(()))
    assert passes.plain_roots(inverse) == 0


def test_a_reciprocal_that_is_read_twice_stays() -> None:
    model = model_of(
        "(float[B] x, float[B] a) => (float[B] y, float[B] z) { r = Reciprocal(x) y = Mul(a, r) z = Add(r, x) }"
    )
    assert passes.plain_roots(model) == 0


def test_lengths_of_older_opsets_stay() -> None:
    """ReduceL2 takes its axes as an input since opset 18, ReduceSum since 13."""
    model = model_of(
        "(float[B,S,8] x) => (float[B,S,1] y) { s = Mul(x, x)  v = ReduceSum(s, axes)  y = Sqrt(v) }",
        axes=np.array([-1], np.int64),
    )
    model.opset_imports[""] = 15
    assert passes.plain_roots(model) == 0
