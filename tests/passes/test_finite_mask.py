"""Masks that FP16 cannot hold, in the spellings of models: finite afterwards, with the same softmax."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aot import passes
from tests.passes.test_fold_scale import model_of
from tests.passes.test_limits import ops, run_by_onnxruntime

LOW = np.finfo(np.float32).min
KEEP = np.array([[1, 1, 0, 0], [1, 1, 1, 1]])
SPELLINGS = {
    "where, -inf": ("bool", "m = Where(keep, zero, number)  a = Add(s, m)", -np.inf),
    "where, lowest": ("bool", "m = Where(keep, zero, number)  a = Add(m, s)", LOW),
    "masked_fill": ("bool", "n = Not(keep)  a = Where(n, number, s)", LOW),
    "kept or low": ("bool", "a = Where(keep, s, number)", -np.inf),
    "one less the mask": ("float", "u = Sub(one, keep)  m = Mul(u, number)  a = Add(s, m)", -1e9),
    "one less the mask, lowest": ("float", "u = Sub(one, keep)  m = Mul(number, u)  a = Add(s, m)", LOW),
    "mask less one": ("float", "u = Sub(keep, one)  m = Mul(u, number)  a = Add(s, m)", 1e9),
    "taken off": ("float", "u = Sub(one, keep)  m = Mul(u, number)  a = Sub(s, m)", 1e12),
    "of integers": ("int64", "f = Cast<to = 1>(keep)  u = Sub(one, f)  m = Mul(u, number)  a = Add(s, m)", -1e4 * 1e4),
    "bounded below": ("bool", "m = Where(keep, zero, number)  b = Add(s, m)  a = Max(b, lowest)", LOW),
    "clipped": ("bool", "m = Where(keep, zero, number)  b = Add(s, m)  a = Clip(b, lowest)", LOW),
    "filled": (
        "bool",
        "h = Shape(keep)  f = ConstantOfShape<value = float[1] {-1e38}>(h)  m = Where(keep, zero, f)  a = Add(s, m)",
        0,
    ),
    "negated": ("bool", "m = Where(keep, zero, number)  n = Neg(m)  a = Add(s, n)", -LOW),
}


def draw(kind: str) -> dict[str, Any]:
    scores = np.random.default_rng(0).normal(size=(2, 4)).astype(np.float32) * 5
    return {"s": scores, "keep": KEEP.astype({"bool": bool, "float": np.float32, "int64": np.int64}[kind])}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_spelling_is_finite_in_fp16(spelling: str) -> None:
    kind, body, number = SPELLINGS[spelling]
    weights = {"zero": 0.0, "one": 1.0, "number": number, "lowest": LOW}
    model = model_of(
        f"(float[B,4] s, {kind}[B,4] keep) => (float[B,4] y) {{ {body}  y = Softmax(a) }}",
        **{name: np.float32(value).reshape(()) for name, value in weights.items() if name in body},
    )
    inputs = draw(kind)
    expected = run_by_onnxruntime(model, **inputs)
    before = ops(model)
    assert passes.finite_mask(model) >= 1
    assert ops(model) == before
    held = [
        value.const_value.numpy() for value in model.graph.initializers.values() if value.uses() and value.const_value
    ]
    held += [a.as_tensor().numpy() for node in model.graph for a in node.attributes.values() if a.name == "value"]
    with np.errstate(over="raise"):
        assert all(np.isfinite(one.astype(np.float16)).all() for one in held)
    got = run_by_onnxruntime(model, **inputs)
    np.testing.assert_allclose(got, expected, rtol=1e-6)
    assert not got[KEEP == 0].any()


def test_a_mask_of_weights_is_finite() -> None:
    """A causal mask kept as a buffer."""
    buffer = np.triu(np.full((4, 4), -np.inf, np.float32), 1)
    model = model_of("(float[4,4] s) => (float[4,4] y) { a = Add(s, mask)  y = Softmax(a) }", mask=buffer)
    scores = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)
    expected = run_by_onnxruntime(model, s=scores)
    assert passes.finite_mask(model) == 1
    np.testing.assert_allclose(run_by_onnxruntime(model, s=scores), expected, rtol=1e-6)


def test_scores_that_are_multiplied_with_a_large_number_stay() -> None:
    """Brought within range, the number would make other scores."""
    model = model_of(
        "(float[4,4] q, float[4,4] k) => (float[4,4] y) { m = MatMul(q, k)  a = Mul(m, number)  y = Softmax(a) }",
        number=np.float32(1e5),
    )
    reasons: list[str] = []
    assert passes.finite_mask(model, lambda node, why: reasons.append(why)) == 0
    assert any("more than a mask" in why for why in reasons)


def test_numbers_that_reach_no_softmax_stay() -> None:
    model = model_of("(float[B,4] s) => (float[B,4] y) { a = Add(s, number)  y = Relu(a) }", number=np.float32(-1e9))
    assert passes.finite_mask(model) == 0
