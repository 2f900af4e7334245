"""What can be kept wide, what it costs, and the recipe that keeps it."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from aot.config import Placement, Recipe
from aot.layers.errors import LayerError
from aot.precision import apply
from aot.search.costs import operations, shapes_at
from aot.search.units import Unit, keeping, levels, share_in, units
from tests.precision.graphs import graph, observe, precisions, recipe

INT8 = recipe("int8")


def zeros(*shape: int) -> np.ndarray[Any, Any]:
    return np.zeros(shape, np.float32)


@pytest.mark.parametrize(
    ("body", "weights", "shapes", "count"),
    [
        ("y = MatMul(x, w)", {"w": zeros(4, 7)}, {"x": (2, 3, 4), "y": (2, 3, 7)}, 2 * 3 * 4 * 7),
        ("y = MatMul(x, x2)", {}, {"x": (2, 8, 3, 4), "x2": (2, 8, 4, 5), "y": (2, 8, 3, 5)}, 2 * 8 * 3 * 4 * 5),
        ("y = Gemm<transB=1>(x, w)", {"w": zeros(7, 4)}, {"x": (3, 4), "y": (3, 7)}, 3 * 4 * 7),
        ("y = Gemm<transA=1>(x, w)", {"w": zeros(4, 7)}, {"x": (4, 3), "y": (3, 7)}, 3 * 4 * 7),
        # 6 outputs of 5 x 5, each of 4 / 2 channels under 3 x 3.
        ("y = Conv<group=2>(x, w)", {"w": zeros(6, 2, 3, 3)}, {"x": (1, 4, 7, 7), "y": (1, 6, 5, 5)}, 6 * 25 * 18),
        ("y = ConvTranspose(x, w)", {"w": zeros(4, 6, 3, 3)}, {"x": (1, 4, 5, 5), "y": (1, 6, 7, 7)}, 4 * 25 * 54),
        ("y = Softmax(x)", {}, {"x": (3, 4), "y": (3, 4)}, 12),
    ],
)
def test_operations_are_multiply_adds_of_layers_and_elements_elsewhere(
    body: str, weights: dict[str, Any], shapes: dict[str, tuple[int, ...]], count: int
) -> None:
    inputs = ", ".join(f"float[{','.join(map(str, shapes[n]))}] {n}" for n in shapes if n != "y")
    given = ", ".join(map(str, shapes["y"]))
    model = graph(f"g ({inputs}) => (float[{given}] y) {{ {body} }}", **weights)
    assert operations(model.graph, shapes) == {"y": count}


def error(node: str, share: float, *, finite: bool = True, added: float | None = 0.1) -> LayerError:
    return LayerError(node, node, "MatMul", "", "", 0.9, 0.1, added, share, finite, (1,))


def decision(node: str, precision: str, op: str = "MatMul") -> dict[str, str]:
    return {"node": node, "op": op, "precision": precision, "reason": "", "module": "net", "source": "net.py:1"}


def test_units_are_sorted_by_gain_per_cost_and_what_overflows_comes_first() -> None:
    decisions = [decision(node, "int8") for node in ("dear", "cheap", "lost")] + [decision("wide", "fp16")]
    errors = [error("dear", 0.5), error("cheap", 0.4), error("lost", 0.0, finite=False, added=None), error("wide", 0.1)]
    costs = {"dear": 700, "cheap": 100, "lost": 100, "wide": 100}
    found = units("fp16", INT8, decisions, errors, costs)
    assert [(unit.node, unit.was, unit.wide, unit.cost) for unit in found] == [
        ("lost", "int8", "fp16", 0.1), ("cheap", "int8", "fp16", 0.1), ("dear", "int8", "fp16", 0.7),
    ]  # fmt: skip
    assert [unit.node for unit in units("fp32", INT8, decisions, errors, costs)] == ["lost", "cheap", "wide", "dear"]


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        (INT8, ("fp16", "fp32")),
        (Recipe(precision="int8", compute="fp32"), ("fp32",)),
        (Recipe(precision="fp16"), ("fp32",)),
    ],
)
def test_layers_are_first_kept_in_the_compute_dtype(asked: Recipe, found: tuple[str, ...]) -> None:
    assert levels(asked) == found


def unit(node: str, was: str, wide: str) -> Unit:
    return Unit(node, "MatMul", "", "", was, wide, 0.1, 0.1)


def test_the_recipe_keeps_exactly_the_named_nodes() -> None:
    body = "g (float[n,4] x) => (float[n,4] y) { a = MatMul(x, w) b = MatMul(a, w) c = Tanh(b) y = MatMul(c, w) }"
    model = graph(body, w=np.eye(4, dtype=np.float32))
    names = {"a": "layer[0]", "b": "layer[1]", "c": "layer*", "y": "layer0"}
    for node in model.graph:
        node.name = names[node.name or ""]
    seen = observe(model, {"x": np.ones((2, 4), np.float32)})
    kept = keeping(INT8, [unit("layer[0]", "int8", "fp16"), unit("layer*", "fp16", "fp32")])
    changed: ir.Model = model.clone()
    outcome = apply(changed, kept, seen)
    assert precisions(outcome) == {"layer[0]": "fp16", "layer[1]": "int8", "layer*": "fp32", "layer0": "int8"}
    assert outcome.warnings == ()


def test_what_the_recipe_keeps_by_itself_stays() -> None:
    own = INT8.model_copy(update={"keep": ("mine",), "placement": Placement(keep=("ours",))})
    kept = keeping(own, [unit("b", "int8", "fp16"), unit("a", "int8", "fp16"), unit("c", "fp16", "fp32")])
    assert kept.placement.keep == ("ours", "a", "b")
    assert kept.keep == ("mine", "c")
    assert keeping(own, []) == own


def test_the_share_of_the_low_precision_counts_layers_only() -> None:
    decisions = [decision("a", "int8"), decision("b", "fp16"), decision("c", "fp16", "Softmax")]
    assert share_in("int8", decisions, {"a": 300, "b": 100, "c": 1000}) == 0.75
    assert share_in("int8", [], {}) == 0.0


def test_shapes_follow_from_those_of_the_inputs_where_names_say_so() -> None:
    model = graph(
        """g (float[batch, 8] x) => (float[batch, 4] y, float[found] z) {
            h = MatMul(x, w)  y = Relu(h)  z = Compress(y, c) }""",
        w=np.ones((8, 4), np.float32),
        c=np.array([True, False, True, True]),
    )
    found = shapes_at(model.graph, {"x": (5, 8)})
    assert {name: found.get(name) for name in "hyz"} == {"h": (5, 4), "y": (5, 4), "z": None}
    assert operations(model.graph, found | {"x": (5, 8)})["h"] == 5 * 8 * 4
