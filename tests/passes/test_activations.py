"""Activations written out, in the spellings of exporters, against torch; and what only looks like one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
from torch.nn import functional

from aot import passes
from aot.graph import Pass
from tests.passes.test_fold_scale import model_of
from tests.passes.test_limits import ops, run_by_onnxruntime

ALL: tuple[Pass, ...] = (
    passes.plain_roots,
    passes.clip_bounds,
    passes.merge_clips,
    passes.erf_gelu,
    passes.tanh_gelu,
    passes.hard_swish,
    passes.sigmoids,
    passes.leaky_relu,
    passes.softmax_parts,
)
NUMBERS = {
    "zero": 0.0,
    "sixth": 1 / 6,
    "tenth": 0.1,
    "half": 0.5,
    "one": 1.0,
    "two": 2.0,
    "three": 3.0,
    "six": 6.0,
    "c": 0.044715,
    "r": np.sqrt(2 / np.pi),
    "rc": 0.044715 * np.sqrt(2 / np.pi),
    "root": np.sqrt(2),
    "minus": -1.0,
    "infinite": -np.inf,
}


def model(body: str, shape: str = "B,3,8", dtype: str = "float", **weights: Any) -> ir.Model:
    kind = np.float16 if dtype == "float16" else np.float32
    numbers = {name: np.asarray(number, kind) for name, number in NUMBERS.items() if name in body}
    return model_of(f"({dtype}[{shape}] x) => ({dtype}[{shape}] y) {{ {body} }}", **{**numbers, **weights})


def left(model: ir.Model) -> dict[str, int]:
    for one in ALL:
        one(model)
    return dict(ops(model))


# The body, the ops that are left, and what torch calls it.
SPELLINGS: dict[str, tuple[str, dict[str, int], Callable[[torch.Tensor], torch.Tensor]]] = {
    "gelu, the half with the error function": (
        "a = Div(x, root)  e = Erf(a)  h = Mul(e, half)  g = Add(h, half)  y = Mul(x, g)",
        {"Gelu": 1},
        functional.gelu,
    ),
    "tanh-gelu of transformers": (
        """p = Pow(x, three)  q = Mul(c, p)  s = Add(x, q)  u = Mul(r, s)  t = Tanh(u)  g = Add(one, t)
        h = Mul(half, x)
        y = Mul(h, g)""",
        {"Gelu": 1},
        lambda x: functional.gelu(x, approximate="tanh"),
    ),
    "tanh-gelu of JAX": (
        """a = Mul(c, x)  b = Mul(x, a)  d = Mul(x, b)  s = Add(x, d)  u = Mul(r, s)  t = Tanh(u)  g = Add(one, t)
        h = Mul(half, g)  y = Mul(x, h)""",
        {"Gelu": 1},
        lambda x: functional.gelu(x, approximate="tanh"),
    ),
    "tanh-gelu, fast": (
        """a = Mul(x, r)  s = Mul(x, x)  k = Mul(s, c)  f = Add(k, one)  u = Mul(a, f)  t = Tanh(u)  g = Add(t, one)
        h = Mul(x, half)  y = Mul(h, g)""",
        {"Gelu": 1},
        lambda x: functional.gelu(x, approximate="tanh"),
    ),
    "tanh-gelu, both coefficients": (
        """s = Mul(x, x)  k = Mul(s, rc)  f = Add(k, r)  u = Mul(x, f)  t = Tanh(u)  h = Mul(t, half)  g = Add(h, half)
        y = Mul(x, g)""",
        {"Gelu": 1},
        lambda x: functional.gelu(x, approximate="tanh"),
    ),
    "hard swish of Paddle": (
        "a = Add(x, three)  g = Clip(a, zero, six)  p = Mul(x, g)  y = Div(p, six)",
        {"HardSwish": 1},
        functional.hardswish,
    ),
    "hard swish of torchscript": (
        "a = Add(x, three)  g = Clip(a, zero, six)  d = Div(g, six)  y = Mul(x, d)",
        {"HardSwish": 1},
        functional.hardswish,
    ),
    "hard swish of TensorFlow": (
        "a = Add(three, x)  b = Max(a, zero)  g = Min(b, six)  p = Mul(g, sixth)  y = Mul(p, x)",
        {"HardSwish": 1},
        functional.hardswish,
    ),
    "hard swish by hard sigmoid": (
        "g = HardSigmoid<alpha = 0.16666667, beta = 0.5>(x)  y = Mul(g, x)",
        {"HardSwish": 1},
        functional.hardswish,
    ),
    "hard swish to 1": (
        "a = Mul(x, sixth)  b = Add(a, half)  g = Clip(b, zero, one)  y = Mul(g, x)",
        {"HardSwish": 1},
        functional.hardswish,
    ),
    "hard sigmoid": (
        "a = Add(x, three)  g = Clip(a, zero, six)  y = Div(g, six)",
        {"HardSigmoid": 1},
        functional.hardsigmoid,
    ),
    "hard sigmoid to 1": (
        "a = Div(x, six)  b = Add(a, half)  y = Clip(b, zero, one)",
        {"HardSigmoid": 1},
        functional.hardsigmoid,
    ),
    "sigmoid": ("a = Neg(x)  e = Exp(a)  s = Add(e, one)  y = Reciprocal(s)", {"Sigmoid": 1}, torch.sigmoid),
    "sigmoid, divided": (
        "a = Mul(x, minus)  e = Exp(a)  s = Add(one, e)  y = Div(one, s)",
        {"Sigmoid": 1},
        torch.sigmoid,
    ),
    "swish": ("a = Neg(x)  e = Exp(a)  s = Add(e, one)  y = Div(x, s)", {"Sigmoid": 1, "Mul": 1}, functional.silu),
    "softplus": ("e = Exp(x)  s = Add(e, one)  y = Log(s)", {"Softplus": 1}, functional.softplus),
    "mish": (
        "e = Exp(x)  s = Add(e, one)  l = Log(s)  t = Tanh(l)  y = Mul(x, t)",
        {"Softplus": 1, "Tanh": 1, "Mul": 1},
        functional.mish,
    ),
    "leaky relu, larger": (
        "a = Mul(tenth, x)  y = Max(a, x)",
        {"LeakyRelu": 1},
        lambda x: functional.leaky_relu(x, 0.1),
    ),
    "leaky relu, chosen": (
        "a = Mul(x, tenth)  p = Less(x, zero)  y = Where(p, a, x)",
        {"LeakyRelu": 1},
        lambda x: functional.leaky_relu(x, 0.1),
    ),
    "leaky relu, halves": (
        "p = Relu(x)  n = Neg(x)  q = Relu(n)  s = Mul(tenth, q)  y = Sub(p, s)",
        {"LeakyRelu": 1},
        lambda x: functional.leaky_relu(x, 0.1),
    ),
    "relu6": ("a = Relu(x)  y = Min(a, six)", {"Clip": 1}, functional.relu6),
    "relu": ("y = Max(x, zero)", {"Relu": 1}, functional.relu),
    "bounds": ("a = Min(x, one)  y = Max(minus, a)", {"Clip": 1}, lambda x: x.clamp(-1, 1)),
    "softmax": (
        "m = ReduceMax(x, last)  d = Sub(x, m)  e = Exp(d)  s = ReduceSum(e, last)  y = Div(e, s)",
        {"Softmax": 1},
        lambda x: x.softmax(-1),
    ),
    "softmax, not moved": (
        "e = Exp(x)  s = ReduceSum(e, middle)  y = Div(e, s)",
        {"Softmax": 1},
        lambda x: x.softmax(1),
    ),
    "softmax, axes dropped": (
        """m = ReduceMax<keepdims = 0>(x, last)  f = Max(infinite, m)  n = Unsqueeze(f, last)  d = Sub(x, n)  e = Exp(d)
        s = ReduceSum<keepdims = 0>(e, last)  t = Unsqueeze(s, last)  y = Div(e, t)""",
        {"Softmax": 1},
        lambda x: x.softmax(-1),
    ),
    "log of softmax": ("s = ReduceLogSumExp(x, last)  y = Sub(x, s)", {"LogSoftmax": 1}, lambda x: x.log_softmax(-1)),
    "mean": (
        "s = ReduceSum(x, last)  m = Mul(s, eighth)  y = Sub(x, m)",
        {"ReduceMean": 1, "Sub": 1},
        lambda x: x - x.mean(-1, keepdim=True),
    ),
}
AXES = {"last": np.array([-1], np.int64), "middle": np.array([1], np.int64), "eighth": np.float32(1 / 8)}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_spelling(spelling: str) -> None:
    body, expected, reference = SPELLINGS[spelling]
    graph = model(body, **{name: value for name, value in AXES.items() if name in body})
    assert left(graph) == expected
    x = np.linspace(-9, 9, 48, dtype=np.float32).reshape(2, 3, 8)
    got = run_by_onnxruntime(graph, x=x)
    np.testing.assert_allclose(got, reference(torch.from_numpy(x)).numpy(), rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize(
    "body",
    [
        "a = Div(x, root)  e = Erf(a)  g = Add(e, one)  y = Mul(x, g)",
        "a = Div(x, root)  e = Erf(a)  g = Add(e, two)  h = Mul(x, half)  y = Mul(h, g)",
        "a = Div(x, root)  e = Erf(a)  g = Add(e, one)  h = Mul(a, half)  y = Mul(h, g)",
        "p = Mul(x, x)  q = Mul(c, p)  s = Add(x, q)  u = Mul(r, s)  t = Tanh(u)  g = Add(one, t)  h = Mul(half, x)"
        " y = Mul(h, g)",
        "t = Tanh(x)  g = Add(one, t)  h = Mul(half, x)  y = Mul(h, g)",
        "a = Add(x, two)  g = Clip(a, zero, six)  p = Mul(x, g)  y = Div(p, six)",
        "a = Add(x, three)  g = Clip(a, one, six)  p = Mul(x, g)  y = Div(p, six)",
        "a = Add(x, three)  g = Clip(a, zero, six)  p = Mul(x, g)  y = Div(p, three)",
        "g = HardSigmoid(x)  y = Mul(g, x)",
        "e = Exp(x)  s = Add(e, one)  y = Reciprocal(s)",
        "a = Neg(x)  e = Exp(a)  s = Add(e, two)  y = Reciprocal(s)",
        "a = Neg(x)  e = Exp(a)  s = Add(e, one)  y = Div(s, x)",
        "a = Mul(x, two)  y = Max(a, x)",
        "a = Mul(x, tenth)  y = Min(a, x)",
        "a = Mul(x, tenth)  p = Greater(x, zero)  y = Where(p, a, x)",
        "a = Mul(x, tenth)  p = Greater(x, one)  y = Where(p, x, a)",
        "p = Relu(x)  q = Relu(p)  s = Mul(tenth, q)  y = Sub(s, p)",
        "e = Exp(x)  s = ReduceSum(e, both)  y = Div(e, s)",
        "e = Exp(x)  f = Exp(e)  s = ReduceSum(e, last)  y = Div(f, s)",
        "s = ReduceSum(x, last)  m = Mul(s, tenth)  y = Sub(x, m)",
    ],
)
def test_what_only_looks_like_one_keeps_its_numbers(body: str) -> None:
    """Whatever is left is right; and none of it is the activation."""
    axes = {**AXES, "both": np.array([1, 2], np.int64)}
    graph = model(body, **{name: value for name, value in axes.items() if name in body})
    x = np.linspace(-3, 3, 48, dtype=np.float32).reshape(2, 3, 8)
    expected = run_by_onnxruntime(graph, x=x)
    names = {"Gelu", "HardSwish", "Sigmoid", "LeakyRelu", "Softmax", "ReduceMean"}
    assert not names & left(graph).keys()
    np.testing.assert_allclose(run_by_onnxruntime(graph, x=x), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("flat", ["Flatten<axis = 2>(x)", "Reshape(x, rows)"])
def test_rows_of_a_softmax_are_not_laid_out(flat: str) -> None:
    graph = model(
        f"f = {flat}  s = Softmax<axis = -1>(f)  h = Shape(x)  y = Reshape(s, h)", rows=np.array([-1, 8], np.int64)
    )
    assert left(graph) == {"Softmax": 1}
    x = np.linspace(-9, 9, 48, dtype=np.float32).reshape(2, 3, 8)
    np.testing.assert_allclose(run_by_onnxruntime(graph, x=x), torch.from_numpy(x).softmax(-1).numpy(), rtol=1e-5)


def test_rows_of_another_length_are() -> None:
    graph = model("f = Flatten(x)  s = Softmax<axis = -1>(f)  h = Shape(x)  y = Reshape(s, h)")
    assert passes.softmax_parts(graph) == 0


def test_slopes_of_channels_are_a_prelu() -> None:
    graph = model(
        "p = Relu(x)  n = Neg(x)  q = Relu(n)  s = Mul(q, t)  y = Add(s, p)", t=np.float32([[-0.1], [0], [2]])
    )
    assert left(graph) == {"PRelu": 1}
    x = np.linspace(-9, 9, 48, dtype=np.float32).reshape(2, 3, 8)
    expected = functional.prelu(torch.from_numpy(x), torch.tensor([0.1, 0, -2]))
    np.testing.assert_allclose(run_by_onnxruntime(graph, x=x), expected.numpy(), rtol=1e-6)


def test_numbers_in_fp16_have_the_digits_of_fp16() -> None:
    body = SPELLINGS["tanh-gelu of transformers"][0]
    assert left(model(body, dtype="float16")) == {"Gelu": 1}


def test_numbers_that_add_a_dim_stay() -> None:
    """Gelu of [B] has one dim, the product two."""
    body = "a = Div(x, root)  e = Erf(a)  g = Add(e, one)  h = Mul(x, g)  y = Mul(h, halves)"
    graph = model_of(f"(float[B] x) => (float[1,B] y) {{ {body} }}", root=np.sqrt(2), one=1, halves=[[0.5]])
    assert passes.erf_gelu(graph) == 0


def test_an_activation_that_is_needed_in_parts_keeps_them() -> None:
    graph = model_of(
        """(float[B] x) => (float[B] y, float[B] g)
        { a = Add(x, three)  g = Clip(a, zero, six)  p = Mul(x, g)  y = Div(p, six) }""",
        zero=0.0,
        three=3.0,
        six=6.0,
    )
    assert passes.hard_swish(graph) == 0


@pytest.mark.parametrize("name", ["erf_gelu", "tanh_gelu"])
def test_an_operator_of_a_later_opset_is_not_used(name: str) -> None:
    spelling = {"erf_gelu": "gelu, the half with the error function", "tanh_gelu": "tanh-gelu of JAX"}
    graph = model(SPELLINGS[spelling[name]][0])
    graph.opset_imports[""] = 19
    assert getattr(passes, name)(graph) == 0


def test_hard_swish_before_its_operator_is_a_product() -> None:
    graph = model(SPELLINGS["hard swish of Paddle"][0])
    graph.opset_imports[""] = 13
    assert passes.hard_swish(graph) == 1
    assert ops(graph) == {"HardSigmoid": 1, "Mul": 1}
    x = np.linspace(-9, 9, 48, dtype=np.float32).reshape(2, 3, 8)
    expected = functional.hardswish(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(run_by_onnxruntime(graph, x=x), expected, rtol=2e-5, atol=1e-6)


def test_integers_have_no_bounds_of_clip() -> None:
    graph = model_of("(int32[B] x) => (int32[B] y) { y = Max(x, n) }", n=np.int32(3).reshape(()))
    assert passes.clip_bounds(graph) == 0
