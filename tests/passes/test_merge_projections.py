"""Linear layers over one input, merged: the numbers against onnxruntime on the graph before, and what stays apart."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

from aot.graph import infer_shapes
from aot.passes.merge_projections import merge_gate_up, merge_qkv
from tests.passes.test_limits import HEAD, ops, parse, refused, run_by_onnxruntime

RNG = np.random.default_rng(0)


def weighted(text: str, **weights: np.ndarray[Any, Any]) -> ir.Model:
    """The graph of `text` with those initializers."""
    proto = onnx.parser.parse_model(HEAD + text)
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(data, name) for name, data in weights.items())
    model = ir.from_proto(proto)
    infer_shapes(model)
    return model


def drawn(*shape: int) -> np.ndarray[Any, Any]:
    return RNG.normal(size=shape).astype(np.float32)


GQA = """(float[B,S,6] x) => (float[B,4,S,S] y)
<int64[4] four = {0, 0, 4, 2}, int64[4] two = {0, 0, 2, 2}>
{ q = MatMul(x, wq)  qb = Add(q, bq)  k = MatMul(x, wk)  v = MatMul(x, wv)
  qh = Reshape(qb, four)  kh = Reshape(k, two)  vh = Reshape(v, two)
  kv = Mul(kh, vh)  both = Concat<axis = 2>(kv, kv)
  qt = Transpose<perm = [0, 2, 1, 3]>(qh)  kt = Transpose<perm = [0, 2, 3, 1]>(both)  y = MatMul(qt, kt) }"""


def gqa() -> ir.Model:
    return weighted(GQA, wq=drawn(6, 8), wk=drawn(6, 4), wv=drawn(6, 4), bq=drawn(8))


def test_projections_of_unequal_widths_and_some_biases_are_one_product() -> None:
    model, x = gqa(), drawn(2, 5, 6)
    expected = run_by_onnxruntime(model, x=x)
    assert merge_qkv(model) == 1
    assert (ops(model)["MatMul"], ops(model)["Add"], ops(model)["Split"]) == (2, 1, 1)
    np.testing.assert_allclose(run_by_onnxruntime(model, x=x), expected, rtol=1e-5, atol=1e-5)


def test_weights_are_not_read_before_the_graph_is_written() -> None:
    model = gqa()

    def unread() -> ir.TensorProtocol:
        raise AssertionError("the weight was read")

    weight = model.graph.initializers["wk"]
    weight.const_value = ir.LazyTensor(unread, dtype=ir.DataType.FLOAT, shape=ir.Shape([6, 4]), name="wk")
    assert merge_qkv.rewrite(model, lambda node, why: None) == 1
    (joined,) = (v.const_value for v in model.graph.initializers.values() if v.name and v.name.startswith("wq_"))
    assert joined is not None
    with pytest.raises(AssertionError, match="was read"):
        joined.numpy()


def test_a_weight_that_another_node_reads_is_not_stored_twice() -> None:
    text = """(float[B,S,2] x) => (float[B,S,1,2] q, float[B,S,1,2] k)
    <float[2,2] w = {1, 2, 3, 4}, int64[4] h = {0, 0, 1, 2}>
    { a = MatMul(x, w)  q = Reshape(a, h)  b = MatMul(x, w)  k = Reshape(b, h) }"""
    assert refused(merge_qkv, text) == []


def test_a_layer_that_is_an_output_of_the_graph_stays() -> None:
    text = """(float[B,S,2] x) => (float[B,S,2] a, float[B,S,2,1] k)
    <float[2,2] v = {1, 2, 3, 4}, float[2,2] w = {4, 3, 2, 1}, int64[4] h = {0, 0, 2, 1}>
    { a = MatMul(x, v)  q = Reshape(a, h)  b = MatMul(x, w)  k = Reshape(b, h) }"""
    assert refused(merge_qkv, text) == []


def test_layers_inside_a_loop_body_read_what_is_captured() -> None:
    text = """<ir_version: 10, opset_import: ["" : 20]>
    g (float[2,4] x, bool c) => (float[2,2,2] y)
    <float[4,4] v = {1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4, 5, 6, 7, 8}, int64[3] h = {0, 2, 2},
     float[4,4] w = {8, 7, 6, 5, 4, 3, 2, 1, 8, 7, 6, 5, 4, 3, 2, 1}>
    { y = If<then_branch = t () => (float[2,2,2] z) { a = MatMul(x, v)  q = Reshape(a, h)
                                                     b = MatMul(x, w)  k = Reshape(b, h)  z = Mul(q, k) },
             else_branch = e () => (float[2,2,2] n) { n = Reshape(x, h) }>(c) }"""
    model = ir.from_proto(onnx.parser.parse_model(text))
    infer_shapes(model)
    x = drawn(2, 4)
    expected = [run_by_onnxruntime(model, x=x, c=np.array(flag)) for flag in (True, False)]
    assert merge_qkv(model) == 1
    for flag, y in zip((True, False), expected, strict=True):
        np.testing.assert_allclose(run_by_onnxruntime(model, x=x, c=np.array(flag)), y, rtol=1e-5)


def test_gate_and_up_of_a_gelu_with_biases_are_one_product() -> None:
    text = """(float[B,S,2] x) => (float[B,S,2] y) <float[2,2] g = {1, 2, 3, 4}, float[2,2] u = {4, 3, 2, 1},
     float[2] gb = {0.5, -0.5}, float[2] ub = {1, 2}>
    { a = MatMul(x, u)  b = Add(ub, a)  c = MatMul(x, g)  d = Add(c, gb)  e = Gelu(d)  y = Mul(b, e) }"""
    model, x = parse(text), drawn(2, 3, 2)
    expected = run_by_onnxruntime(model, x=x)
    assert merge_gate_up(model) == 1
    assert ops(model) == {"MatMul": 1, "Add": 1, "Split": 1, "Gelu": 1, "Mul": 1}
    np.testing.assert_allclose(run_by_onnxruntime(model, x=x), expected, rtol=1e-5, atol=1e-6)


def test_two_layers_that_are_added_stay() -> None:
    text = """(float[B,2] x) => (float[B,2] y) <float[2,2] g = {1, 2, 3, 4}, float[2,2] u = {4, 3, 2, 1}>
    { a = MatMul(x, u)  c = MatMul(x, g)  y = Add(a, c) }"""
    assert refused(merge_gate_up, text) == []


def test_keys_and_values_of_two_attentions_over_one_memory_are_two_products() -> None:
    weights = {f"{name}{layer}": drawn(4, 4) for name in "kv" for layer in (1, 2)}
    layers = " ".join(
        f"""km{n} = MatMul(m, k{n})  kr{n} = Reshape(km{n}, heads)  kt{n} = Transpose<perm = [0, 2, 3, 1]>(kr{n})
        vm{n} = MatMul(m, v{n})  vr{n} = Reshape(vm{n}, heads)  vt{n} = Transpose<perm = [0, 2, 1, 3]>(vr{n})
        s{n} = MatMul({q}, kt{n})  h{n} = Mul(s{n}, half)  p{n} = Softmax(h{n})  {o} = MatMul(p{n}, vt{n})"""
        for n, q, o in ((1, "q", "a"), (2, "a", "y"))
    )
    model = weighted(
        f"""(float[B,S,4] m, float[B,2,T,2] q) => (float[B,2,T,2] y)
        <int64[4] heads = {{0, 0, 2, 2}}, float half = {{0.5}}> {{ {layers} }}""",
        **weights,
    )
    feed = {"m": drawn(2, 5, 4), "q": drawn(2, 2, 3, 2)}
    expected = run_by_onnxruntime(model, **feed)
    assert merge_qkv(model) == 2
    assert (ops(model)["MatMul"], ops(model)["Split"]) == (6, 2)
    np.testing.assert_allclose(run_by_onnxruntime(model, **feed), expected, rtol=1e-5, atol=1e-6)


def test_gate_or_up_that_is_an_output_of_the_graph_stays() -> None:
    weights = "float[2,2] g = {1, 2, 3, 4}, float[2,2] u = {4, 3, 2, 1}"
    for shown in ("a", "b"):
        text = f"""(float[B,2] x) => (float[B,2] y, float[B,2] {shown}) <{weights}>
        {{ a = MatMul(x, g)  s = Sigmoid(a)  b = MatMul(x, u)  y = Mul(s, b) }}"""
        assert refused(merge_gate_up, text) == []
