"""What is done to the weights of a graph before it is decided what is quantized."""

from __future__ import annotations

import onnx_ir as ir

from aot.config import Recipe
from aot.precision.weights.equalize import equalize
from aot.precision.weights.seen import Seen
from aot.precision.weights.smooth import smooth
from aot.precision.weights.work import Work


def prepare(graph: ir.Graph, recipe: Recipe, seen: Seen) -> list[Work]:
    """Smooth and equalize as the recipe says. Changes the graph, whose function stays the same, and what was seen."""
    works = []
    if recipe.weights.equalize:
        works.append(equalize(graph, recipe.per_channel, seen))
    if recipe.weights.smooth is not None:
        works.append(smooth(graph, recipe.placement.ops, recipe.weights.smooth, recipe.per_channel, seen))
    return works
