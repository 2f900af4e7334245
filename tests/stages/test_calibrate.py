"""Calibration as a stage: every float value, the right range, and errors that say where."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import onnx.reference
import pytest

from aot.config import Budget, EngineOptions, Placement, Recipe, Verify, Weights
from aot.errors import CalibrationError, UsageError
from aot.observe import float_values
from aot.origins import Origin
from aot.plan import Plan
from aot.progress import Silent
from aot.records import MODEL, Data, Graph
from aot.run import Run
from aot.stages.calibrate import calibrate, needed, observe
from aot.statistics import Level
from aot.store import Entry, Store

TEXT = """
<ir_version: 10, opset_import: ["" : 20]>
g (float[B,S,4] x, int64[B,S] ids) => (float[B,S,2] y)
<float[4,2] w = {1, 2, 3, 4, 5, 6, 7, 8}, float[2] bias = {1, -1}, float[9] table = {0, 1, 2, 3, 4, 5, 6, 7, 8},
 int64[1] last = {-1}>
{ h = MatMul(x, w)  s = Add(h, bias)  t = Transpose<perm = [0, 2, 1]>(s)  back = Transpose<perm = [0, 2, 1]>(t)
  looked = Gather(table, ids)  wide = Unsqueeze(looked, last)  root = Sqrt(wide)  y = Mul(back, root) }
"""
FLOATS = ("h", "s", "t", "back", "looked", "wide", "root", "y")


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    model = onnx.parser.parse_model(TEXT)
    for index, node in enumerate(model.graph.node):
        node.name = f"node{index}"
        for key, value in Origin("head.root", "m.py", 7).metadata().items():
            node.metadata_props.add(key=key, value=value)
    model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    folder = tmp_path / "graph"
    folder.mkdir()
    onnx.save(model, folder / MODEL)
    return Graph(Entry("surgery", "g" * 64, folder, {"nodes": 8}))


def batches(sizes: tuple[tuple[int, int], ...] = ((4, 3), (1, 7), (6, 2))) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    return [{"x": rng.normal(size=(b, s, 4)).astype(np.float32), "ids": rng.integers(0, 9, (b, s))} for b, s in sizes]


def stored(folder: Path, content: list[dict[str, Any]], key: str = "d") -> Data:
    folder.mkdir(exist_ok=True)
    files = []
    for number, batch in enumerate(content):
        files.append(f"{number:05}.npz")
        np.savez(folder / files[-1], **batch)
    return Data(Entry("collect", key * 64, folder, {"calibration": files, "heldout": [], "generated": False}))


def plan(precision: str = "fp8", **settings: Any) -> Plan:
    recipe = Recipe(precision=precision, **settings)  # type: ignore[arg-type]
    return Plan(recipe.precision, recipe, ({},), None, (), EngineOptions(), Budget(), Verify())


def expected(content: list[dict[str, Any]]) -> dict[str, float]:
    """amax of every value by ONNX's own reference implementation."""
    model = onnx.parser.parse_model(TEXT)
    del model.graph.output[:]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in FLOATS)
    evaluator = onnx.reference.ReferenceEvaluator(model)
    amax = {"x": max(float(np.abs(batch["x"]).max()) for batch in content)}
    for batch in content:
        for name, value in zip(FLOATS, evaluator.run(None, batch), strict=True):
            amax[name] = max(amax.get(name, 0.0), float(np.abs(value).max()))
    return amax


def test_every_float_value_has_its_largest_magnitude(graph: Graph, tmp_path: Path) -> None:
    content = batches()
    ranges = calibrate(Run(Store(tmp_path), Silent()), graph, stored(tmp_path / "data", content), plan())
    assert ranges.amax() == pytest.approx(expected(content), rel=1e-5)
    written = json.loads((ranges.path / "ranges.json").read_text())
    assert list(written) == sorted(written)
    assert {found["calibrator"] for found in written.values()} == {"max"}
    assert ranges.facts["batches"] == 3


