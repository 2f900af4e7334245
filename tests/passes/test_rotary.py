"""Rotary position embedding, against transformers' own and onnxruntime."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch

from aot.graph import infer_shapes, run_passes
from aot.passes import PASSES
from aot.passes.rotary import rotary_form, rotary_scale, rotate_together
from tests.passes.test_limits import ops, parse, refused, run_by_onnxruntime


class Rotated(torch.nn.Module):
    """Queries and keys with `rotate_half` as transformers has it."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        q, k = (x * cos + torch.cat((-x[..., 4:], x[..., :4]), -1) * sin for x in (q, k))
        return 0.5 * q @ k.transpose(-1, -2)


@pytest.mark.parametrize("dynamo", [True, False], ids=["dynamo", "torchscript"])
def test_both_exports_of_rotate_half(dynamo: bool, tmp_path: Path) -> None:
    feed = [torch.randn(2, 3, 5, 8), torch.randn(2, 3, 5, 8), torch.rand(1, 1, 5, 8), torch.rand(1, 1, 5, 8)]
    names, file = ["q", "k", "cos", "sin"], tmp_path / "rotated.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if dynamo:
            torch.onnx.export(Rotated(), tuple(feed), file, dynamo=True, input_names=names, verbose=False)
        else:
            torch.onnx.export(Rotated(), tuple(feed), file, dynamo=False, input_names=names)
    model = ir.from_proto(onnx.load(file))
    infer_shapes(model)
    run_passes(PASSES, model)
    assert rotary_form(model) + ops(model)["Neg"] == 0
    assert (ops(model)["Split"], ops(model)["Concat"], ops(model)["Slice"]) == (2, 2, 0)
    got = run_by_onnxruntime(model, **{name: x.numpy() for name, x in zip(names, feed, strict=True)})
    np.testing.assert_allclose(got, Rotated()(*feed).numpy(), rtol=1e-4, atol=1e-5)


ROTATED = """
{ p = Mul(x, cos)  l = Slice(x, a, b, last)  u = Slice(x, b, c, last)  n = Neg(u)  h = Concat<axis = -1>(n, l)
  q = Mul(h, sin)  y = Add(p, q) }"""
HEAD = """(float[B,2,S,4] x, float[1,1,S,4] cos, float[1,1,S,4] sin) => (float[B,2,S,4] y)
<int64[1] a = {0}, int64[1] b = {2}, int64[1] c = {9223372036854775807}, int64[1] last = {3}, int64[1] one = {1}>"""


def drawn(**shapes: tuple[int, ...]) -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def test_seven_nodes_become_five() -> None:
    model = parse(HEAD + ROTATED)
    x, tables = (
        np.random.default_rng(0).normal(size=(2, 2, 5, 4)),
        np.random.default_rng(1).normal(size=(2, 1, 1, 5, 4)),
    )
    feed = {"x": x.astype(np.float32), "cos": tables[0].astype(np.float32), "sin": tables[1].astype(np.float32)}
    expected = run_by_onnxruntime(model, **feed)
    assert rotary_form(model) == 1
    # The one more is sin with its signs, which all layers share.
    assert ops(model) == {"Mul": 3, "Split": 1, "Concat": 1, "Add": 1}
    np.testing.assert_allclose(run_by_onnxruntime(model, **feed), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("was", "now"),
    [("n = Neg(u)  h = Concat<axis = -1>(n, l)", "n = Neg(l)  h = Concat<axis = -1>(u, n)"), ("x, a, b", "x, one, b")],
    ids=["the other half negated", "no half"],
)
def test_what_is_no_rotation_stays(was: str, now: str) -> None:
    text = HEAD + ROTATED.replace(was, now)
    if "one" in now:
        text = text.replace("l = Slice(x, one, b, last)", "s = Slice(x, one, b, last)  l = Concat<axis = -1>(s, s)")
    assert refused(rotary_form, text) == []


def test_a_scale_moves_in_front_of_the_rotation() -> None:
    model = parse(
        HEAD.replace("x, float", "w, float").replace("int64[1] one", "float half = {0.5}, int64[1] one")
        + ROTATED.replace("{ p", "{ x = Relu(w)  p").replace("y = Add", "r = Add").replace("}", " y = Mul(r, half) }")
    )
    rng = np.random.default_rng(0)
    feed = {
        "w": rng.normal(size=(2, 2, 5, 4)),
        "cos": rng.normal(size=(1, 1, 5, 4)),
        "sin": rng.normal(size=(1, 1, 5, 4)),
    }
    feed = {name: data.astype(np.float32) for name, data in feed.items()}
    expected = run_by_onnxruntime(model, **feed)
    assert rotary_scale(model) == 1
    (scaled,) = (node for node in model.graph if node.op_type == "Mul" and node.inputs[0] is model.graph[0].outputs[0])
    assert scaled.inputs[1] is model.graph.initializers["half"]
    np.testing.assert_allclose(run_by_onnxruntime(model, **feed), expected, rtol=1e-5)


def test_queries_and_keys_that_lie_together_are_rotated_once() -> None:
    rotated = "  ".join(
        f"{n}p = Mul({n}, cos)  {n}l, {n}u = Split<axis = -1>({n}, two)  {n}h = Concat<axis = -1>({n}u, {n}l)"
        f"  {n}q = Mul({n}h, sin)  {n}r = Add({n}p, {n}q)"
        for n in "qk"
    )
    model = parse(
        f"""(float[B,4,S,4] x, float[1,S,4] cos, float[1,S,4] sin) => (float[B,2,S,4] y)
        <int64[3] heads = {{2, 1, 1}}, int64[2] two = {{2, 2}}>
        {{ q, k, v = Split<axis = 1>(x, heads)  {rotated}  m = Mul(qr, kr)  y = Add(m, v) }}"""
    )
    feed = drawn(x=(2, 4, 5, 4), cos=(1, 5, 4), sin=(1, 5, 4))
    expected = run_by_onnxruntime(model, **feed)
    assert rotate_together(model) == 1
    assert ops(model) == {"Split": 3, "Mul": 3, "Concat": 1, "Add": 2}
    np.testing.assert_allclose(run_by_onnxruntime(model, **feed), expected, rtol=1e-6)


def test_tables_that_are_inputs_of_a_loops_body_stay_inside() -> None:
    body = (
        "{ p = Mul(x, cos)  l = Slice(x, a, b, last)  u = Slice(x, b, c, last)  n = Neg(u)  h = Concat<axis = -1>(n, l)"
        "  q = Mul(h, sin)  y = Add(p, q)  keep = Identity(go)  next = Identity(sin) }"
    )
    model = parse(f"""(float[2,2,5,4] x, float[1,1,5,4] cos, float[1,1,5,4] table, bool start) => (float[1,1,5,4] z)
    <int64[1] a = {{0}}, int64[1] b = {{2}}, int64[1] c = {{4}}, int64[1] last = {{3}}, int64 times = {{2}}>
    {{ z, all = Loop<body = g (int64 i, bool go, float[1,1,5,4] sin)
                            => (bool keep, float[1,1,5,4] next, float[2,2,5,4] y) {body}>(times, start, table) }}""")
    rotary_form(model)
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
