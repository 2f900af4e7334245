"""Chains of views: how many are left, with the elements where onnxruntime puts them for the chain as it was."""

from __future__ import annotations

import itertools
import random

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from aot.graph import infer_shapes
from aot.passes.view_chains import view_chains
from tests.passes.test_limits import ops, parse, refused, run_by_onnxruntime


@pytest.mark.parametrize(
    ("shape", "body", "left"),
    [
        # The heads of torch's nn.MultiheadAttention: sequence first, batch and heads joined and split again.
        (
            "7,B,8",
            """<int64[3] a = {0, -1, 2}, int64[4] b = {-1, 4, 7, 2}>
            { r = Reshape(x, a)  t = Transpose<perm = [1, 0, 2]>(r)  y = Reshape(t, b) }""",
            ["Reshape", "Transpose"],
        ),
        # Its packed projection: an axis added in front, brought to the back and dropped.
        (
            "7,B,6",
            """<int64[4] a = {0, 0, 3, 2}, int64[1] first = {0}, int64[1] last = {-2}>
            { r = Reshape(x, a)  u = Unsqueeze(r, first)  t = Transpose<perm = [3, 1, 2, 0, 4]>(u)
              y = Squeeze(t, last) }""",
            ["Reshape", "Transpose"],
        ),
        # A transpose of dims of size 1 between reshapes, as one head leaves it.
        (
            "B,1,9,4",
            """<int64[3] a = {0, 0, 4}> { t = Transpose<perm = [0, 2, 1, 3]>(x)  y = Reshape(t, a) }""",
            ["Squeeze"],
        ),
        # Back and forth.
        (
            "B,6,4",
            """<int64[4] a = {0, 2, 3, 4}, int64[3] b = {0, 6, 4}> { r = Reshape(x, a)  s = Reshape(r, b)
              y = Relu(s) }""",
            ["Relu"],
        ),
        # Two dynamic dims, which a Reshape could not be told.
        ("B,S", """<int64[1] a = {1}, int64[1] b = {1}> { u = Unsqueeze(x, a)  y = Unsqueeze(u, b) }""", ["Unsqueeze"]),
        # Channels that are shuffled in two steps.
        (
            "B,8,9",
            """<int64[4] a = {0, 2, 4, 9}, int64[3] b = {0, 8, 9}>
            { r = Reshape(x, a)  t = Transpose<perm = [0, 2, 1, 3]>(r)  s = Reshape(t, b)
              u = Transpose<perm = [0, 2, 1]>(s)  v = Transpose<perm = [0, 2, 1]>(u)  y = Reshape(v, b) }""",
            ["Reshape", "Transpose", "Reshape"],
        ),
    ],
    ids=["heads", "packed", "one head", "there and back", "two dynamic dims", "shuffle"],
)
def test_the_fewest_views_are_left(shape: str, body: str, left: list[str]) -> None:
    rank = {"7,B,8": 4, "7,B,6": 4, "B,S": 4}.get(shape, 3)
    model = parse(f"(float[{shape}] x) => (float[{','.join('NMLK'[:rank])}] y) {body}")
    x = np.random.default_rng(0).normal(size=eval(shape.replace("B", "3").replace("S", "5"))).astype(np.float32)
    expected = run_by_onnxruntime(model, x=x)
    assert view_chains(model) == 1
    assert [node.op_type for node in model.graph] == left
    np.testing.assert_array_equal(run_by_onnxruntime(model, x=x), expected)


def test_a_value_in_between_that_others_read_stays() -> None:
    text = """(float[B,6] x) => (float[6,B] t, float[B,6] y)
    { t = Transpose<perm = [1, 0]>(x)  y = Transpose<perm = [1, 0]>(t) }"""
    assert refused(view_chains, text) == []


def test_a_reshape_across_dims_that_have_no_common_factor_stays() -> None:
    text = """(float[B,6,4] x) => (float[B,8,3] y) <int64[3] a = {0, 8, 3}, int64[3] b = {0, 3, 8}>
    { t = Transpose<perm = [0, 2, 1]>(x)  r = Reshape(t, a)  u = Transpose<perm = [0, 2, 1]>(r)  y = Reshape(u, a) }"""
    assert refused(view_chains, text) == []


@pytest.mark.parametrize("seed", range(40))
def test_random_chains_keep_every_element_in_its_place(seed: int) -> None:
    """Reshapes, transposes and dims of size 1 at random, over sizes with many factors and a dynamic batch."""
    rng = random.Random(seed)
    nodes, initializers, shape, value = [], [], ["B", 4, 6, 5], "x"
    for step in range(rng.randint(2, 7)):
        kind, out = rng.choice(["Transpose", "Reshape", "Unsqueeze", "Squeeze"]), f"v{step}"
        ones = [at for at, size in enumerate(shape) if size == 1]
        if kind == "Transpose":
            order = rng.sample(range(len(shape)), len(shape))
            shape = [shape[at] for at in order]
            nodes.append(onnx.helper.make_node(kind, [value], [out], perm=order))
        else:
            if kind == "Squeeze" and not ones:
                kind = "Unsqueeze"
            if kind == "Reshape":
                shape = _regrouped(shape, rng)
                told = [-1 if size == "B" else size for size in shape]
            elif kind == "Unsqueeze":
                told = [rng.randint(0, len(shape))]
                shape.insert(told[0], 1)
            else:
                told = [rng.choice(ones)]
                shape.pop(told[0])
            initializers.append(onnx.numpy_helper.from_array(np.array(told, np.int64), f"c{step}"))
            nodes.append(onnx.helper.make_node(kind, [value, f"c{step}"], [out]))
        value = out
    graph = onnx.helper.make_graph(
        nodes,
        "g",
        [onnx.helper.make_tensor_value_info("x", 1, ["B", 4, 6, 5])],
        [onnx.helper.make_tensor_value_info(value, 1, [None] * len(shape))],
        initializers,
    )
    proto = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=10)
    model = ir.from_proto(proto)
    infer_shapes(model)
    x = np.arange(3 * 120, dtype=np.float32).reshape(3, 4, 6, 5)
    expected = run_by_onnxruntime(model, x=x)
    before = ops(model).total()
    view_chains(model)
    assert ops(model).total() <= min(before, 3)
    np.testing.assert_array_equal(run_by_onnxruntime(model, x=x), expected)


def _regrouped(shape: list[int | str], rng: random.Random) -> list[int | str]:
    """The dims on either side of the batch with their factors split and joined anew."""
    at = shape.index("B")
    sides = []
    for part in (shape[:at], shape[at + 1 :]):
        primes = list(itertools.chain.from_iterable(_primes(int(size)) for size in part))
        cuts = sorted(rng.sample(range(len(primes) + 1), rng.randint(0, min(2, len(primes)))))
        groups = [primes[a:b] for a, b in itertools.pairwise([0, *cuts, len(primes)])]
        sides.append([int(np.prod(group)) for group in groups if group])
    return [*sides[0], "B", *sides[1]]


def _primes(number: int) -> list[int]:
    found = []
    for prime in (2, 3, 5):
        while number % prime == 0:
            found.append(prime)
            number //= prime
    return found