@pytest.mark.parametrize("memory", [1, 200, 1 << 30])
def test_cutting_batches_to_fit_memory_changes_nothing(graph: Graph, tmp_path: Path, memory: int) -> None:
    content = batches()
    found = observe(graph.model, stored(tmp_path / "data", content), Level.EXTREMES, Silent(), memory=memory)
    assert found.amax() == pytest.approx(expected(content), rel=1e-5)


def test_parts_of_a_batch_fit_and_cover_it(graph: Graph) -> None:
    observed = float_values(graph.model)
    (batch,) = batches(((10, 3),))
    limit = observed.bytes_needed(batch) // 3
    parts = list(observed.parts(batch, limit))
    assert all(observed.bytes_needed(part) <= limit for part in parts)
    assert len(parts) == 4
    for name in batch:
        assert np.array_equal(np.concatenate([part[name] for part in parts]), batch[name])


@pytest.mark.parametrize(("samples", "over", "sizes"), [(8, 1, [4, 4]), (9, 3, [2, 2, 2, 2, 1]), (1, 1, [1])])
def test_what_runs_side_by_side_shares_a_batch(graph: Graph, samples: int, over: int, sizes: list[int]) -> None:
    """over: how many times what a part may hold the batch takes."""
    observed = float_values(graph.model)
    (batch,) = batches(((samples, 3),))
    parts = observed.parts(batch, observed.bytes_needed(batch) // over, beside=2)
    assert [len(next(iter(part.values()))) for part in parts] == sizes


def test_moved_values_are_not_observed_twice(graph: Graph) -> None:
    observed = float_values(graph.model)
    assert observed.values == ("x", "h", "s", "looked", "root", "y")
    assert observed.alias == {"t": "s", "back": "s", "wide": "looked"}


def test_fp32_observes_nothing(graph: Graph, tmp_path: Path) -> None:
    ranges = calibrate(Run(Store(tmp_path), Silent()), graph, stored(tmp_path / "data", batches()), plan("fp32"))
    assert ranges.amax() == {}


def test_what_is_kept_wide_does_not_calibrate_anew(graph: Graph, tmp_path: Path) -> None:
    run = Run(Store(tmp_path), Silent())
    data, other = stored(tmp_path / "data", batches()), stored(tmp_path / "other", batches()[:1], "o")
    first = calibrate(run, graph, data, plan())
    kept = calibrate(run, graph, data, plan(placement=Placement(keep=("node0",))))
    narrow = calibrate(run, graph, data, plan("int8"))
    fewer = calibrate(run, graph, other, plan())
    assert kept.key == narrow.key == first.key != fewer.key
    assert [time.cached for time in run.times] == [False, False, True, True, True, True, False, False]


def test_another_calibrator_runs_the_model_only_where_it_needs_to_see_more(graph: Graph, tmp_path: Path) -> None:
    run = Run(Store(tmp_path), Silent())
    data = stored(tmp_path / "data", batches())

    def looked(calibrator: str, **settings: Any) -> bool:
        before = len(run.times)
        ranges = calibrate(run, graph, data, plan("int8", calibrator=calibrator, **settings))
        assert ranges.facts["calibrator"] == calibrator
        return not run.times[before].cached

    assert looked("max")
    assert looked("output_error")
    assert not any(map(looked, ("entropy", "mse", "max")))
    assert not looked("percentile", percentile=99.0)
    assert not looked("percentile", percentile=90.0)
    assert not looked("mse", activations=False)
    assert looked("mse", weights=Weights(smooth=0.5))
    run.fresh = True
    assert looked("max")


def test_weights_alone_need_no_closer_look_whatever_the_calibrator() -> None:
    closely = {"calibrator": "output_error", "activations": False}
    assert needed(Recipe(precision="int8", **closely)) == Level.EXTREMES  # type: ignore[arg-type]
    assert needed(Recipe(precision="int8", calibrator="output_error")) == Level.WEIGHTED
    adaptive = Weights(rounding="adaptive")
    assert needed(Recipe(precision="int8", weights=adaptive, **closely)) == Level.PRODUCTS  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("cores", "said"), [(2, "2 at work, for 3 batches on 2 cores"), (8, "3 at work, for 3 batches")]
)
def test_no_more_processes_than_batches_and_cores(
    graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: int, said: str
) -> None:
    started = []

    def share(model: Path, files: list[Path], level: Level, workers: int, *_: Any) -> str:
        started.append(workers)
        return "seen"

    monkeypatch.setattr("os.cpu_count", lambda: cores)
    monkeypatch.setattr("aot.observing_workers.share", share)
    progress = Silent()
    observe(graph.model, stored(tmp_path / "data", batches()), Level.EXTREMES, progress, workers=100)
    assert started == [min(cores, 3)]
    assert progress.warnings[0].startswith(f"--workers 100: {said}")


