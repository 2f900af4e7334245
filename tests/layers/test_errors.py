"""The errors of layers: the same numbers as numpy finds with every intermediate value at hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from aot import origins
from aot.config import Weights
from aot.layers.errors import LayerError, Layers, cosine, layer_errors, relative
from aot.origins import Origin
from aot.precision import apply
from aot.progress import Silent
from tests.precision.graphs import Array, converted, graph, observe, recipe, run
from tests.precision.weights.observing import statistics

BODY = """mlp (float[n,16] x) => (float[n,8] y) {
    a = MatMul(x, w1)  r = Relu(a)  b = MatMul(r, w2)  y = Mul(b, half)
}"""


def layers(first: ir.Model, second: ir.Model, folder: Path, *cases: Array) -> Layers:
    for name, model in (("a", first), ("b", second)):
        ir.save(model, folder / f"{name}.onnx")
    found = layer_errors(folder / "a.onnx", folder / "b.onnx", [{"x": x} for x in cases], Silent(), len(cases))
    assert found.cases == len(cases)
    return found


def rows(found: Layers) -> dict[str, LayerError]:
    return {row.value: row for row in found.rows}


@pytest.fixture
def mlp() -> tuple[ir.Model, dict[str, Any]]:
    random = np.random.default_rng(0)
    weights: dict[str, Any] = {
        "w1": random.normal(size=(16, 32)).astype(np.float32),
        "w2": random.normal(size=(32, 8)).astype(np.float32),
        "half": np.asarray(0.5, np.float32),
    }
    model = graph(BODY, **weights)
    for node in model.graph:
        origins.set(node, Origin(f"net.{node.name}", "net.py", 3))
    return model, weights


def quantized(x: Array, amax: float) -> Array:
    """Rounded to INT8 with a scale of FP16, rounded up; dequantized to FP16."""
    scale = np.float16(amax / 127)
    if np.float32(scale) < np.float32(amax / 127):
        scale = np.nextafter(scale, np.float16(np.inf))
    return half(np.clip(np.rint(x / np.float32(scale)), -128, 127) * np.float32(scale))


def half(x: Array) -> Array:
    return x.astype(np.float16).astype(np.float32)


def distance(wanted: Array, got: Array) -> float:
    wanted, got = wanted.astype(np.float64), got.astype(np.float64)
    return float(np.linalg.norm(got - wanted) / np.linalg.norm(wanted))


def test_int8_layer_by_layer_against_numpy(mlp: tuple[ir.Model, dict[str, Any]], tmp_path: Path) -> None:
    model, w = mlp
    x = np.random.default_rng(1).normal(size=(6, 16)).astype(np.float32)
    amax = observe(model, {"x": x})
    found = layers(model, converted(model, recipe("int8"), amax)[0], tmp_path, x)

    narrow = {name: np.stack([quantized(c, float(abs(c).max())) for c in w[name].T]).T for name in ("w1", "w2")}
    a = x @ w["w1"]
    r = np.maximum(a, 0)
    b = r @ w["w2"]

    def first(x: Array) -> Array:
        return half(quantized(half(x), amax["x"]) @ narrow["w1"])

    def second(r: Array) -> Array:
        return half(quantized(half(r), amax["r"]) @ narrow["w2"])

    wanted = {
        "a": (a, first(x), first(x)),
        "b": (b, second(np.maximum(first(x), 0)), second(r)),
        "y": (b / 2, half(second(np.maximum(first(x), 0)) / 2), half(half(b) / 2)),
    }
    by_value = rows(found)
    assert list(by_value) == ["a", "r", "b", "y"]
    for value, (exact, whole, alone) in wanted.items():
        row = by_value[value]
        assert row.relative_l2 == pytest.approx(distance(exact, whole), rel=1e-4)
        assert row.added == pytest.approx(distance(exact, alone), rel=1e-4)
        flat, got = exact.astype(np.float64).ravel(), whole.astype(np.float64).ravel()
        assert row.cosine == pytest.approx(flat @ got / np.linalg.norm(flat) / np.linalg.norm(got), abs=1e-7)
    assert by_value["r"].added == pytest.approx(distance(r, half(np.maximum(half(a), 0))), rel=1e-4)
    assert sum(row.share for row in found.rows) == pytest.approx(1)
    assert (by_value["b"].node, by_value["b"].op, by_value["b"].module, by_value["b"].source) == (
        "b", "MatMul", "net.b", "net.py:3",
    )  # fmt: skip


def test_a_value_that_smoothing_divided_is_left_out_and_its_reader_run_from_before_it(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    gain = np.where(np.arange(16) == 5, 100, 1).astype(np.float32)
    weight = random.normal(size=(16, 8)).astype(np.float32)
    body = "g (float[n,16] x) => (float[n,8] y) { l = LayerNormalization(x, gain) y = MatMul(l, w) }"
    model = graph(body, gain=gain, w=weight)
    x = random.normal(size=(32, 16)).astype(np.float32)
    seen = statistics(model, [{"x": x}])
    smooth = recipe("int8").model_copy(update={"weights": Weights(smooth=0.5)})
    narrow = model.clone()
    apply(narrow, smooth, seen.amax(), seen)

    found = layers(model, narrow, tmp_path, x)
    assert [row.value for row in found.rows] == ["y"]
    assert found.alone[0] == 1
    [row] = found.rows
    # All there is between x and y lies in one segment, so what is added is all there is.
    assert row.added == pytest.approx(row.relative_l2, rel=1e-6)
    assert row.relative_l2 is not None
    assert 1e-4 < row.relative_l2 < 0.02
    assert row.relative_l2 == pytest.approx(distance(run(model, {"x": x})["y"], run(narrow, {"x": x})["y"]), rel=0.1)


def test_cases_are_taken_together_as_one(mlp: tuple[ir.Model, dict[str, Any]], tmp_path: Path) -> None:
    model, _ = mlp
    x = np.random.default_rng(1).normal(size=(6, 16)).astype(np.float32)
    narrow = converted(model, recipe("int8"), observe(model, {"x": x}))[0]
    whole, parts = layers(model, narrow, tmp_path, x), layers(model, narrow, tmp_path, x[:1], x[1:])
    for one, two in zip(whole.rows, parts.rows, strict=True):
        assert one.relative_l2 == pytest.approx(two.relative_l2)
        assert one.share == pytest.approx(two.share)


def test_what_only_one_graph_has_is_counted(mlp: tuple[ir.Model, dict[str, Any]], tmp_path: Path) -> None:
    model, w = mlp
    x = np.ones((2, 16), np.float32)
    narrow = converted(model, recipe("int8"), observe(model, {"x": x}))[0]
    first, second = layers(model, narrow, tmp_path, x).alone
    assert first == 0
    floats = {v.name for n in narrow.graph for v in n.outputs if v.dtype in (ir.DataType.FLOAT, ir.DataType.FLOAT16)}
    assert second == len(floats - {"a", "r", "b", "y"})
    renamed = graph(BODY.replace("r = Relu(a)", "s = Relu(a)").replace("(r,", "(s,"), **w)
    found = layers(model, renamed, tmp_path, x)
    assert found.alone == (1, 1)
    assert {row.value: (row.relative_l2, row.added) for row in found.rows} == {v: (0.0, 0.0) for v in "aby"}


def test_where_fp16_overflows_is_the_first_value_that_is_not_finite(tmp_path: Path) -> None:
    body = "g (float[n,4] x) => (float[n,4] y) { s = Mul(x, x)  t = Mul(s, c)  y = Neg(t) }"
    model = graph(body, c=np.asarray(1e-3, np.float32))
    seen = observe(model, {"x": np.ones((1, 4), np.float32)})
    found = rows(layers(model, converted(model, recipe("fp16"), seen)[0], tmp_path, np.full((1, 4), 300, np.float32)))
    assert [found[v].finite for v in "sty"] == [False, False, False]
    # By itself t overflows as well, for it reads what FP16 cannot hold; y does not.
    assert [found[v].added for v in "st"] == [None, None]
    assert found["y"].added == pytest.approx(abs(float(np.float16(90)) - 90) / 90, abs=1e-6)
    assert all(row.relative_l2 is None for row in found.values())


def test_masked_scores_are_left_out(tmp_path: Path) -> None:
    body = "g (float[n,4] x, float[n,4] mask) => (float[n,4] y) { k = Mul(x, f) s = Add(k, mask) y = Softmax(s) }"
    one, two = (graph(body, f=np.asarray(factor, np.float32)) for factor in (1.0, 1.5))
    for name, model in (("a", one), ("b", two)):
        ir.save(model, tmp_path / f"{name}.onnx")
    mask = np.array([[0, 0, -65504, -np.inf]], np.float32)
    inputs: list[dict[str, Any]] = [{"x": np.array([[1, 2, 3, 4]], np.float32), "mask": mask}]
    found = rows(layer_errors(tmp_path / "a.onnx", tmp_path / "b.onnx", inputs, Silent()))
    assert found["s"].relative_l2 == pytest.approx(0.5)
    assert found["s"].finite
    assert found["k"].share == pytest.approx(1)


def test_where_the_output_is_an_index_what_it_is_taken_from_stands_for_it(tmp_path: Path) -> None:
    body = "g (float[n,4] x) => (int64[n,1] y) { s = Mul(x, f) t = Neg(s) y = ArgMax<axis=1>(t) }"
    one, two = (graph(body, f=np.asarray(factor, np.float32)) for factor in (1.0, 1.5))
    found = rows(layers(one, two, tmp_path, np.array([[1, 2, 3, 4]], np.float32)))
    assert {value: row.share for value, row in found.items()} == pytest.approx({"s": 1.0, "t": 0.0})


def test_bf16_rounds_to_eight_bits(tmp_path: Path) -> None:
    model = graph("g (float[n,4] x) => (float[n,4] y) { s = Mul(x, x) y = Neg(s) }")
    x = np.array([[1.1, 2.3, 3.7, 0.9]], np.float32)
    found = rows(layers(model, converted(model, recipe("bf16"), observe(model, {"x": x}))[0], tmp_path, x))

    def short(v: Array) -> Array:
        return v.astype(ml_dtypes.bfloat16).astype(np.float32)

    assert found["s"].added == pytest.approx(distance(x * x, short(short(x) * short(x))), rel=1e-5)


def test_graphs_of_two_opsets_are_compared_in_the_newer(tmp_path: Path) -> None:
    body = "g (float[n,4] x) => (float[n] y) { s = Mul(x, x) y = ReduceMean<axes=[1], keepdims=0>(s) }"
    new = "g (float[n,4] x) => (float[n] y) { s = Mul(x, x) y = ReduceMean<keepdims=0>(s, axes) }"
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    found = layers(graph(body, opset=17), graph(new, opset=20, axes=np.array([1])), tmp_path, x)
    assert [(row.value, row.relative_l2, row.added) for row in found.rows] == [("s", 0.0, 0.0), ("y", 0.0, 0.0)]


def test_integers_on_the_way_are_not_compared_and_layers_with_a_subgraph_are_not_run_alone(tmp_path: Path) -> None:
    def body(factor: str) -> str:
        return f"""g (float[n,4] x, bool c) => (float[n,4] y) {{
            size = Shape(x)  z = ConstantOfShape(size)  s = Mul(x, {factor})
            t = If (c) <then_branch = th () => (float[n,4] u) {{ u = Add(s, z) }},
                        else_branch = el () => (float[n,4] v) {{ v = Neg(s) }}>
            y = Neg(t) }}"""

    one, two = (graph(body("f"), f=np.asarray(factor, np.float32)) for factor in (2.0, 2.5))
    for name, model in (("a", one), ("b", two)):
        ir.save(model, tmp_path / f"{name}.onnx")
    inputs: list[dict[str, Any]] = [{"x": np.ones((2, 4), np.float32), "c": np.asarray(True)}]
    found = rows(layer_errors(tmp_path / "a.onnx", tmp_path / "b.onnx", inputs, Silent()))
    assert {v: row.added for v, row in found.items()} == {"z": 0.0, "s": 0.25, "t": None, "y": 0.0}
    assert {v: row.relative_l2 for v, row in found.items()} == {"z": 0.0, "s": 0.25, "t": 0.25, "y": 0.25}


def test_degenerate_sums_are_said_as_the_comparison_of_outputs_says_them() -> None:
    assert (cosine(0, 0, 0, 0), relative(0, 0)) == (1.0, 0.0)
    assert (cosine(0, 4, 0, 4), relative(4, 0)) == (0.0, 1.0)
    assert (cosine(4, 0, 0, 4), relative(4, 4)) == (0.0, 1.0)
    assert (cosine(float("inf"), 1, 1, 1), relative(1, float("inf")), relative(float("nan"), 1)) == (None, None, None)
