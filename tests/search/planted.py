"""Small models with one planted weakness, as records in a store: the FP32 graph, ranges, references, no torch."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from aot import arrays, origins
from aot.config import Budget, Placement, Recipe
from aot.declaration import Dim, Input, ModelSpec
from aot.origins import Origin
from aot.plan import Plan
from aot.progress import Silent
from aot.records import Graph, QuantizedGraph, Ranges, References, Repair, Report
from aot.run import Run
from aot.stages.quantize import quantize
from aot.stages.repair import repair
from aot.stages.verify import verify_graph
from aot.store import Store
from tests.precision.graphs import graph, observe, run
from tests.tiny import PLAN, Eager

Array = np.ndarray[Any, Any]


@dataclass
class Planted:
    """A model y = f(x), x [batch, width], and what a search starts from. seen: what calibration sees; judged: the
    references. guilty: the nodes that the weakness was planted in. off: what eager differs by from the FP32 graph."""

    folder: Path
    body: str
    weights: dict[str, Any]
    seen: Array
    judged: Sequence[Array]
    recipe: Recipe
    budget: Budget
    guilty: frozenset[str]
    off: float = 0.0

    def __post_init__(self) -> None:
        self.run = Run(Store(self.folder), Silent())
        width = self.seen.shape[1]
        self.source = Eager()
        self.source.spec = ModelSpec("planted", {"x": Input([Dim("n", min=1, opt=8, max=64), width])}, outputs=("y",))
        self.model = graph(f"planted (float[n,{width}] x) => (float[n,m] y) {{ {self.body} }}", **self.weights)
        for node in self.model.graph:
            origins.set(node, Origin(f"net.{node.name}", "net.py", 7))
        self.plan: Plan = replace(
            PLAN,
            precision=self.recipe.precision,
            recipe=self.recipe,
            budget=self.budget,
            profiles=({"n": (1, 8, 64)},),
        )
        self.graph = self.run.stage(Graph, "surgery", self._graph, config={}, inputs=[])
        self.ranges = self.run.stage(Ranges, "calibrate", self._ranges, config={}, inputs=[])
        self.references = self.run.stage(References, "reference", self._references, config={}, inputs=[])

    def _graph(self, folder: Path) -> Mapping[str, Any]:
        ir.save(self.model, folder / "model.onnx")
        return {"nodes": len(self.model.graph), "passes": []}

    def _ranges(self, folder: Path) -> Mapping[str, Any]:
        found = observe(self.model, {"x": self.seen})
        rows = {name: {"amax": amax, "low": -amax, "high": amax} for name, amax in found.items()}
        (folder / "ranges.json").write_text(json.dumps(rows))
        return {}

    def _references(self, folder: Path) -> Mapping[str, Any]:
        rows = []
        for number, x in enumerate(self.judged):
            arrays.save(folder / f"c{number}.in.npz", {"x": x})
            y = run(self.model, {"x": x})["y"]
            arrays.save(folder / f"c{number}.out.npz", {"y": y + np.float32(self.off)})
            rows.append({"name": f"c{number}", "kind": "heldout", "sizes": {"n": len(x)}})
        (folder / "cases.json").write_text(json.dumps(rows))
        return {"cases": len(rows)}

    def made(self, plan: Plan) -> tuple[QuantizedGraph, Report]:
        """The final graph of a plan, and its comparison."""
        final = quantize(self.run, self.graph, self.ranges, plan)
        return final, verify_graph(self.run, self.source, final, self.references, plan)

    def repaired(self) -> Repair:
        """What the search comes to; the graph as asked for misses its budget."""
        final, checked = self.made(self.plan)
        assert not checked.facts["accepted"]
        return repair(self.run, self.source, self.graph, self.ranges, self.references, final, checked, self.plan)

    def keeping(self, *, layers: Iterable[str] = (), fp32: Iterable[str] = ()) -> Report:
        """The comparison when these nodes are kept wide."""
        placement = self.recipe.placement.model_copy(update={"keep": tuple(layers)})
        recipe = self.recipe.model_copy(update={"keep": tuple(fp32), "placement": placement})
        return self.made(replace(self.plan, recipe=recipe))[1]

    def fewest(self, nodes: Sequence[str], most: int, *, fp32: bool) -> list[tuple[str, ...]]:
        """By brute force: every smallest set of `nodes` that is enough, of at most `most`."""
        for size in range(1, most + 1):
            sets = [
                some
                for some in itertools.combinations(nodes, size)
                if self.keeping(**{"fp32" if fp32 else "layers": some}).facts["accepted"]
            ]
            if sets:
                return sets
        return []


def quantized(precision: str, **placement: Any) -> Recipe:
    return Recipe(precision=precision, compute="fp16", placement=Placement(min_channels=1, **placement))  # type: ignore[arg-type]
