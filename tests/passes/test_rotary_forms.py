"""Rotary position embedding as other models write it, against torch: every form ends in the same few nodes."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch

from aot.graph import infer_shapes, run_passes
from aot.passes import PASSES
from aot.passes.rotary_pairs import rotary_pairs
from aot.passes.rotary_parts import rotary_parts
from tests.passes.test_limits import ops, parse, refused, run_by_onnxruntime
from tests.passes.test_rotary import drawn

Rotate = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def neighbours(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """As GPT-J does, cos and sin of one number a pair."""
    turned = torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
    return x * torch.repeat_interleave(cos, 2, -1) + turned * torch.repeat_interleave(sin, 2, -1)


def elements(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """As Llama's own code does, without complex numbers."""
    a, b = x.unflatten(-1, (x.shape[-1] // 2, 2)).unbind(-1)
    return torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)


def halves(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """As gpt-oss does."""
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Rotated(torch.nn.Module):
    def __init__(self, rotate: Rotate) -> None:
        super().__init__()
        self.rotate = rotate

    def forward(self, q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        return self.rotate(q, cos, sin) @ self.rotate(k, cos, sin).transpose(-1, -2)


BOTH = {"Mul": 4, "Add": 2, "Split": 2, "MatMul": 1, "Transpose": 1}
FORMS: dict[Rotate, dict[str, int]] = {
    # The tables: one repeated, one with signs. The two Reshapes of each part the pairs, and join them again.
    neighbours: {**BOTH, "Concat": 2, "Mul": 5, "Reshape": 4},
    elements: {**BOTH, "Concat": 2, "Mul": 5, "Reshape": 4, "Unsqueeze": 2},
    halves: {**BOTH, "Concat": 4, "Neg": 1},
}


@pytest.mark.parametrize(
    ("rotate", "half"),
    [(neighbours, False), (elements, True), (halves, False)],
    ids=["neighbours", "elements", "halves"],
)
def test_every_form_ends_in_products_with_two_tables(rotate: Rotate, half: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    feed = [torch.randn(2, 3, 5, 8), torch.randn(2, 3, 5, 8), torch.rand(2, 1, 5, 4), torch.rand(2, 1, 5, 4)]
    feed = [x.half() if half else x for x in feed]
    names, file = ["q", "k", "cos", "sin"], tmp_path / "rotated.onnx"
    batch, length = torch.export.Dim("B"), torch.export.Dim("S")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sizes = ({0: batch, 2: length},) * 4
        module = Rotated(rotate)
        torch.onnx.export(module, tuple(feed), file, input_names=names, dynamic_shapes=sizes, verbose=False)
    model = ir.from_proto(onnx.load(file))
    infer_shapes(model)
    run_passes(PASSES, model)
    repeating = {"Gather": 2} if rotate is neighbours else {}  # what makes its tables
    assert ops(model) == {**FORMS[rotate], **repeating}
    got = run_by_onnxruntime(model, **{name: x.numpy() for name, x in zip(names, feed, strict=True)})
    expected = module(*[x.float() for x in feed]).numpy()
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=0.05 if half else 1e-5)


HEAD = "(float[B,S,4] q, float[B,S,4] k, float[1,S,2] c, float[1,S,2] s) => (float[B,S,4] y) <int64[2] two = {2, 2}>"
APART = """{ a, b = Split<axis = -1>(q, two)  m = Mul(a, c)  n = Mul(b, s)  u = Sub(m, n)  o = Mul(b, c)
 p = Mul(a, s)  v = Add(o, p)  x = Concat<axis = -1>(u, v)
 d, e = Split<axis = -1>(k, two)  f = Mul(d, c)  g = Mul(s, e)  h = Sub(f, g)  i = Mul(c, e)  j = Mul(d, s)
 l = Add(j, i)  z = Concat<axis = -1>(h, l)  y = Mul(x, z) }"""


def test_the_numbers_are_the_same_to_the_last_bit() -> None:
    model = parse(HEAD + APART)
    feed = drawn(q=(2, 5, 4), k=(2, 5, 4), c=(1, 5, 2), s=(1, 5, 2))
    expected = run_by_onnxruntime(model, **feed)
    assert rotary_parts(model) == 2
    np.testing.assert_array_equal(run_by_onnxruntime(model, **feed), expected)


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ("u = Sub(m, n)", "u = Sub(n, m)"),
        ("v = Add(o, p)", "v = Sub(o, p)"),
        ("n = Mul(b, s)", "n = Mul(b, c)"),
        ("x = Concat<axis = -1>(u, v)", "x = Concat<axis = -1>(v, u)"),
    ],
    ids=["the other way", "no sum", "one angle", "the other half first"],
)
def test_what_is_no_rotation_stays(was: str, now: str) -> None:
    """One of the two is none, and the other would save nothing alone."""
    alone = "nothing else is rotated by the same angles, so that nothing would be saved"
    assert refused(rotary_parts, HEAD + APART.replace(was, now)) == [alone]


PAIRS = """(float[B,S,4] x, float[B,S,4] sin) => (float[B,S,4] y)
<int64[1] zero = {0}, int64[1] one = {1}, int64[1] all = {9223372036854775807}, int64[1] last = {-1},
 int64[1] two = {2}, int64[3] flat = {0, 0, 4}>
{ e = Slice(x, zero, all, last, two)  o = Slice(x, one, all, last, two)  n = Neg(o)  u = Unsqueeze(n, last)
  v = Unsqueeze(e, last)  c = Concat<axis = -1>(u, v)  r = Reshape(c, flat)  y = Mul(r, sin) }"""


def test_neighbours_change_places_exactly() -> None:
    model = parse(PAIRS)
    feed = drawn(x=(2, 5, 4), sin=(2, 5, 4))
    expected = run_by_onnxruntime(model, **feed)
    assert rotary_pairs(model) == 1
    assert ops(model) == {"Reshape": 2, "Split": 1, "Concat": 1, "Mul": 2}
    np.testing.assert_array_equal(run_by_onnxruntime(model, **feed), expected)


@pytest.mark.parametrize(
    ("was", "now"),
    [("Neg(o)", "Neg(e)"), ("(u, v)", "(v, u)"), ("o = Slice(x, one", "o = Slice(x, zero"), ("Neg(o)", "Abs(o)")],
    ids=["the other one negated", "not swapped", "one of them twice", "nothing negated"],
)
def test_other_orders_of_neighbours_stay(was: str, now: str) -> None:
    assert refused(rotary_pairs, PAIRS.replace(was, now)) == []
