"""Attention's two products: quantized together, in the form that a fused kernel takes, or not at all."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from aot.config import Placement, Recipe
from tests.precision.graphs import Array, converted, graph, observe, ops, precisions, reasons, run

rng = np.random.default_rng(2)
HEADS, HEAD, TOKENS = 2, 32, 16

# [batch, heads, tokens, head]; q comes scaled, k transposed, as surgery leaves them.
BODY = """g (float[B, 2, T, 32] q, float[B, 2, 32, T] k, float[B, 2, T, 32] v, float[B, 1, 1, T] m)
=> (float[B, 2, T, 32] y)
{ r = Mul(q, scale)  s = MatMul(r, k)  a = Add(s, m)  p = Softmax <axis = -1> (a)  y = MatMul(p, v) }"""
SCALE = {"scale": np.array(HEAD**-0.5, np.float32)}


def feeds() -> dict[str, Array]:
    def normal(*shape: int) -> Array:
        return rng.standard_normal((1, HEADS, *shape)).astype(np.float32)

    mask = np.zeros((1, 1, 1, TOKENS), np.float32)
    return {"q": normal(TOKENS, HEAD), "k": normal(HEAD, TOKENS), "v": normal(TOKENS, HEAD), "m": mask}


def recipe(form: str = "fp8", compute: str = "fp32", **placement: Any) -> Recipe:
    options = Placement(**{"attention": True, "min_channels": 16, **placement})
    return Recipe(precision=form, compute=compute, placement=options)  # type: ignore[arg-type]


def fp8(array: Array, amax: float) -> Array:
    rounded: Array = np.clip(array / (amax / 448), -448, 448).astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
    return rounded * np.float32(amax / 448)


def test_q_is_quantized_behind_its_scale_and_so_are_k_v_and_the_softmax() -> None:
    made, data = graph(BODY, 20, **SCALE), feeds()
    model, outcome = converted(made, recipe(), observe(made, data))
    assert precisions(outcome) == {"r": "fp32", "s": "fp8", "a": "fp32", "p": "fp32", "y": "fp8"}
    assert ops(model).count("QuantizeLinear") == 4
    q = data["q"] * SCALE["scale"]
    scores = fp8(q, float(np.abs(q).max())) @ fp8(data["k"], float(np.abs(data["k"]).max()))
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    shares /= shares.sum(-1, keepdims=True)
    # The scale of a softmax does not come from the data: shares reach 1.
    expected = fp8(shares, 1.0) @ fp8(data["v"], float(np.abs(data["v"]).max()))
    np.testing.assert_allclose(run(model, data)["y"], expected, rtol=2e-2, atol=2e-3)


def test_int8_takes_the_softmax_as_it_was_seen() -> None:
    """Its steps do not shrink with the value, so room that nothing uses costs accuracy."""
    made, data = graph(BODY, 20, **SCALE), feeds()
    _, outcome = converted(made, recipe("int8"), {**observe(made, data), "p": 0.254})
    assert "p reached 0.254, scale 0.002;" in reasons(outcome)["y"] + ";"


def test_both_products_stay_wide_where_one_must() -> None:
    made, data = graph(BODY, 20, **SCALE), feeds()
    amax = observe(made, data)
    _, outcome = converted(made, recipe(keep=("y",)), amax)
    assert set(precisions(outcome).values()) == {"fp32"}
    assert reasons(outcome)["y"] == "the recipe keeps 'y' wide"
    assert reasons(outcome)["s"] == "the other product of its attention stays wide: the recipe keeps 'y' wide"
    del amax["v"]
    assert "v was not observed" in reasons(converted(made, recipe(), amax)[1])["s"]


@pytest.mark.parametrize(
    ("head", "tokens", "form", "reason"),
    [
        (8, 32, "fp8", "8 input channels, fewer than 16"),
        (40, 32, "fp8", "multiples of 16 (40 to 32 here)"),
        (512, 32, "fp8", "heads of at most 256 elements (512 here)"),
        (64, 1024, "int8", "at most 512 tokens (1024 here)"),
        (64, 1024, "fp8", ""),
        (64, 512, "int8", ""),
    ],
)
def test_what_fused_attention_takes(head: int, tokens: int, form: str, reason: str) -> None:
    body = f"""g (float[1, {tokens}, {head}] q, float[1, {head}, {tokens}] k, float[1, {tokens}, {head}] v)
    => (float[1, {tokens}, {head}] y) {{ s = MatMul(q, k)  p = Softmax <axis = -1> (s)  y = MatMul(p, v) }}"""
    amax = {"q": 1.0, "k": 1.0, "v": 1.0, "s": 9.0, "p": 1.0, "y": 1.0}
    _, outcome = converted(graph(body), recipe(form, "fp16"), amax)
    assert {precisions(outcome)["s"], precisions(outcome)["y"]} == {"fp16" if reason else form}
    assert reason in reasons(outcome)["s"]
    assert reason in reasons(outcome)["y"]


def test_a_product_of_activations_outside_attention_stays_wide() -> None:
    body = "g (float[B, 32, 32] a, float[B, 32, 32] b) => (float[B, 32, 32] y) { y = MatMul(a, b) }"
    _, outcome = converted(graph(body), recipe("fp8", "fp16"), {"a": 1.0, "b": 1.0, "y": 9.0})
    assert reasons(outcome) == {"y": "both operands are activations, and it is no part of an attention"}
