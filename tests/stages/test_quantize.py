"""The quantize stage: what it writes and records, and what its key depends on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from aot.config import Budget, Placement, Recipe
from aot.progress import Silent
from aot.records import Graph, QuantizedGraph, Ranges, Record
from aot.run import Run
from aot.stages.quantize import quantize
from aot.statistics import Statistics
from aot.store import Store
from tests.tiny import PLAN, write_model

INT8 = Recipe(precision="int8", placement=Placement(min_channels=1))


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(Store(tmp_path / "store"), Silent())


def graph(run: Run) -> Graph:
    def make(folder: Path) -> Mapping[str, Any]:
        write_model(folder / "model.onnx", np.ones((3, 2), np.float32))
        return {"nodes": 1, "passes": []}

    return run.stage(Graph, "surgery", make, config={}, inputs=[])


def ranges(run: Run, amax: float = 2.0) -> Ranges:
    def make(folder: Path) -> Mapping[str, Any]:
        (folder / "ranges.json").write_text(json.dumps({"x": {"amax": amax}}))
        return {}

    return run.stage(Ranges, "calibrate", make, config={"amax": amax}, inputs=[])


def made(run: Run, recipe: Recipe, amax: float = 2.0) -> QuantizedGraph:
    return quantize(run, graph(run), ranges(run, amax), replace(PLAN, precision=recipe.precision, recipe=recipe))


def test_the_record_says_what_was_done(run: Run) -> None:
    record = made(run, INT8)
    onnx.checker.check_model(str(record.model), full_check=True)
    assert record.nodes == len(onnx.load(str(record.model)).graph.node) == 6
    facts = record.facts
    assert (facts["precision"], facts["ops"], facts["qdq"], facts["warnings"]) == ("int8", {"MatMul": 1}, 2, [])
    [decision] = facts["decisions"]
    assert (decision["op"], decision["precision"]) == ("MatMul", "int8")
    assert "x reached 2" in decision["reason"]


def test_warnings_are_said_again_when_the_store_has_the_result(run: Run) -> None:
    recipe = INT8.model_copy(update={"placement": Placement(ops=("Conv",))})
    for _ in range(2):
        made(run, recipe)
    assert isinstance(run.progress, Silent)
    assert run.progress.warnings == ["nothing is quantized to int8: the graph has no Conv"] * 2


def test_the_key_follows_recipe_and_ranges_and_not_the_budget(run: Run) -> None:
    key = made(run, INT8).key
    assert made(run, INT8.model_copy(update={"budget": Budget(cosine=0.5)})).key == key
    assert made(run, INT8, amax=3.0).key != key
    assert made(run, INT8.model_copy(update={"per_channel": False})).key != key


def test_fp32_does_not_depend_on_the_ranges(run: Run) -> None:
    recipe = Recipe(precision="fp32", compute="fp32")
    assert made(run, recipe).key == made(run, recipe, amax=3.0).key


def observed(run: Run, amax: float, seen: float) -> Ranges:
    """Ranges that clip x at `amax`, of data in which it reached `seen`."""

    def see(folder: Path) -> Mapping[str, Any]:
        statistics = Statistics()
        statistics.observe("x", np.array([-seen, 1.0], np.float32))
        statistics.save(folder)
        return {}

    record = run.stage(Record, "observe", see, config={"seen": seen}, inputs=[])
    return replace(ranges(run, amax), observed=record)


def test_what_was_observed_decides_and_the_calibrator_scales(run: Run) -> None:
    def quantized(amax: float, seen: float) -> QuantizedGraph:
        return quantize(run, graph(run), observed(run, amax, seen), replace(PLAN, precision="int8", recipe=INT8))

    [decision] = quantized(2.0, 40.0).facts["decisions"]
    assert "x reached 40, clipped at 2, scale 0.0158" in decision["reason"]
    [decision] = quantized(2.0, 40_000.0).facts["decisions"]
    assert decision["precision"] == "fp32"
    assert quantized(2.0, 40.0).key != quantized(2.0, 50.0).key


def test_the_key_does_not_depend_on_how_the_ranges_were_chosen(run: Run) -> None:
    percentile = INT8.model_copy(update={"calibrator": "percentile", "percentile": 99.0})
    assert made(run, percentile).key == made(run, INT8).key


def test_weight_only_reads_no_range_of_an_activation(run: Run) -> None:
    record = made(run, INT8.model_copy(update={"activations": False}))
    assert record.facts["qdq"] == 1
    assert [d["reason"] for d in record.facts["decisions"]] == ["a weight scale for each index of axis 1"]
