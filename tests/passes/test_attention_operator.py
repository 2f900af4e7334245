"""Which attention becomes the operator, with what inputs, and what is left alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.reference
import onnx_ir as ir
import pytest

from aot.passes.attention_operator import attention_operator
from tests.passes.test_limits import parse, refused

NONE = """(float16[B,2,L,32] q, float16[B,S,2,32] k, float16[B,2,S,32] v) => (float16[B,2,L,32] y)
{ t = Transpose<perm = [0, 2, 3, 1]>(k)  a = MatMul(q, t)  p = Softmax(a)  y = MatMul(p, v) }"""
# `no` is -30000, by its bits.
CAUSAL = """(float16[B,2,L,32] q, float16[B,2,32,S] k, float16[B,2,S,32] v) => (float16[B,2,L,32] y)
<int64 zero = {0}, int64 one = {1}, int64[1] front = {0}, int64[1] side = {1}, float16 yes = {0},
 float16 no = {63315}>
{
    ls = Shape<start = -2, end = -1>(q)  l = Squeeze(ls, front)  rows = Range(zero, l, one)  r = Unsqueeze(rows, side)
    ss = Shape<start = -2, end = -1>(v)  s = Squeeze(ss, front)  columns = Range(zero, s, one)
    seen = GreaterOrEqual(r, columns)  m = Where(seen, yes, no)
    a = MatMul(q, k)  b = Add(a, m)  p = Softmax(b)  y = MatMul(p, v)
}"""


def joined(text: str) -> tuple[ir.Model, ir.Node]:
    model = parse(text)
    assert attention_operator(model) == 1
    (node,) = [node for node in model.graph if node.op_type == "Attention"]
    return model, node


def run(model: ir.Model, **inputs: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    (got,) = onnx.reference.ReferenceEvaluator(ir.to_proto(model)).run(None, inputs)
    return np.asarray(got, np.float32)


def attention(q: Any, k: Any, v: Any, mask: Any = 0.0) -> np.ndarray[Any, Any]:
    """q [B, H, L, E], k and v [B, H, S, E], in float64."""
    scores = q.astype(np.float64) @ np.swapaxes(k.astype(np.float64), -1, -2) + mask
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.asarray(weights / weights.sum(-1, keepdims=True) @ v)


def draw(*shape: int, seed: int) -> np.ndarray[Any, Any]:
    return (np.random.default_rng(seed).normal(size=shape) / 2).astype(np.float16)


def test_keys_are_taken_from_in_front_of_their_transpose() -> None:
    model, node = joined(NONE)
    keys = node.inputs[1]
    assert keys is not None
    assert [size if isinstance(size, int) else size.value for size in keys.shape or ()] == ["B", 2, "S", 32]
    q, k, v = draw(2, 2, 3, 32, seed=1), draw(2, 5, 2, 32, seed=2), draw(2, 2, 5, 32, seed=3)
    np.testing.assert_allclose(run(model, q=q, k=k, v=v), attention(q, k.swapaxes(1, 2), v), atol=4e-3)


@pytest.mark.parametrize("keys", ["L", "S"])
def test_a_causal_mask_is_said_only_with_as_many_queries_as_keys(keys: str) -> None:
    """Elsewhere the mask is given: builders count the positions of queries from different ends."""
    model, node = joined(CAUSAL.replace("S]", f"{keys}]").replace("S,32]", f"{keys},32]"))
    assert ("is_causal" in node.attributes, len(node.inputs)) == ((True, 3) if keys == "L" else (False, 4))
    length = 3 if keys == "S" else 5
    q, k, v = draw(2, 2, length, 32, seed=1), draw(2, 2, 32, 5, seed=2), draw(2, 2, 5, 32, seed=3)
    mask = np.where(np.tri(length, 5, dtype=bool), 0.0, -np.inf)
    np.testing.assert_allclose(run(model, q=q, k=k, v=v), attention(q, k.swapaxes(-1, -2), v, mask), atol=4e-3)


PLAIN = """(float16[B,2,L,32] q, float16[B,2,32,S] k, float16[B,2,S,32] v, float16[MASK] m) => (float16[B,2,L,32] y)
{ a = MatMul(q, k)  b = Add(a, m)  p = Softmax(b)  y = MatMul(p, v) }"""
SHAPE = "the mask has another shape than the scores"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"float16": "float", "MASK": "L,S"}, "it is not in FP16 or BF16 throughout"),
        ({"32": "8", "MASK": "L,S"}, "its heads have the sizes 8, 8, 8"),
        ({"32": "34", "MASK": "L,S"}, "its heads have the sizes 34, 34, 34"),
        ({"32": "512", "MASK": "L,S"}, "its heads have the sizes 512, 512, 512"),
        ({"S,32] v": "S,64] v", "32] y": "64] y", "MASK": "L,S"}, "its heads have the sizes 32, 32, 64"),
        ({"B,2,32,S": "B,1,32,S", "MASK": "L,S"}, "its batch or heads are broadcast, or not known"),
        ({"B,2,32,S": "1,2,32,S", "MASK": "L,S"}, "its batch or heads are broadcast, or not known"),
        ({"B,2,": "B,", "MASK": "L,S"}, "its tensors are not all of rank 4"),
        ({"MASK": "B,1,L,1"}, SHAPE),  # the operator would fill such a row up, not repeat it
        ({"MASK": "X,S"}, SHAPE),
        ({"MASK": "B,L,S"}, "the mask has neither rank 2 nor rank 4"),
    ],
)
def test_what_the_operator_cannot_take_stays(changes: dict[str, str], reason: str) -> None:
    text = PLAIN
    for old, new in changes.items():
        text = text.replace(old, new)
    assert refused(attention_operator, text) == [reason]


@pytest.mark.parametrize("mask", ["L,S", "1,S", "B,1,1,S", "B,2,L,S", "1,1,L,S"])
def test_masks_that_repeat_over_all_but_the_keys_are_taken(mask: str) -> None:
    _, node = joined(PLAIN.replace("MASK", mask))
    given = node.inputs[3]
    assert given is not None
    assert given.shape is not None
    assert len(given.shape) == 4


@pytest.mark.parametrize(
    "text",
    [
        NONE.replace("(float16[B,2,L,32] y)", "(float16[B,2,L,32] y, float16[B,2,L,S] p)"),
        NONE.replace("(float16[B,2,L,32] y)", "(float16[B,2,L,32] y, float16[B,2,L,S] a)"),
        NONE.replace("Softmax(a)", "Softmax<axis = 2>(a)"),
    ],
    ids=["weights returned", "scores returned", "another axis"],
)
def test_what_is_no_attention_stays(text: str) -> None:
    assert attention_operator(parse(text)) == 0


@pytest.mark.parametrize("query", ["x", "q"])
def test_one_tensor_in_two_places_stays(query: str) -> None:
    """With one tensor in all three places the vendor's builder was seen to end the process."""
    text = f"""(float16[B,2,S,32] x, float16[B,2,S,32] q) => (float16[B,2,S,32] y)
    {{ t = Transpose<perm = [0, 1, 3, 2]>(x)  a = MatMul({query}, t)  p = Softmax(a)  y = MatMul(p, x) }}"""
    assert refused(attention_operator, text) == ["one tensor is used twice"]
