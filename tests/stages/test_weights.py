"""What leaves a stripped plan, what the plan then depends on, and who shares one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from safetensors.numpy import load_file

from aot.config import EngineOptions
from aot.declaration import Dim, Input, ModelSpec
from aot.errors import EngineError, TargetError
from aot.plan import Plan
from aot.progress import Silent
from aot.records import Engine, QuantizedGraph
from aot.run import Run
from aot.stages.build import build_engine
from aot.stages.weights import leaving, strip
from aot.store import Entry, Store
from tests.backends import fake_tensorrt
from tests.backends.graphs import write
from tests.stages.test_build import plan as plan_of

SPEC = ModelSpec("m", {"x": Input([Dim("batch", min=1, opt=4, max=8), 4])})
LINEAR = """g (float[b, 4] x) => (float[b, 3] y)
<float half = {0.5}> { h = MatMul(x, w)  a = Add(h, bias)  y = Mul(a, half) }"""
W, BIAS = np.arange(12, dtype=np.float32).reshape(4, 3), np.ones(3, np.float32)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(Store(tmp_path / "store"), Silent())


def final(folder: Path, key: str, text: str = LINEAR, **weights: np.ndarray[Any, Any]) -> QuantizedGraph:
    (folder / key).mkdir(parents=True)
    given: dict[str, Any] = weights or {"w": W, "bias": BIAS}
    write(folder / key / "model.onnx", text, **given)
    return QuantizedGraph(Entry("quantize", key, folder / key, {"nodes": 3}))


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (LINEAR, {"w", "bias"}),
        ("g (float[b, 4] x) => (float[b, 4] y) { y = Mul(x, v) }", {"v"}),
        ("g (int64[b] x) => (float[b, 3] y) { y = Gather(w, x) }", {"w"}),
        ("g (float[b, 4] x) => (float[b, 4] y) { y = LayerNormalization(x, v, v) }", {"v"}),
        ("g (float[b, 2, 4, 4] x) => (float[b, 2, 2, 2] y) { y = Conv(x, k, c) }", {"k", "c"}),
        ("g (float[b, 4] x) => (float[b, 4] y) { y = Concat<axis=0>(x, row) }", set()),
        ("g (float[b, 4] x) => (float[b, 4] y) { s = Mul(x, row)  y = Concat<axis=0>(s, row) }", set()),
        ("g (float[b, 4] x) => (float[b, 8] y) { y = Resize(x, , v2) }", set()),
        (
            "g (float[b, 4] x) => (float[b, 3] y) { d = DequantizeLinear<axis=1>(q, scales, z)  y = MatMul(x, d) }",
            set(),
        ),
        ("g (float[b, 4] x) => (float[b, 4] y) { y = own.Twist(x, v) }", set()),
    ],
)
def test_weights_leave_and_what_the_builder_must_know_stays(tmp_path: Path, text: str, names: set[str]) -> None:
    every: dict[str, Any] = {
        **{"w": W, "bias": BIAS, "v": np.ones(4, np.float32), "row": np.ones((1, 4), np.float32)},
        **{"k": np.ones((2, 2, 3, 3), np.float32), "c": np.ones(2, np.float32), "v2": np.array([1, 2], np.float32)},
        **{"q": W.astype(np.int8), "scales": BIAS, "z": np.zeros(3, np.int8)},
    }
    read = {name: array for name, array in every.items() if f" {name}" in text or f"({name}" in text}
    assert set(leaving(ir.load(final(tmp_path, "k", text, **read).model))) == names


def test_the_weights_are_a_safetensors_file(run: Run, tmp_path: Path) -> None:
    made = strip(run, final(tmp_path, "k", w=W.astype(np.float16), bias=BIAS))
    found = load_file(made.file)
    assert made.facts["names"] == ["bias", "w"]  # wider ones first, so that each lies aligned
    assert made.facts["bytes"] == made.file.stat().st_size
    np.testing.assert_array_equal(found["w"], W.astype(np.float16))
    np.testing.assert_array_equal(found["bias"], BIAS)


def test_the_rest_depends_on_everything_but_the_values_that_leave(run: Run, tmp_path: Path) -> None:
    def rest(key: str, text: str = LINEAR, w: Any = W, bias: Any = BIAS) -> str:
        return str(strip(run, final(tmp_path, key, text, w=w, bias=bias)).facts["rest"])

    first = rest("1")
    assert rest("2", w=W * 2, bias=BIAS - 3) == first
    others = [
        rest("3", LINEAR.replace("0.5", "0.25")),  # a scalar stays in the plan
        rest("4", w=W.astype(np.float16)),
        rest("5", LINEAR.replace("Add", "Sub")),
        rest("6", bias=np.ones((1, 3), np.float32)),
    ]
    assert len({first, *others}) == 5


def test_the_rest_does_not_depend_on_where_weights_lie(run: Run, tmp_path: Path) -> None:
    model, found = ir.load(final(tmp_path, "source").model), []
    beside: dict[str, Any] = {"external_data": "model.onnx.data", "size_threshold_bytes": 8}
    ways: dict[str, dict[str, Any]] = {"inside": {}, "beside": beside}
    for name, more in ways.items():
        (tmp_path / name).mkdir()
        ir.save(model, tmp_path / name / "model.onnx", **more)
        found.append(strip(run, QuantizedGraph(Entry("quantize", name, tmp_path / name, {}))))
    assert (tmp_path / "beside/model.onnx.data").stat().st_size >= W.nbytes
    assert found[0].facts["rest"] == found[1].facts["rest"]
    assert found[0].file.read_bytes() == found[1].file.read_bytes()


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    fake_tensorrt.install(monkeypatch)
    (tmp_path / "project/plugins").mkdir(parents=True)
    return tmp_path / "project"


def built(run: Run, project: Path, graph: QuantizedGraph, **options: Any) -> Engine:
    plan: Plan = replace(plan_of(project), engine=EngineOptions(**options))
    return build_engine(run, graph, SPEC, plan, "sm90")


def test_models_with_equal_graphs_share_a_plan(run: Run, project: Path, tmp_path: Path) -> None:
    first = built(run, project, final(tmp_path, "1"), strip=True)
    second = built(run, project, final(tmp_path, "2", w=W * 2, bias=BIAS), strip=True)
    assert (first.plan, first.entry.cached, second.entry.cached) == (second.plan, False, True)
    assert first.weights != second.weights
    assert first.weights is not None
    assert second.weights is not None
    np.testing.assert_array_equal(load_file(second.weights)["w"], load_file(first.weights)["w"] * 2)
    assert (
        built(run, project, final(tmp_path, "3", LINEAR.replace("0.5", "2"), w=W, bias=BIAS), strip=True).key
        != first.key
    )
    assert built(run, project, final(tmp_path, "4")).key != first.key


def test_the_builder_is_told_which_weights_leave(run: Run, project: Path, tmp_path: Path) -> None:
    engine = built(run, project, final(tmp_path, "1"), strip=True)
    builder = fake_tensorrt.MODULE.builders[-1]
    assert sorted(builder.network.marked) == ["bias", "w"]
    assert builder.config.flags == {"strip", "refit_individual"}
    assert engine.facts["stripped"] == {"weights": 2}
    assert built(run, project, final(tmp_path, "2")).facts.get("stripped") is None


def test_a_weight_that_the_builder_does_not_know_is_named(
    run: Run, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fake_tensorrt.Network, "mark_weights_refittable", lambda self, name: name != "w")
    with pytest.raises(EngineError, match="weight 'w' cannot leave the plan"):
        built(run, project, final(tmp_path, "1"), strip=True)


def test_other_forms_reach_the_builder_and_are_in_the_facts(run: Run, project: Path, tmp_path: Path) -> None:
    graph = final(tmp_path, "1")
    with_lean = built(run, project, graph, version_compatible=True)
    assert with_lean.facts["version_compatible"] == "with"
    assert fake_tensorrt.MODULE.builders[-1].config.flags == {"version_compatible"}
    without = built(run, project, graph, version_compatible=True, lean_runtime=False)
    assert without.facts["version_compatible"] == "without"
    assert fake_tensorrt.MODULE.builders[-1].config.flags == {"version_compatible", "exclude_lean_runtime"}
    ampere = built(run, project, graph, hardware_compatible="ampere_plus")
    assert ampere.facts["hardware_compatible"] == "ampere_plus"
    assert fake_tensorrt.MODULE.builders[-1].config.hardware_compatibility_level == "ampere_plus"
    assert len({one.key for one in (with_lean, without, ampere)}) == 3


def test_no_kernel_of_a_plugin_travels_to_other_gpus(run: Run, project: Path, tmp_path: Path) -> None:
    from aot.records import Kernels

    kernels = Kernels(Entry("kernels", "k", tmp_path, {"target": "sm90", "kernels": [], "left": []}))
    plan = replace(plan_of(project), engine=EngineOptions(hardware_compatible="ampere_plus"))
    with pytest.raises(TargetError, match="compiled for sm90 alone"):
        build_engine(run, final(tmp_path, "1"), SPEC, plan, "sm90", kernels)
