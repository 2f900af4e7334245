"""The graph in the dtypes the engine will use: islands, Q/DQ, casts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aot.config import Recipe
from aot.plan import Plan
from aot.records import MODEL, Graph, QuantizedGraph, Ranges, Record
from aot.run import Run
from aot.stages.surgery import count_ops

TOOLS = ("onnx", "onnx-ir", "numpy", "ml_dtypes")


def quantize(run: Run, graph: Graph, ranges: Ranges, plan: Plan) -> QuantizedGraph:
    """Apply the plan's recipe to the graph. Raises GraphError where the graph cannot take the precision.

    FP32 does not look at the ranges, so it does not depend on them either. How ranges were chosen is in the ranges.
    """
    recipe = plan.recipe
    inputs: list[Record] = [graph] if recipe.precision == "fp32" else [graph, ranges]
    if recipe.precision != "fp32" and ranges.observed is not None:
        inputs.append(ranges.observed)

    def make(folder: Path) -> Mapping[str, Any]:
        return write(graph, ranges, recipe, folder)

    record = run.stage(
        QuantizedGraph,
        "quantize",
        make,
        config=recipe.model_dump(mode="json", exclude={"budget", "calibrator", "percentile"}),
        inputs=inputs,
        tools=TOOLS,
        detail=recipe.precision,
    )
    for warning in record.facts["warnings"]:
        run.progress.warn(warning)
    return record


def write(graph: Graph, ranges: Ranges, recipe: Recipe, folder: Path) -> Mapping[str, Any]:
    """Write what the recipe makes of the graph into `folder`; return the facts of a QuantizedGraph."""
    import onnx_ir as ir

    from aot.precision import apply

    model = ir.load(graph.model)
    if recipe.precision == "fp32":
        outcome = apply(model, recipe, {})
    else:
        seen = None if ranges.observed is None else ranges.statistics()
        outcome = apply(model, recipe, ranges.amax(), seen)
    ir.save(model, folder / MODEL, external_data=f"{MODEL}.data")
    return {**outcome.facts(recipe.precision), "steps": [*_steps(graph), {"step": "final", "ops": count_ops(model)}]}


def _steps(graph: Graph) -> list[dict[str, Any]]:
    """The graph's nodes by op as it was exported and as surgery left it, and how many places each pass changed."""
    ops = graph.facts.get("ops")
    if ops is None:
        return []
    passes = {one["name"]: one["sites"] for one in graph.facts["passes"]}
    return [{"step": "exported", "ops": ops["before"]}, {"step": "surgery", "ops": ops["after"], "passes": passes}]
