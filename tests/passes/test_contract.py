"""Every pass keeps the contract of `aot.graph`, shown on its own example graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx.reference
import onnx_ir as ir
import pytest

from aot import origins
from aot.graph import Pass, infer_shapes
from aot.graph.state import State
from aot.origins import Origin
from aot.passes import PASSES
from aot.passes.attention_kernel import attention_kernel
from aot.passes.attention_operator import attention_operator
from aot.passes.group_norm import group_norm
from aot.passes.merge_projections import merge_gate_up, merge_qkv

SIZES = {"B": 2, "S": 5}
APART = (attention_kernel, attention_operator, group_norm, merge_qkv, merge_gate_up)
EACH = pytest.mark.parametrize("one", dict.fromkeys((*PASSES, *APART)), ids=lambda one: one.name)


def parse(text: str) -> onnx.ModelProto:
    """The text form says shapes in names; those of SIZES are what the inputs are drawn with."""
    return onnx.parser.parse_model(text)


def draw(model: onnx.ModelProto, seed: int, sizes: dict[str, int]) -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(seed)
    inputs = {}
    for value in model.graph.input:
        shape = [sizes.get(d.dim_param, d.dim_value) for d in value.type.tensor_type.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        if dtype == np.float32:
            inputs[value.name] = rng.normal(size=shape).astype(np.float32) * 3
        else:
            drawn = rng.integers(0, 2, shape).astype(dtype)
            drawn[..., 0] = 1  # no row is masked throughout
            inputs[value.name] = drawn
    return inputs


def run(model: onnx.ModelProto, inputs: dict[str, np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
    return list(onnx.reference.ReferenceEvaluator(model).run(None, inputs))


def rewritten(one: Pass, proto: onnx.ModelProto) -> tuple[int, ir.Model]:
    model = ir.from_proto(proto)
    infer_shapes(model)
    return one(model), model


@EACH
def test_changes_its_example_once(one: Pass) -> None:
    sites, model = rewritten(one, parse(one.example))
    assert sites > 0
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    assert one(model) == 0
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before


@pytest.mark.parametrize("one", [one for one in dict.fromkeys(PASSES) if one.in_one_sweep], ids=lambda one: one.name)
def test_one_sweep_is_enough_where_a_pass_says_so(one: Pass) -> None:
    model = ir.from_proto(parse(one.example))
    infer_shapes(model)
    sites, state = one.settle(State.of(model, inferred=True), one_of_many=True)
    assert sites > 0
    assert one.settle(state) == (0, state)


@EACH
def test_result_is_valid_and_keeps_its_signature(one: Pass) -> None:
    before = parse(one.example)
    _, model = rewritten(one, before)
    after = ir.to_proto(model)
    onnx.checker.check_model(after, full_check=True)
    assert [v.name for v in after.graph.input] == [v.name for v in before.graph.input]
    assert [v.name for v in after.graph.output] == [v.name for v in before.graph.output]


@EACH
@pytest.mark.parametrize("sizes", [{"B": 1, "S": 1}, {"B": 2, "S": 5}, {"B": 5, "S": 2}], ids=str)
def test_numbers_stay_equal(one: Pass, sizes: dict[str, int]) -> None:
    before = parse(one.example)
    _, model = rewritten(one, before)
    for seed in range(3):
        inputs = draw(before, seed, sizes)
        for expected, got in zip(run(before, inputs), run(ir.to_proto(model), inputs), strict=True):
            assert got.shape == expected.shape
            assert got.dtype == expected.dtype
            last = 2 * np.finfo(got.dtype).eps if got.dtype == np.float16 else 0  # the reference may round on its way
            np.testing.assert_allclose(got, expected, rtol=max(1e-5, last), atol=1e-6)


@EACH
def test_states_its_algebra(one: Pass) -> None:
    assert len(one.algebra) > 10


@EACH
def test_origins_survive(one: Pass) -> None:
    """Every node has an origin afterwards, and it is one that a node had before."""
    proto = parse(one.example)
    for number, node in enumerate(proto.graph.node, 1):
        for key, value in Origin("layer", "m.py", number).metadata().items():
            node.metadata_props.add(key=key, value=value)
    _, model = rewritten(one, proto)
    found = [origins.of(node) for node in model.graph]
    assert [origin for origin in found if origin is None or not 0 < origin.line <= len(proto.graph.node)] == []
