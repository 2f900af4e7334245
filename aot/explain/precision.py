"""What the ops can take: the decisions of `aot.precision`, before any range is known."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from aot.config import Recipe
from aot.explain.findings import Group, Precision

if TYPE_CHECKING:
    import onnx_ir as ir

    from aot.precision import Decision

# In place of ranges: small enough for every format, so that what stays wide does so whatever the data.
ASSUMED = 1.0


def rehearse(model: ir.Model, recipe: Recipe) -> Precision:
    """Give the model the dtypes that a build would give it, in place, and say what became of its ops.

    Every value is taken to reach 1, so the scales mean nothing and islands that only data ask for are missing.
    Raises GraphError where the graph cannot take the precision.
    """
    from aot.precision import apply
    from aot.precision.formats import QUANTIZED
    from aot.precision.reading import is_float

    floats = [v for node in model.graph for v in (*node.inputs, *node.outputs) if is_float(v)]
    outcome = apply(model, recipe, {str(value.name): ASSUMED for value in floats if value is not None})
    quantizes = recipe.precision in QUANTIZED
    compute = recipe.compute if quantizes else recipe.precision

    def is_wide(decision: Decision) -> bool:
        layer = quantizes and decision.op in recipe.placement.ops and decision.precision == compute
        return layer or decision.precision == "fp32" != compute

    wide = _grouped(decision for decision in outcome.decisions if is_wide(decision))
    return Precision(recipe.precision, compute, outcome.ops, tuple(wide), outcome.warnings)


def _grouped(decisions: Iterable[Decision]) -> list[Group]:
    """By op, precision and reason, the largest group first."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for one in decisions:
        groups.setdefault((one.op, one.precision, one.reason), []).append(one.node)
    found = [Group(*key, tuple(nodes)) for key, nodes in groups.items()]
    return sorted(found, key=lambda group: (-len(group.nodes), group.op, group.reason))
