"""The rehearsal decides as the build does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from aot import content
from aot.config import Recipe, load
from aot.explain.precision import rehearse
from aot.precision import apply
from tests.backends.graphs import write

TEXT = """g (float[batch, 32, 8, 8] x) => (float[batch, 10] y) {
    a = Conv<pads = [1, 1, 1, 1]>(x, w1)  b = Relu(a)  c = Conv<group = 32, pads = [1, 1, 1, 1]>(b, w2)
    d = GlobalAveragePool(c)  e = Flatten(d)  y = MatMul(e, w3) }"""


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    weights: Any = {
        "w1": rng.normal(size=(32, 32, 3, 3)),
        "w2": rng.normal(size=(32, 1, 3, 3)),
        "w3": rng.normal(size=(32, 10)),
    }
    return write(tmp_path / "m.onnx", TEXT, **{name: array.astype(np.float32) for name, array in weights.items()})


def model(graph: Path) -> ir.Model:
    from aot.graph import infer_shapes

    made = ir.load(graph)
    infer_shapes(made)
    return made


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16", "int8", "fp8"])
def test_it_agrees_with_a_build_whose_data_ask_for_nothing(graph: Path, precision: str) -> None:
    recipe = load(Recipe, content.find("calib", precision))
    made, copy = model(graph), model(graph)
    ranges = {
        str(value.name): 7.5 for node in copy.graph for value in (*node.inputs, *node.outputs) if value is not None
    }
    outcome = apply(copy, recipe, ranges)
    found = rehearse(made, recipe)
    assert found.quantized == outcome.ops
    assert [node.op_type for node in made.graph] == [node.op_type for node in copy.graph]


def test_layers_that_stay_wide_say_why(graph: Path) -> None:
    found = rehearse(model(graph), load(Recipe, content.find("calib", "fp8-convolutions")))
    assert (found.name, found.compute, found.quantized) == ("fp8", "fp16", {"Conv": 1})
    reasons = {(group.op, group.precision): group.reason for group in found.wide}
    assert "depthwise" in reasons["Conv", "fp16"] or "groups" in reasons["Conv", "fp16"]
    assert reasons["MatMul", "fp16"] == "10 output channels, fewer than 16"


def test_fp8_says_that_convolutions_stay_in_fp16_and_which_precision_is_faster(graph: Path) -> None:
    found = rehearse(model(graph), load(Recipe, content.find("calib", "fp8")))
    assert found.quantized == {}
    assert any("FP8 convolutions take longer than FP16 ones" in group.reason for group in found.wide)
    [warning] = found.warnings
    assert warning.startswith("nothing is quantized to fp8: all 2 Conv stay in fp16")
    assert "--precision int8 is the faster choice" in warning


def test_what_stays_fp32_in_a_narrow_network_is_listed_too(tmp_path: Path) -> None:
    text = "g (float[batch, seq] x) => (float[batch, 1] y) <int64[1] axes = {1}> { y = ReduceSum(x, axes) }"
    found = rehearse(model(write(tmp_path / "m.onnx", text)), load(Recipe, content.find("calib", "fp16")))
    (group,) = found.wide
    assert (group.op, group.precision, group.nodes) == ("ReduceSum", "fp32", ("n0",))
    assert "dynamic axis" in group.reason
