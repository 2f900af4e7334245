"""An If whose readers take the rank of one of its branches only; and where both will do, or none says."""

from __future__ import annotations

import numpy as np
import pytest

from aot import passes
from tests.passes.test_chains import ops, parse, run

SQUEEZED = """s = Shape<start = 2>(x)  r = Squeeze(s)  c = Equal(s, one)
  z0 = If (c) <then_branch = t () => (float[B,3] p) { p = Squeeze(x, at) },
               else_branch = e () => (float[B,3,T] q) { q = Identity(x) }>"""


def text(reader: str, outputs: str = "float[B,2,1] y") -> str:
    return f"""(float[B,3,T] x) => ({outputs})
    <int64[1] last = {{-1}}, int64[1] at = {{2}}, int64[1] one = {{1}}, int64[1] zero = {{0}},
     float[2,3,1] w = {{1, 2, 3, 4, 5, 6}}> {{ {SQUEEZED} {reader} }}"""


@pytest.mark.parametrize(
    "reader",
    ["u = Unsqueeze(z0, last)  y = Conv(u, w)", "v = Relu(z0)  u = Unsqueeze(v, last)  k = Exp(u)  y = Conv(k, w)"],
)
def test_a_convolution_takes_one_rank(reader: str) -> None:
    model, before = parse(text(reader)), parse(text(reader))
    assert passes.possible_branches(model) == 1
    assert "If" not in ops(model)
    x = np.random.default_rng(0).normal(size=(2, 3, 1)).astype(np.float32)
    np.testing.assert_array_equal(run(model, x=x)[0], run(before, x=x)[0])


def test_a_convolution_of_the_value_itself_takes_the_other_rank() -> None:
    model = parse(text("y = Conv(z0, w)", "float[B,2,T] y"))
    assert passes.possible_branches(model) == 1
    assert "If" not in ops(model)
    x = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
    expected = run(parse(text("y = Conv(z0, w)", "float[B,2,T] y")), x=x)[0]
    np.testing.assert_array_equal(run(model, x=x)[0], expected)


def test_a_value_that_nothing_asks_the_rank_of_keeps_its_if() -> None:
    assert passes.possible_branches(parse(text("y = Relu(z0)", "float[A] y"))) == 0


def test_branches_of_one_rank_stay() -> None:
    reader = """q0 = If (c) <then_branch = t2 () => (float[B,3,T] p2) { p2 = Relu(x) },
                            else_branch = e2 () => (float[B,3,T] q2) { q2 = Neg(x) }>  y = Conv(q0, w)"""
    model = parse(text(reader, "float[B,2,T] y").replace(SQUEEZED, "s = Shape<start = 2>(x)  c = Equal(s, one)"))
    assert passes.possible_branches(model) == 0


def test_an_if_that_hangs_on_another_is_decided_from_behind() -> None:
    """What torch.onnx.export makes of a cell of one step: a squeeze, and an unsqueeze where the rank is not 2."""
    reader = """f = Shape(z0)  g = Size(f)  two = Add(one, one)  k = Equal(g, two)  n = Not(k)
    z1 = If (n) <then_branch = t2 () => (float[A,C,3] p2) { p2 = Unsqueeze(z0, zero) },
                 else_branch = e2 () => (float[A,3] q2) { q2 = Identity(z0) }>
    u = Unsqueeze(z1, last)  y = Conv(u, w)"""
    model = parse(text(reader))
    assert passes.possible_branches(model) == 2
    assert "If" not in ops(model)
    x = np.random.default_rng(0).normal(size=(2, 3, 1)).astype(np.float32)
    expected = np.einsum("oc,bct->bot", np.arange(1, 7, dtype=np.float32).reshape(2, 3), x)
    np.testing.assert_allclose(run(model, x=x)[0], expected, rtol=1e-5)