def test_a_calibrator_clips_what_layers_read_and_nothing_else(graph: Graph, tmp_path: Path) -> None:
    content = batches(((40, 30),))
    content[0]["x"][0, 0, 0] = 50
    chosen = plan("int8", calibrator="percentile", percentile=99.0)
    ranges = calibrate(Run(Store(tmp_path), Silent()), graph, stored(tmp_path / "data", content), chosen)
    amax, extremes = ranges.amax(), ranges.extremes()
    assert extremes == pytest.approx(expected(content), rel=1e-5)
    assert amax["x"] == pytest.approx(np.percentile(np.abs(content[0]["x"]), 99), rel=0.008)
    assert {name for name in amax if amax[name] < extremes[name]} == {"x"}
    assert ranges.statistics().amax() == extremes
    written = json.loads((ranges.path / "ranges.json").read_text())
    assert (written["x"]["calibrator"], written["y"]["calibrator"]) == ("percentile", "max")
    assert ranges.statistics().provenance["graph"] == graph.key


def test_nan_is_located(graph: Graph, tmp_path: Path) -> None:
    """sqrt of a negative table entry: the first bad value is named, not what comes after it."""
    model = onnx.load(graph.model)
    table = next(t for t in model.graph.initializer if t.name == "table")
    table.CopyFrom(onnx.numpy_helper.from_array(np.arange(9, dtype=np.float32) - 1, "table"))
    onnx.save(model, graph.model)
    content = batches(((1, 2), (1, 2)))
    content[0]["ids"][:], content[1]["ids"][:] = 5, 0
    with pytest.raises(CalibrationError) as caught:
        observe(graph.model, stored(tmp_path / "data", content), Level.EXTREMES, Silent())
    assert "value 'root' is NaN or infinite on calibration batch 1" in str(caught.value)
    assert caught.value.where == "node 'node6' (Sqrt), module 'head.root', m.py:7"


def test_no_batches_and_unknown_calibrators_are_refused(graph: Graph, tmp_path: Path) -> None:
    run = Run(Store(tmp_path), Silent())
    with pytest.raises(CalibrationError, match="no calibration batch"):
        calibrate(run, graph, stored(tmp_path / "empty", []), plan())
    with pytest.raises(UsageError, match="did you mean 'max'"):
        calibrate(run, graph, stored(tmp_path / "data", batches()), plan(calibrator="mx"))


def test_weights_beside_the_file_are_found(graph: Graph, tmp_path: Path) -> None:
    model = onnx.load(graph.model)
    folder = tmp_path / "external"
    folder.mkdir()
    onnx.save(model, folder / MODEL, save_as_external_data=True, location=f"{MODEL}.data", size_threshold=0)
    content = batches()
    found = observe(folder / MODEL, stored(tmp_path / "data", content), Level.EXTREMES, Silent())
    assert found.amax() == pytest.approx(expected(content), rel=1e-5)
