"""Where Q/DQ goes and why. Decides, changes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

import onnx_ir as ir

from aot.config import Recipe
from aot.precision.cancellation import cancelling
from aot.precision.float_outputs import settle
from aot.precision.formats import Float, Quantized
from aot.precision.layers import Layer, describe, places
from aot.precision.reading import Observed, consumers, figure, is_float
from aot.precision.rules import refusal
from aot.precision.scales import activation_scale

# Below this share of the smallest scale, an INT8 activation keeps fewer than five of its eight bits.
_LEAST_LEVELS = 16


@dataclass(frozen=True)
class Site:
    """One input that is quantized: node and input index. scale: of an activation; None for a weight, whose
    scales come from its values. axis: the weight's channel axis, None: one scale."""

    node: ir.Node
    index: int
    scale: float | None
    axis: int | None = None


@dataclass
class Placed:
    """sites: in node order. quantized and wide: the linear nodes, each with its reason."""

    sites: list[Site] = field(default_factory=list)
    quantized: dict[ir.Node, str] = field(default_factory=dict)
    wide: dict[ir.Node, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


def place(
    graph: ir.Graph,
    observed: Observed,
    recipe: Recipe,
    form: Quantized,
    compute: Float,
    islands: Mapping[ir.Node, str],
) -> Placed:
    """Decide for every node of the recipe's operator types, then for the skip inputs of residual adds."""
    return _Placement(graph, observed, recipe, form, compute, islands).run()


class _Placement:
    def __init__(
        self,
        graph: ir.Graph,
        observed: Observed,
        recipe: Recipe,
        form: Quantized,
        compute: Float,
        islands: Mapping[ir.Node, str],
    ) -> None:
        self.graph = graph
        self.observed = observed
        self.recipe = recipe
        self.options = recipe.placement
        self.form = form
        self.compute = compute
        self.islands = islands
        self.placed = Placed()
        self.cancelling = cancelling(graph, observed)
        self.used_patterns: set[str] = set()

    def run(self) -> Placed:
        for node in self.graph:
            if node.op_type not in self.options.ops or node.domain != "" or not is_float(node.outputs[0]):
                continue
            layer = describe(node)
            reason = "its weight is computed in the graph" if layer is None else self._refuse(layer)
            if reason is None and layer is not None:
                self._add(layer)
            else:
                self.placed.wide[node] = str(reason)
        if self.options.residual:
            for node in self.graph:
                self._residual(node)
        if self.form.name == "int8":
            settle(self.graph, self.placed)
        for pattern in self.options.keep:
            if pattern not in self.used_patterns:
                self.placed.warnings.append(f"the recipe keeps '{pattern}' wide, but no node or module is called that")
        if not self.placed.sites:
            self.placed.warnings.append(f"nothing is quantized to {self.form.name}: see the reasons, node by node")
        return self.placed

    def _refuse(self, layer: Layer) -> str | None:
        """Why the layer stays wide, None where it is quantized."""
        node = layer.node
        kept = self._kept(node)
        if kept:
            return f"the recipe keeps '{kept}' wide"
        if node in self.islands:
            return self.islands[node]
        if layer.weight is None and not self.options.attention:
            return "both operands are activations, which the recipe does not quantize"
        least = self.options.min_channels
        for count, what in ((layer.inputs, "input"), (layer.outputs, "output")):
            if layer.weight is not None and not layer.depthwise and count is not None and count < least:
                return f"{count} {what} channels, fewer than {least}"
        if layer.depthwise and not self.options.depthwise:
            return f"depthwise ({layer.groups} channels, one filter each): few operations, much error"
        refused = refusal(self.form.name, layer)
        if refused:
            return refused
        unfit = self._shared(layer) or self.cancelling.get(node)
        if unfit:
            return unfit
        return next(filter(None, (self._unfit(node.inputs[i]) for i in self._activations(layer))), None)

    def _kept(self, node: ir.Node) -> str | None:
        kept = [p for p in self.options.keep if any(fnmatchcase(place, p) for place in places(node))]
        self.used_patterns.update(kept)
        return kept[0] if kept else None

    def _shared(self, layer: Layer) -> str | None:
        """A weight that something else reads as well (a tied embedding) stays wide: one copy, one set of values."""
        if layer.weight is None:
            return None
        weight = layer.node.inputs[layer.weight]
        assert weight is not None
        if weight.is_graph_output():
            return "its weight is an output of the graph"
        for other in consumers(weight):
            found = describe(other) if other.op_type in self.options.ops else None
            alike = found is not None and found.weight is not None and other.inputs[found.weight] is weight
            if not alike:
                return f"its weight is also read by {other.op_type} {other.name}; one copy is kept"
        return None

    def _activations(self, layer: Layer) -> Iterator[int]:
        yield layer.activation
        if layer.weight is None:
            yield 1

    def _unfit(self, value: ir.Value | None) -> str | None:
        """Why an activation cannot be quantized."""
        name = value.name if value is not None else "an input"
        amax = self.observed.of(value)
        if amax is None:
            return f"{name} was not observed in calibration"
        if amax != amax or amax == float("inf"):
            return f"{name} was not finite in calibration"
        levels = amax / self.compute.tiny
        if self.form.name == "int8" and 0 < levels < _LEAST_LEVELS:
            return f"{name} reached only {figure(amax)}: {levels:.1f} levels of the smallest scale"
        return None

    def _scale(self, value: ir.Value | None) -> float:
        return activation_scale(self.observed.of(value) or 0.0, self.form, self.compute)

    def _add(self, layer: Layer) -> None:
        node, parts = layer.node, []
        for index in self._activations(layer):
            value = node.inputs[index]
            scale = self._scale(value)
            self.placed.sites.append(Site(node, index, scale))
            parts.append(
                f"{value.name if value else ''} reached {figure(self.observed.of(value) or 0.0)}, scale {figure(scale)}"
            )
        if layer.weight is not None:
            axis = layer.axis if self.recipe.per_channel else None
            self.placed.sites.append(Site(node, layer.weight, None, axis))
            parts.append("one weight scale" if axis is None else f"a weight scale for each index of axis {axis}")
        self.placed.quantized[node] = "; ".join(parts)

    def _residual(self, node: ir.Node) -> None:
        """The skip input of `conv(...) + skip`. The conv that comes last fuses with the Add, so nothing may stand
        between the two; the other operand joins in the quantized format."""
        if node.op_type != "Add" or len(computed := [v for v in node.inputs if v is not None and is_float(v)]) != 2:
            return
        if node in self.islands or self._kept(node):
            return
        convs = [v for v in computed if self._fuses(v)]
        if not convs:
            return
        order = {n: i for i, n in enumerate(self.graph)}
        fused = max(convs, key=lambda v: order[v.producer()])  # type: ignore[index]
        index = 1 if node.inputs[0] is fused else 0
        skip = node.inputs[index]
        if skip is fused or skip is None or skip.const_value is not None or self._unfit(skip):
            return
        scale = self._scale(skip)
        self.placed.sites.append(Site(node, index, scale))
        self.placed.quantized[node] = (
            f"residual add: {skip.name} reached {figure(self.observed.of(skip) or 0.0)}, scale {figure(scale)}"
        )

    def _fuses(self, value: ir.Value) -> bool:
        producer = value.producer()
        return (
            producer is not None
            and producer.op_type in {"Conv", "ConvTranspose"}
            and producer in self.placed.quantized
            and len(value.uses()) == 1
            and not value.is_graph_output()
        )
