"""Skip connections in INT8: what is between two layers of a residual network stays INT8."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from tests.precision.graphs import Array, converted, graph, node, observe, precisions, reasons, recipe, run, sqnr

rng = np.random.default_rng(6)


def weights(**shapes: tuple[int, ...]) -> dict[str, Array]:
    return {k: (rng.standard_normal(s) / np.prod(s[1:]) ** 0.5).astype(np.float32) for k, s in shapes.items()}


def before(value: ir.Value | None) -> str:
    producer = value.producer() if value is not None else None
    return "" if producer is None else producer.op_type


PAD = "Conv <pads = [1, 1, 1, 1]>"


def int8(body: str, shape: tuple[int, ...], **made_of: Array) -> tuple[ir.Model, dict[str, str], dict[str, str], float]:
    made = graph(f"g (float[B, {shape[0]}, 8, 8] x) => (float[B, {shape[1]}, 8, 8] y) {body}", 20, **made_of)
    feeds = {"x": rng.standard_normal((2, shape[0], 8, 8)).astype(np.float32)}
    model, outcome = converted(made, recipe("int8", residual=True), observe(made, feeds))
    quality = sqnr(run(made, feeds)["y"], run(model, feeds)["y"])
    return model, precisions(outcome), reasons(outcome), quality


@pytest.mark.parametrize("shortcut", ["first", "last"])
def test_of_two_convolutions_the_shortcut_is_quantized_wherever_it_stands(shortcut: str) -> None:
    """torchvision computes the shortcut behind the block, timm in front of it: the longer path fuses either way."""
    block = f"a = {PAD} (i, w)  p = Relu(a)  b = {PAD} (p, v)"
    order = f"d = Conv(i, u)  {block}" if shortcut == "first" else f"{block}  d = Conv(i, u)"
    model, found, _, quality = int8(
        f"{{ i = Relu(x)  {order}  s = Add(b, d)  r = Relu(s)  y = Conv(r, t) }}",
        (16, 32),
        **weights(w=(32, 16, 3, 3), v=(32, 32, 3, 3), u=(32, 16, 1, 1), t=(32, 32, 1, 1)),
    )
    assert [before(v) for v in node(model, "s").inputs] == ["Conv", "DequantizeLinear"]
    assert found["s"] == "int8"
    assert quality > 30


def test_blocks_in_a_row_hand_int8_on() -> None:
    """Each block's sum goes through Relu into one Q/DQ pair, from which the next convolution and the next sum read."""
    blocks, given = [], "x0"
    made_of = weights(**{f"{n}{i}": (16, 16, 3, 3) for n in "wv" for i in range(3)})
    for i in range(3):
        blocks.append(f"a{i} = {PAD} ({given}, w{i})  p{i} = Relu(a{i})  b{i} = {PAD} (p{i}, v{i})")
        blocks.append(f"s{i} = Add(b{i}, {given})  x{i + 1} = Relu(s{i})")
        given = f"x{i + 1}"
    body = f"{{ x0 = Relu(x)  {'  '.join(blocks)}  y = {PAD} (x3, w0) }}"
    model, found, _, quality = int8(body, (16, 16), **made_of)
    assert all(found[f"s{i}"] == "int8" for i in range(3))
    for i in range(3):
        fused, skip = node(model, f"s{i}").inputs
        assert before(fused) == "Conv"
        assert skip is node(model, f"a{i}").inputs[0]
    # One pair for each of x0..x3 and p0..p2, and nothing else is rounded.
    assert sum(n.op_type == "QuantizeLinear" for n in model.graph) == 7
    assert quality > 25


def test_an_inverted_bottleneck_shares_the_pair_of_its_input() -> None:
    body = f"""{{ e = Conv(x, w)  f = Relu(e)  d = Conv <group = 32, pads = [1, 1, 1, 1]> (f, k)  g = Relu(d)
    l = Conv(g, v)  s = Add(x, l)  y = {PAD} (s, u) }}"""
    model, found, _, _ = int8(
        body, (16, 16), **weights(w=(32, 16, 1, 1), k=(32, 1, 3, 3), v=(16, 32, 1, 1), u=(16, 16, 3, 3))
    )
    assert node(model, "s").inputs[0] is node(model, "e").inputs[0]
    assert before(node(model, "s").inputs[1]) == "Conv"
    assert found["s"] == "int8"


def test_a_skip_that_is_wide_for_all_others_is_not_quantized_for_the_sum() -> None:
    body = f"{{ i = Sigmoid(x)  h = Exp(x)  a = {PAD} (h, w)  s = Add(a, i)  t = Mul(i, s)  y = {PAD} (t, v) }}"
    model, found, why, _ = int8(body, (16, 16), **weights(w=(16, 16, 3, 3), v=(16, 16, 3, 3)))
    assert found["s"] == "fp16"
    assert "its skip input i is wide elsewhere" in why["s"]
    assert before(node(model, "s").inputs[1]) == "Sigmoid"


@pytest.mark.parametrize(
    "total",
    [
        "b = Conv(a, v)  s = Add(b, c)",  # a constant is a bias
        "b = Conv(a, v)  s = Add(b, b)",  # twice the same
        "b = Conv(a, v)  r = Relu(b)  s = Add(r, a)",  # something stands between
        "b = Conv(a, v)  t = Add(b, a)  s = Add(b, t)",  # the convolution is read twice
    ],
)
def test_sums_that_do_not_fuse_are_left_alone(total: str) -> None:
    body = f"{{ a = {PAD} (x, w)  {total}  y = {PAD} (s, w) }}"
    constant = {"c": np.ones((1, 16, 1, 1), np.float32)} if "c)" in total else {}
    _, found, _, _ = int8(body, (16, 16), **weights(w=(16, 16, 3, 3), v=(16, 16, 1, 1)), **constant)
    assert found["s"] == "fp16"
