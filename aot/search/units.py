"""What can be kept wide: one unit a node, with what it costs and what it should gain."""

from __future__ import annotations

import glob
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aot.config import Recipe
from aot.precision.formats import QUANTIZED
from aot.search.costs import LINEAR

if TYPE_CHECKING:
    from aot.layers.errors import LayerError

# A node that costs nothing is not worth endlessly much: it counts as this share of all operations.
_LEAST_COST = 1e-3


@dataclass(frozen=True)
class Unit:
    """A node that may be kept wide. was, wide: the precisions before and after. cost: its share of all operations.
    gain: its share of the outputs' squared error; more than 1 where what it computes is not finite."""

    node: str
    op: str
    module: str
    source: str
    was: str
    wide: str
    cost: float
    gain: float

    @property
    def worth(self) -> float:
        """Gain per cost, by which units are sorted."""
        return self.gain / (self.cost + _LEAST_COST)


def levels(recipe: Recipe) -> tuple[str, ...]:
    """The precisions that nodes can be kept in, least first: layers in the compute dtype, then all in FP32."""
    above = [recipe.compute] if recipe.precision in QUANTIZED else []
    return tuple(dict.fromkeys([*above, "fp32"]))


def units(
    level: str,
    recipe: Recipe,
    decisions: Sequence[Mapping[str, Any]],
    errors: Sequence[LayerError],
    operations: Mapping[str, int],
) -> list[Unit]:
    """The candidates for `level`, most gain per cost first: the quantized nodes where it is the compute dtype of a
    quantized recipe, and those of the compute dtype as well where it is FP32."""
    quantized = recipe.precision in QUANTIZED
    narrow = {recipe.precision} if quantized and level == recipe.compute else {recipe.precision, recipe.compute}
    total = sum(operations.values()) or 1
    gains: dict[str, float] = {}
    for row in errors:
        # What overflows by itself is to blame whatever else is wrong.
        gain = row.share if row.finite or row.added is not None else 2.0
        gains[row.node] = max(gains.get(row.node, 0.0), gain)
    found = [
        Unit(
            node=one["node"],
            op=one["op"],
            module=one.get("module", ""),
            source=one.get("source", ""),
            was=one["precision"],
            wide=level,
            cost=operations.get(one["node"], 0) / total,
            gain=gains.get(one["node"], 0.0),
        )
        for one in decisions
        if one["precision"] in narrow - {"fp32"}
    ]
    return sorted(found, key=lambda unit: unit.worth, reverse=True)


def keeping(recipe: Recipe, kept: Iterable[Unit]) -> Recipe:
    """The recipe with these nodes kept wide as well."""
    narrow: list[str] = []
    layers: list[str] = []
    for unit in kept:
        quantized_only = unit.wide == recipe.compute and recipe.precision in QUANTIZED
        (layers if quantized_only else narrow).append(glob.escape(unit.node))
    placement = recipe.placement.model_copy(update={"keep": (*recipe.placement.keep, *sorted(layers))})
    return recipe.model_copy(update={"keep": (*recipe.keep, *sorted(narrow)), "placement": placement})


def share_in(precision: str, decisions: Iterable[Mapping[str, Any]], operations: Mapping[str, int]) -> float:
    """The share of the multiply-adds of linear layers that are done in `precision`; 0 where there are none."""
    layers = [one for one in decisions if one["op"] in LINEAR]
    total = sum(operations.get(one["node"], 0) for one in layers)
    low = sum(operations.get(one["node"], 0) for one in layers if one["precision"] == precision)
    return low / total if total else 0.0
