"""The steps in order, and the record of what was decided."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import onnx_ir as ir
from onnx_ir.passes.common import LiftConstantsToInitializersPass

from aot import origins
from aot.calibrator import get
from aot.config import Recipe
from aot.errors import GraphError
from aot.origins import Origin
from aot.precision.activations import fitted
from aot.precision.casts import retype
from aot.precision.formats import FLOATS, QUANTIZED, Float
from aot.precision.gelu import tanh_form
from aot.precision.islands import Islands, find_islands
from aot.precision.patterns import Patterns, check_op_types
from aot.precision.placement import Placed, place
from aot.precision.qdq import insert
from aot.precision.reading import Observed, figure, is_float
from aot.precision.rules import slow
from aot.precision.schemas import opset_for
from aot.precision.weights.prepare import prepare
from aot.precision.weights.seen import Seen
from aot.precision.weights.work import Work

if TYPE_CHECKING:
    from aot.statistics import Statistics


@dataclass(frozen=True)
class Decision:
    """What a node computes in, and why; module, source: where it comes from, as `aot.origins` has it."""

    node: str
    op: str
    precision: str
    reason: str
    module: str = ""
    source: str = ""


@dataclass(frozen=True)
class Outcome:
    """decisions: one a node of the graph as it came. ops: how many nodes of a type were quantized. qdq: how many
    DequantizeLinear nodes there are now. weights: what was done to them beyond rounding, step by step."""

    decisions: tuple[Decision, ...]
    ops: Mapping[str, int]
    qdq: int
    nodes: int
    warnings: tuple[str, ...]
    weights: tuple[Work, ...] = ()

    def facts(self, precision: str) -> dict[str, Any]:
        """As plain data, for the record."""
        return {
            "nodes": self.nodes,
            "precision": precision,
            "ops": dict(self.ops),
            "qdq": self.qdq,
            "decisions": [asdict(d) for d in self.decisions],
            "warnings": list(self.warnings),
            "weights": [work.facts() for work in self.weights],
        }


def apply(model: ir.Model, recipe: Recipe, amax: Mapping[str, float], statistics: Statistics | None = None) -> Outcome:
    """Change the model as the recipe says.

    amax: by tensor name, the magnitude that a calibrator chose; scales are made of it. statistics: what was observed;
    whether a value fits a dtype is decided by its extremes. Without, amax stands for both.
    Raises GraphError where the graph's opset cannot express the precision, a value's dtype is not known, or a strict
    recipe meets a layer that it cannot quantize, and UsageError where the recipe names an op type that is none.
    """
    graph = model.graph
    original = [(node, node.name or "", node.op_type) for node in graph]
    form = QUANTIZED.get(recipe.precision)
    compute = FLOATS[recipe.compute if form else recipe.precision]
    seen = _seen(recipe, amax, statistics) if form else None
    check_op_types(recipe.keep_fp32, model)
    keep = Patterns(recipe.keep)
    observed, islands, placed = Observed(amax), Islands({}, {}), Placed()
    works: list[Work] = []
    dtypes = {node: _dtype(node) for node, _, _ in original}

    if recipe.precision != "fp32":
        opset = opset_for(model, compute.onnx, form.opset if form else 0)
        _check(model, recipe, opset)
        LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
        if seen is not None:
            works += prepare(graph, recipe, seen)
            amax, statistics = fitted(seen.amax, seen.statistics, seen.form), seen.statistics
        observed = _observed(amax, statistics)
        kept = {n: f"the recipe keeps '{found}' in FP32" for n, _, _ in original if (found := keep.match(n))}
        if compute.name != "fp32":
            islands = find_islands(graph, observed, compute, opset, recipe.keep_fp32, kept)
        else:
            islands = Islands(kept, {})
        if form:
            placed = place(graph, observed, amax, recipe, form, compute, islands.wide)
            if recipe.strict:
                _insist(placed, recipe, kept)
            works += insert(graph, placed.sites, form, compute, recipe.weights, seen)
            if recipe.gelu == "tanh":
                works.append(tanh_form(graph))
        if compute.name != "fp32":
            retype(graph, compute, opset, islands.wide, islands.clamp)
        if opset != model.opset_imports[""]:
            model.opset_imports[""] = opset
            model.ir_version = max(model.ir_version, 10)

    decisions = []
    for node, name, op in original:
        precision, reason = _decide(node, dtypes[node], placed, islands, observed, compute, recipe)
        origin = origins.of(node) or Origin()
        decisions.append(Decision(name, op, precision, reason, origin.module, origin.place))
    ops = dict(sorted(Counter(n.op_type for n in placed.quantized).items()))
    return Outcome(
        decisions=tuple(decisions),
        ops=ops,
        qdq=sum(n.op_type == "DequantizeLinear" for n in graph),
        nodes=len(list(graph)),
        warnings=(*placed.warnings, *slow(recipe.precision, ops), *_unused(keep, recipe)),
        weights=tuple(works),
    )


def _seen(recipe: Recipe, amax: Mapping[str, float], statistics: Statistics | None) -> Seen | None:
    """What was observed, with the calibrator that chooses anew where weights take over part of a range."""
    if statistics is None:
        return None
    return Seen(statistics, amax, get(recipe.calibrator).of(recipe), QUANTIZED[recipe.precision])


def _observed(amax: Mapping[str, float], statistics: Statistics | None) -> Observed:
    """The extremes that range decisions are made of."""
    if statistics is None:
        return Observed(amax)
    return Observed(statistics.amax(), {name: (seen.low, seen.high) for name, seen in statistics.items()})


def _unused(keep: Patterns, recipe: Recipe) -> list[str]:
    if recipe.precision == "fp32":
        return []
    return [f"the recipe keeps '{p}' in FP32, but no node or module is called that" for p in keep.unused]


def _insist(placed: Placed, recipe: Recipe, kept: Mapping[ir.Node, str]) -> None:
    """Refuse a graph of which a layer stays wide that the recipe does not name itself."""
    left = {
        node: reason
        for node, reason in placed.wide.items()
        if node.op_type in recipe.placement.ops and node not in placed.kept and node not in kept
    }
    if left:
        lines = "".join(f"\n  {origins.where_of(node)}: {reason}" for node, reason in left.items())
        raise GraphError(
            f"a strict recipe leaves no layer wide, and {len(left)} cannot be {recipe.precision}:{lines}",
            fix="name them under placement.keep, or leave strict out",
        )
    if not placed.quantized:
        none = f"the graph has no {', '.join(recipe.placement.ops)}"
        raise GraphError(
            f"a strict recipe has nothing to quantize: {'it keeps every layer wide' if placed.wide else none}",
            where="placement.keep and keep of the recipe" if placed.wide else None,
            fix="name fewer nodes there" if placed.wide else "take another precision, or leave strict out",
        )


def _check(model: ir.Model, recipe: Recipe, opset: int) -> None:
    """opset: the one that the graph will declare."""
    form = QUANTIZED.get(recipe.precision)
    if form and opset < form.opset:
        raise GraphError(
            f"{recipe.precision} needs opset {form.opset} or later, the graph has {opset}",
            where="QuantizeLinear and DequantizeLinear",
            fix=f"export the model with opset_version={max(form.opset, 20)}",
        )
    for node in model.graph:
        for value in node.outputs:
            if value.dtype is None and value.uses():
                raise GraphError(
                    f"the dtype of '{value.name}' is not known",
                    where=origins.where_of(node),
                    fix="run ONNX shape inference on the model first",
                )


def _dtype(node: ir.Node) -> str:
    """The dtype a node works in: `fp32` where any of its tensors is FLOAT, else that of its first output."""
    if any(is_float(v) for v in (*node.inputs, *node.outputs)):
        return "fp32"
    first = next((v.dtype for v in node.outputs if v.dtype is not None), None)
    return "fp16" if first == ir.DataType.FLOAT16 else first.name.lower() if first is not None else "unknown"


def _decide(
    node: ir.Node, dtype: str, placed: Placed, islands: Islands, observed: Observed, compute: Float, recipe: Recipe
) -> tuple[str, str]:
    if dtype != "fp32":
        return dtype, "holds no FP32 tensor"
    if node in placed.quantized:
        return recipe.precision, placed.quantized[node]
    if node in islands.wide:
        return "fp32", islands.wide[node]
    if node in placed.wide:
        return compute.name, placed.wide[node]
    if compute.name == "fp32":
        return "fp32", "the precision asked for" if recipe.precision == "fp32" else "the recipe's compute dtype"
    known = [a for v in node.outputs if (a := observed.of(v)) is not None]
    seen = f"its output reached {figure(max(known))}" if known else "nothing speaks against it"
    return compute.name, seen
