"""What files hold that the rest of aot should not see: FP64, sparse weights, functions, odd names and orders."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

from aot.errors import GraphError
from aot.onnx_input.loading import load
from tests.onnx_input.models import Array, node_model, ops, prepared, run, same

RNG = np.random.default_rng(4)


def drawn(*shape: int) -> Array:
    return RNG.normal(size=shape).astype(np.float32)


def test_sparse_weights_by_position_and_by_coordinates(tmp_path: Path) -> None:
    x = drawn(2, 3)
    dense = np.zeros((3, 4), np.float32)
    dense[0, 1], dense[2, 3] = 2.0, -1.5
    values = onnx.numpy_helper.from_array(np.array([2.0, -1.5], np.float32), "w")
    for indices in (np.array([1, 11]), np.array([[0, 1], [2, 3]])):
        sparse = onnx.helper.make_sparse_tensor(values, onnx.numpy_helper.from_array(indices, "i"), [3, 4])
        model = node_model("MatMul", {"x": x}, opset=13, names=("x", "w"))
        model.graph.sparse_initializer.append(sparse)
        after, _ = prepared(model, tmp_path, {"x": x.shape})
        np.testing.assert_allclose(run(after, {"x": x})["y"], x @ dense, rtol=1e-6)


def test_doubles_are_narrowed_and_said_so(tmp_path: Path) -> None:
    text = """
        <ir_version: 8, opset_import: ["" : 13]>
        main (float[2, 3] x) => (double[2, 3] y) <double k = {0.1}, double big = {1e300}>
        { wide = Cast <to = 11> (x) a = Mul (wide, k) y = Min (a, big) }
    """
    model, x = onnx.parser.parse_model(text), drawn(2, 3)
    after, done = prepared(model, tmp_path, {"x": x.shape})
    got = run(after, {"x": x})["y"]
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, x * 0.1, rtol=1e-6)
    assert done.notes == ("FP64 is narrowed to FP32, for TensorRT computes no FP64, inputs and outputs too: y",)


def test_functions_of_the_model_are_written_out(tmp_path: Path) -> None:
    text = """
        <ir_version: 8, opset_import: ["" : 17, "own" : 1]>
        main (float[2, 3] x) => (float[2, 3] y) { h = own.twice (x) y = own.twice (h) }
        <domain: "own", opset_import: ["" : 17]>
        twice (a) => (b) { b = Add (a, a) }
    """
    after = same(onnx.parser.parse_model(text), tmp_path, {"x": drawn(2, 3)})
    assert ops(after) == ["Add", "Add"]
    assert not after.functions


def test_nodes_out_of_order_and_without_names(tmp_path: Path) -> None:
    text = """
        <ir_version: 8, opset_import: ["" : 13]>
        main (float[2, 3] x) => (float[2, 3] y) { h = Exp (x) y = Neg (h) }
    """
    model, x = onnx.parser.parse_model(text), drawn(2, 3)
    nodes = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend(reversed(nodes))
    after, _ = prepared(model, tmp_path, {"x": x.shape})
    assert ops(after) == ["Exp", "Neg"]
    assert all(node.name for node in after.graph.node)
    np.testing.assert_allclose(run(after, {"x": x})["y"], -np.exp(x), rtol=1e-6)


def test_shapes_that_the_file_gets_wrong_are_found_again(tmp_path: Path) -> None:
    """An exporter that wrote the sizes of its example into every inner value and the output."""
    text = """
        <ir_version: 8, opset_import: ["" : 13]>
        main (float[n, 4] x) => (float[1, 4] y) <float[1, 4] h> { h = Exp (x) y = Neg (h) }
    """
    after, _ = prepared(onnx.parser.parse_model(text), tmp_path, {"x": [3, 4]})
    shapes = [
        [d.dim_value for d in v.type.tensor_type.shape.dim] for v in (*after.graph.output, *after.graph.value_info)
    ]
    assert shapes == [[3, 4], [3, 4]]


def test_ops_that_onnx_defines_by_others(tmp_path: Path) -> None:
    """Attention of opset 23 against softmax(q k^T / sqrt(d)) v, by numpy."""
    q, k, v = drawn(1, 2, 4, 8), drawn(1, 2, 6, 8), drawn(1, 2, 6, 8)
    model = node_model("Attention", {"q": q, "k": k, "v": v}, opset=23)
    model.ir_version = 11
    after, _ = prepared(model, tmp_path, {"q": q.shape, "k": k.shape, "v": v.shape})
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(8)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    want = weights / weights.sum(-1, keepdims=True) @ v
    np.testing.assert_allclose(run(after, {"q": q, "k": k, "v": v})["y"], want, rtol=1e-4, atol=1e-5)
    assert "Attention" not in ops(after)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "main (float[2] x) => (float[2] y) <int64 i = {0}> { s = SequenceConstruct (x) y = SequenceAt (s, i) }",
            "SequenceConstruct: it works on sequences",
        ),
        ('main (float[2] x) => (float[2] y) { y = ai.onnx.ml.Scaler (x) }', "ai.onnx.ml::Scaler: domain ai.onnx.ml"),
        (
            'main (float[2] x) => (float[2] y) { [noise] n = RandomNormalLike (x) y = Add (x, n) }',
            "(?s)RandomNormalLike draws random numbers.*node 'noise' .*noise as an input",
        ),
    ],
    ids=["sequences", "classical", "random"],
)  # fmt: skip
def test_what_no_engine_has_is_refused_by_node_and_domain(tmp_path: Path, text: str, said: str) -> None:
    model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["" : 17, "ai.onnx.ml" : 3]>' + text)
    with pytest.raises(GraphError, match=said):
        prepared(model, tmp_path, {"x": [2]})


def test_a_name_given_twice_and_an_opset_not_given(tmp_path: Path) -> None:
    model = node_model("Exp", {"x": drawn(2, 3)}, opset=13)
    model.graph.node.append(model.graph.node[0])
    path = tmp_path / "net.onnx"
    onnx.save(model, path)
    with pytest.raises(GraphError, match="not a whole ONNX model: Output 'y' is redeclared"):
        load(path)
    del model.graph.node[-1]
    del model.opset_import[:]
    onnx.save(model, path)
    with pytest.raises(GraphError, match="does not say which opset"):
        load(path)


TWICE = "main (float[b, 8] x, float[b, 8] x) => (float[b, 8] y) { y = Neg (x) }"
CUT = """main (float[b, 8] x, bool c) => (float[b, 8] y) {
    y = If (c) <then_branch = t () => (float[b, 8] a) { a = Neg (x) },
                else_branch = e () => (float[b, 8] d) { d = Add (x, gone) }>
}"""
LOST = "main (float[b, 8] x) => (float[b, 8] y, float[b, 8] z) { y = Neg (x) }"
MISFIT = """main (float[b, 9] x) => (float[b, 8] y)
    { h = Relu (x) [product] z = MatMul (h, w) y = Neg (z) }"""


@pytest.mark.parametrize(
    ("text", "what", "where"),
    [
        (TWICE, "two inputs are called 'x'", "net.onnx"),
        (CUT, "node 'd' (Add) reads 'gone', which nothing in it makes", "net.onnx"),
        (LOST, "an output is 'z', which nothing in it makes", "net.onnx"),
        (MISFIT, "Incompatible dimensions for matrix multiplication", "node 'product' (MatMul)"),
    ],
    ids=["two inputs", "cut", "lost output", "sizes"],
)
def test_what_is_no_valid_model_is_refused_at_once(tmp_path: Path, text: str, what: str, where: str) -> None:
    model = onnx.parser.parse_model('<ir_version: 10, opset_import: ["" : 17]>' + text)
    if text is MISFIT:
        model.graph.initializer.append(onnx.numpy_helper.from_array(drawn(8, 8), "w"))
    path = tmp_path / "net.onnx"
    onnx.save(model, path)
    with pytest.raises(GraphError) as caught:
        load(path)
    assert caught.value.what == f"not a valid ONNX model: {what}"
    assert where in str(caught.value.where)


def test_a_branch_that_is_never_taken_need_not_fit(tmp_path: Path) -> None:
    """Exporters write both sides of a test on the rank; only one of them fits the sizes."""
    text = """
        <ir_version: 10, opset_import: ["" : 17]>
        main (float[2, 3] x, bool c) => (float[2, 3] y) <int64[1] axes = {1}> {
            y = If (c) <then_branch = t () => (float[n, 3] a) { a = Neg (x) },
                        else_branch = e () => (float[n] d) { d = Squeeze (x, axes) }>
        }
    """
    path = tmp_path / "net.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    load(path)


def test_an_opset_that_onnx_does_not_know_yet(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    model = node_model("Exp", {"x": drawn(2, 3)}, opset=99)
    onnx.save(model, path)
    known = onnx.defs.onnx_opset_version()
    with pytest.raises(GraphError, match=f"opset 99 is newer than the onnx installed here knows \\({known}\\)"):
        load(path)
