"""Branches, squeezes and shapes that the ranges of the Dims decide, and those that they do not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx.parser
import pytest

from aot.declaration import Dim, Input
from aot.errors import GraphError
from aot.onnx_input.branches import UNDECIDED
from tests.onnx_input.models import Array, ops, prepared, run

RNG = np.random.default_rng(3)


def drawn(*shape: int) -> Array:
    return RNG.normal(size=shape).astype(np.float32)


# A model that squeezes a batch of one, as torch.jit's exporter writes it. The convolution strides over the length.
BATCH = """
    <ir_version: 8, opset_import: ["" : 13]>
    main (float[batch, 1, length] x) => (float[n, c, m] y)
        <float[2, 1, 3] w = {1, 2, 3, 4, 5, 6}, int64[1] axis = {AXIS}, int64[1] one = {1}, int64[1] front = {0}>
    {
        h = Conv <strides = [2]> (x, w)
        shape = Shape (h)
        size = Gather (shape, axis)
        is_one = Equal (size, one)
        y = If (is_one) <
            then_branch = then () => (float[n, c, m] a) <float k = {10}> { s = Mul (h, k) a = Neg (s) },
            else_branch = other () => (float[n, c, m] b) { b = Identity (h) }
        >
    }
"""


def branching(axis: int) -> onnx.ModelProto:
    return onnx.parser.parse_model(BATCH.replace("AXIS", str(axis)))


LENGTH = Dim("length", min=5, max=20)


@pytest.mark.parametrize(("batch", "taken"), [(Dim("batch", min=2, max=8), "else"), (1, "then")])
def test_a_batch_that_is_never_or_always_one(tmp_path: Path, batch: Dim | int, taken: str) -> None:
    model = branching(0)
    after, _ = prepared(model, tmp_path, {"x": [batch, 1, LENGTH]})
    assert "If" not in ops(after)
    assert ("Neg" in ops(after)) == (taken == "then")
    x = drawn(batch if isinstance(batch, int) else 3, 1, 9)
    np.testing.assert_allclose(run(after, {"x": x})["y"], run(model, {"x": x})["y"], rtol=1e-6)


def test_a_size_behind_a_stride(tmp_path: Path) -> None:
    """(length - 3) // 2 + 1 is 2 to 9 over lengths of 5 to 20, and 1 only below."""
    after, _ = prepared(branching(2), tmp_path, {"x": [2, 1, LENGTH]})
    assert "If" not in ops(after)
    undecided, _ = prepared(branching(2), tmp_path, {"x": [2, 1, Dim("length", min=3, max=20)]})
    assert "If" in ops(undecided)


def test_an_undecided_branch_says_what_would_settle_it(tmp_path: Path) -> None:
    after, _ = prepared(branching(0), tmp_path, {"x": [Dim("batch", min=1, max=8, opt=4), 1, 9]})
    node = next(node for node in after.graph.node if node.op_type == "If")
    said = {item.key: item.value for item in node.metadata_props}[UNDECIDED]
    assert "not the same at all sizes (batch in 1..8)" in said
    assert "--dim batch=2:4:8" in said


RATE = """
    <ir_version: 8, opset_import: ["" : 16]>
    main (float[2, 3] x, int64 rate) => (float[2, 3] y) <int64 wide = {16000}, float k = {2}>
    {
        is_wide = Equal (rate, wide)
        y = If (is_wide) <
            then_branch = then () => (float[2, 3] a) { 
                never = Less (rate, wide)
                a = If (never) <
                    then_branch = deep () => (float[2, 3] c) { c = Neg (x) },
                    else_branch = high () => (float[2, 3] d) { d = Mul (x, k) }
                >
            },
            else_branch = other () => (float[2, 3] b) { b = Identity (x) }
        >
    }
"""


def test_the_value_of_an_input_decides_branches_inside_each_other(tmp_path: Path) -> None:
    model, x = onnx.parser.parse_model(RATE), drawn(2, 3)
    fixed = Input([], "int64", low=16000, high=16001)
    after, _ = prepared(model, tmp_path, {"x": [2, 3], "rate": fixed})
    assert ops(after) == ["Mul"]
    assert [value.name for value in after.graph.input] == ["x", "rate"]
    given = {"x": x, "rate": np.array(16000)}
    np.testing.assert_array_equal(run(after, given)["y"], run(model, given)["y"])
    narrow, _ = prepared(model, tmp_path, {"x": [2, 3], "rate": Input([], "int64", low=0, high=16000)})
    assert "If" not in ops(narrow)
    np.testing.assert_array_equal(run(narrow, {"x": x, "rate": np.array(8000)})["y"], x)
    free, _ = prepared(model, tmp_path, {"x": [2, 3], "rate": Input([], "int64")})
    node = next(node for node in free.graph.node if node.op_type == "If")
    assert "--dim rate=VALUE:VALUE:VALUE" in node.metadata_props[-1].value


SQUEEZE = """
    <ir_version: 8, opset_import: ["" : OPSET]>
    main (float[batch, 1, n, 4] x) => (float[a, b, c] y) { y = Squeeze (x) }
"""


@pytest.mark.parametrize("opset", [11, 13])
def test_squeeze_without_axes_drops_what_is_always_one(tmp_path: Path, opset: int) -> None:
    model = onnx.parser.parse_model(SQUEEZE.replace("OPSET", str(opset)))
    batch = Dim("batch", min=2, max=4)
    after, _ = prepared(model, tmp_path, {"x": [batch, 1, 3, 4]})
    x = drawn(3, 1, 3, 4)
    np.testing.assert_array_equal(run(after, {"x": x})["y"], x[:, 0])
    (node,) = (node for node in after.graph.node if node.op_type == "Squeeze")
    assert len(node.input) == 2


def test_squeeze_of_a_size_that_may_be_one_is_refused(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(SQUEEZE.replace("OPSET", "13"))
    with pytest.raises(GraphError, match=r"axis 0 has a size from 1 to 4.*dropped at 1") as caught:
        prepared(model, tmp_path, {"x": [Dim("batch", min=1, max=4), 1, 3, 4]})
    assert "--dim NAME=2:" in str(caught.value)
