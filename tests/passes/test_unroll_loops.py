"""Loops of a known number of steps: against onnxruntime on the Loop itself, and where they stay."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from aot import passes
from aot.graph import run_passes
from aot.passes.unroll_loops import GROWTH, unroll_loops
from tests.passes.test_limits import ops, parse, refused, run_by_onnxruntime

X = np.random.default_rng(0).normal(size=(2, 4)).astype(np.float32)


def loop(body: str, *, times: str = "n", outputs: str = "z", more: str = "float[B,4] t", given: str = "yes, x") -> str:
    """A Loop over `h`, which begins as x."""
    return f"""{outputs} = Loop ({times}, {given}) <body = b (int64 i, bool go, float[B,4] h) => (bool on, {more})
    {{ {body} }}>"""


def graph(nodes: str, *, n: int = 3, outputs: str = "float[B,4] y", inputs: str = "float[B,4] x") -> str:
    return f"({inputs}) => ({outputs}) <int64 n = {{{n}}}, bool yes = {{1}}, bool no = {{0}}> {{ {nodes} }}"


STEP = "on = Identity(go)  c = Cast<to = 1>(i)  s = Sin(h)  t = Add(s, c)"


@pytest.mark.parametrize("n", [1, 4])
def test_each_step_reads_what_the_last_one_made(n: int) -> None:
    model = parse(graph(f"{loop(STEP)}  y = Neg(z)", n=n))
    expected = run_by_onnxruntime(model, x=X)
    h = X
    for step in range(n):
        h = np.sin(h) + np.float32(step)
    np.testing.assert_allclose(expected, -h, rtol=1e-5)
    assert unroll_loops(model) == 1
    assert ops(model) == {"Cast": n, "Sin": n, "Add": n, "Neg": 1}
    np.testing.assert_allclose(run_by_onnxruntime(model, x=X), expected, rtol=1e-6)
    onnx.checker.check_model(ir.to_proto(model), full_check=True)


@pytest.mark.parametrize("n", [1, 3])
def test_what_it_collects_is_joined_along_a_new_axis(n: int) -> None:
    nodes = loop(f"{STEP}  e = Exp(t)", outputs="y, all", more="float[B,4] t, float[B,4] e")
    model = parse(graph(f"{nodes}  w = Mul(all, all)", n=n, outputs="float[N,B,4] w, float[B,4] y"))
    expected = run_by_onnxruntime(model, x=X)
    assert unroll_loops(model) == 1
    assert ops(model)["Loop"] == 0
    got = run_by_onnxruntime(model, x=X)
    assert got.shape == (n, 2, 4)
    np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_what_passes_through_unchanged_keeps_the_name_of_the_output() -> None:
    model = parse(graph(loop("on = Identity(go)  t = Identity(h)", outputs="y")))
    run_passes(passes.PASSES, model)
    assert [value.name for value in model.graph.outputs] == ["y"]
    assert ops(model) == {"Identity": 1}
    np.testing.assert_array_equal(run_by_onnxruntime(model, x=X), X)


def test_bodies_within_the_body_are_copied_with_it() -> None:
    inner = """m = ReduceSum<keepdims = 0>(h)  p = Greater(m, zero)
    t = If (p) <then_branch = a () => (float[B,4] u) { u = Sin(h) },
                else_branch = c () => (float[B,4] v) { w = Cast<to = 1>(i)  v = Add(h, w) }>"""
    text = graph(f"{loop(f'on = Identity(go)  {inner}')}  y = Neg(z)").replace("<int64 n", "<float zero = {0}, int64 n")
    model = parse(text)
    expected = [run_by_onnxruntime(model, x=x) for x in (X, -X)]
    run_passes(passes.PASSES, model)
    assert (ops(model)["Loop"], ops(model)["If"]) == (0, 3)
    for x, wanted in zip((X, -X), expected, strict=True):
        np.testing.assert_allclose(run_by_onnxruntime(model, x=x), wanted, rtol=1e-5)
    onnx.checker.check_model(ir.to_proto(model), full_check=True)


@pytest.mark.parametrize(
    ("nodes", "options", "reason"),
    [
        (loop(STEP, times="m"), {"inputs": "float[B,4] x, int64 m"}, "how many times it runs is computed"),
        (loop(STEP, given="q, x"), {"inputs": "float[B,4] x, bool q"}, "how many times it runs is computed"),
        (loop(STEP, given="no, x"), {}, "it never runs"),
        (loop(STEP), {"n": 0}, "it never runs"),
        (
            loop("m = ReduceSum<keepdims = 0>(h)  f = Cast<to = 1>(i)  on = Greater(m, f)  t = Sin(h)"),
            {},
            "it may end before the last time",
        ),
        (loop(STEP), {"n": 20}, "unrolled, it would be 75 nodes more"),
    ],
    ids=["times computed", "begun or not", "never", "not once", "ends early", "too many"],
)
def test_what_is_not_known_or_would_grow_stays(nodes: str, options: dict[str, Any], reason: str) -> None:
    assert refused(unroll_loops, graph(f"{nodes}  y = Neg(z)", **options)) == [reason]


def test_the_limit_is_what_the_graph_grows_by() -> None:
    def growing(n: int) -> int:
        return n * 2 - 3  # of two nodes each; the Loop and its body go

    most = max(n for n in range(100) if growing(n) < GROWTH)
    body = "on = Identity(go)  t = Sin(h)"
    assert unroll_loops(parse(graph(f"{loop(body)}  y = Neg(z)", n=most))) == 1
    assert unroll_loops(parse(graph(f"{loop(body)}  y = Neg(z)", n=most + 1))) == 0
