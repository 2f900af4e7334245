"""A first half of a build made by hand: y = x W with its records in a store, no torch."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from aot import arrays, artifact, source
from aot.config import Budget, EngineOptions, Recipe, Verify
from aot.declaration import Dim, Input, ModelSpec
from aot.plan import Plan
from aot.plugins.replacing import NOTHING, Replacing
from aot.progress import Silent
from aot.records import Engine, QuantizedGraph, Ranges, References, Report
from aot.run import Run
from aot.stages.verify import verify_graph
from aot.store import Store

WEIGHT = np.array([[1.0, -2.0], [0.5, 3.0], [2.0, 0.25]], np.float32)
SPEC = ModelSpec("tiny", {"x": Input([Dim("batch", min=1, opt=2, max=4), 3])}, outputs=("y",))
PLAN = Plan(
    precision="fp32",
    recipe=Recipe(precision="fp32", compute="fp32"),
    profiles=({"batch": (1, 2, 4)},),
    backend=None,
    targets=(),
    engine=EngineOptions(),
    budget=Budget(cosine=0.999),
    verify=Verify(),
)


class Eager(source.Source):
    """The model in numpy. score: minus the mean error on one batch, or what `scores` says, in turn."""

    spec = SPEC
    key = "0" * 64
    project = Path(".")
    tools = ()

    def __init__(self, scores: Iterator[float] | None = None) -> None:
        self.scores = scores
        if scores is not None:
            self.spec = replace(SPEC, has_metric=True)

    def write_onnx(self, folder: Path, replacing: Replacing = NOTHING) -> Mapping[str, Any]:
        raise NotImplementedError

    def eager(self) -> source.Runner:
        return lambda inputs: {"y": inputs["x"] @ WEIGHT}

    def data_key(self) -> str:
        return "1" * 64

    def batches(self) -> None:
        return None

    def score(self, run: source.Runner) -> float | None:
        return next(self.scores) if self.scores is not None else None


def write_model(path: Path, weight: np.ndarray[Any, Any]) -> None:
    """The ONNX file of y = x W."""
    text = f"""<ir_version: 10, opset_import: ["": 20]>
    tiny (float[batch, 3] x) => (float[batch, 2] y)
    <float[3, 2] w = {{{", ".join(str(float(v)) for v in weight.ravel())}}}> {{ y = MatMul(x, w) }}"""
    onnx.save(onnx.parser.parse_model(text), str(path))


class Workshop:
    """Makes records in one store."""

    def __init__(self, root: Path) -> None:
        self.run = Run(Store(root), Silent())

    def graph(self, weight: np.ndarray[Any, Any] = WEIGHT) -> QuantizedGraph:
        """The final graph, with one decision to show."""

        def make(folder: Path) -> Mapping[str, Any]:
            write_model(folder / "model.onnx", weight)
            decision = {"node": "matmul <1>", "op": "MatMul", "precision": "fp32", "reason": "the network's precision"}
            decision |= {"module": "net.head", "source": "tiny.py:3"}
            return {"nodes": 1, "precision": "fp32", "ops": {}, "qdq": 0, "decisions": [decision], "warnings": []}

        config = {"weight": weight.ravel().tolist()}
        return self.run.stage(QuantizedGraph, "quantize", make, config=config, inputs=[])

    def references(self) -> References:
        """Two cases, batch 1 and 3."""

        def make(folder: Path) -> Mapping[str, Any]:
            rows = []
            for batch in (1, 3):
                x = np.random.default_rng(batch).normal(size=(batch, 3)).astype(np.float32)
                arrays.save(folder / f"b{batch}.in.npz", {"x": x})
                arrays.save(folder / f"b{batch}.out.npz", {"y": x @ WEIGHT})
                rows.append({"name": f"b{batch}", "kind": "generated", "sizes": {"batch": batch}})
            (folder / "cases.json").write_text(json.dumps(rows))
            return {"cases": len(rows)}

        return self.run.stage(References, "reference", make, config={}, inputs=[])

    def ranges(self) -> Ranges:
        """One observed tensor."""

        def make(folder: Path) -> Mapping[str, Any]:
            (folder / "ranges.json").write_text(json.dumps({"x": {"amax": 3.5}}))
            return {}

        return self.run.stage(Ranges, "calibrate", make, config={}, inputs=[])

    def prepared(self, weight: np.ndarray[Any, Any] = WEIGHT, plan: Plan = PLAN) -> artifact.Prepared:
        """The whole first half, compared with `Eager`."""
        final, references = self.graph(weight), self.references()
        checked = verify_graph(self.run, Eager(), final, references, plan)
        return artifact.Prepared(SPEC, plan, 2, final, self.ranges(), references, checked)

    def engine(self, target: str = "sm89", backend: str = "tensorrt_rtx", data: bytes = b"plan" * 100) -> Engine:
        """An engine's record over arbitrary bytes."""

        def make(folder: Path) -> Mapping[str, Any]:
            (folder / f"{target}.plan").write_bytes(data)
            (folder / f"{target}.timing").write_bytes(b"timings")
            return {
                "target": target, "backend": backend, "version": "1.7.1", "file": f"{target}.plan",
                "bytes": len(data), "sha256": "0" * 64, "origin": None,
            }  # fmt: skip

        return self.run.stage(Engine, "build", make, config={"t": target, "d": len(data)}, inputs=[])

    def cpu_engine(self, weight: np.ndarray[Any, Any] = WEIGHT) -> Engine:
        """An engine that runs here: the graph itself."""

        def make(folder: Path) -> Mapping[str, Any]:
            write_model(folder / "cpu.onnx", weight)
            size = (folder / "cpu.onnx").stat().st_size
            return {
                "target": "cpu", "backend": "onnxruntime", "version": "1", "file": "cpu.onnx",
                "bytes": size, "sha256": "0" * 64, "origin": None,
            }  # fmt: skip

        return self.run.stage(Engine, "build", make, config={"w": weight.ravel().tolist()}, inputs=[])


def report_of(record: Report) -> dict[str, Any]:
    """`report.json` of a comparison."""
    return dict(json.loads((record.path / "report.json").read_text()))
