"""Where Q/DQ goes and why. Decides, changes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import onnx_ir as ir

from aot import origins
from aot.config import Recipe
from aot.precision.attention import Attention, attentions, of_softmax
from aot.precision.cancellation import cancelling
from aot.precision.float_outputs import settle
from aot.precision.formats import Float, Quantized
from aot.precision.layers import Layer, describe
from aot.precision.patterns import Patterns
from aot.precision.reading import Observed, consumers, figure, is_float
from aot.precision.residual import Residuals
from aot.precision.rules import Rule, refusing
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
    """sites: in node order. quantized and wide: the nodes that were looked at, each with its reason. kept: of the wide
    ones, those that the recipe names."""

    sites: list[Site] = field(default_factory=list)
    quantized: dict[ir.Node, str] = field(default_factory=dict)
    wide: dict[ir.Node, str] = field(default_factory=dict)
    kept: set[ir.Node] = field(default_factory=set)
    warnings: list[str] = field(default_factory=list)


def place(
    graph: ir.Graph,
    observed: Observed,
    ranges: Mapping[str, float],
    recipe: Recipe,
    form: Quantized,
    compute: Float,
    islands: Mapping[ir.Node, str],
) -> Placed:
    """Decide for every node of the recipe's operator types, then for the skip inputs of residual adds.

    observed: the extremes, which decide whether a value can be quantized. ranges: amax by name, as the calibrator chose
    it, which the scales are made of.
    """
    return _Placement(graph, observed, ranges, recipe, form, compute, islands).run()


class _Placement:
    def __init__(
        self,
        graph: ir.Graph,
        observed: Observed,
        ranges: Mapping[str, float],
        recipe: Recipe,
        form: Quantized,
        compute: Float,
        islands: Mapping[ir.Node, str],
    ) -> None:
        self.graph = graph
        self.observed = observed
        self.ranges = Observed(ranges)
        self.recipe = recipe
        self.options = recipe.placement
        self.form = form
        self.compute = compute
        self.islands = islands
        self.placed = Placed()
        self.patterns = Patterns(recipe.placement.keep)
        self.slow: dict[Rule, str] = {}
        self.cancelling = {} if self.options.sensitive else cancelling(graph, observed)
        self.partners: dict[ir.Node, Attention] = {}
        for block in attentions(graph):
            self.partners.update({block.scores: block, block.mix: block})

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
            self._residuals()
        if self.form.name == "int8" and self.recipe.activations:
            settle(self.graph, self.placed, self.options.sensitive)
        for pattern in self.patterns.unused:
            self.placed.warnings.append(f"the recipe keeps '{pattern}' wide, but no node or module is called that")
        slow = self._left_for_speed()
        if not self.placed.sites:
            slow = [f"nothing is quantized to {self.form.name}: {slow[0] if slow else self._why_nothing()}"]
        self.placed.warnings += slow
        return self.placed

    def _left_for_speed(self) -> list[str]:
        """What to say of layers that stay wide since they would be slower."""
        found = []
        for rule, op in self.slow.items():
            every = [node for node in (*self.placed.wide, *self.placed.quantized) if node.op_type == op]
            wide, total = sum(node in self.placed.wide and node not in self.islands for node in every), len(every)
            many = "all" if wide == total else f"{wide} of"
            found.append(
                f"{many} {total} {op} stay in {self.compute.name}: {rule.told}. "
                f"--calibration {self.form.name}-convolutions quantizes them all the same"
            )
        return found

    def _why_nothing(self) -> str:
        """The reason of the first layer."""
        if not self.placed.wide:
            return f"the graph has no {', '.join(self.options.ops)}"
        node, reason = next(iter(self.placed.wide.items()))
        others = len(self.placed.wide) - 1
        return f"{origins.where_of(node)}: {reason}{f'; {others} more layers' if others else ''}"

    def _refuse(self, layer: Layer) -> str | None:
        """Why the layer stays wide, None where it is quantized."""
        if layer.weight is None:
            return self._refuse_attention(layer)
        refused = self._kept(layer.node) or self._too_small(layer)
        if refused:
            return refused
        if layer.depthwise and not self.options.depthwise:
            return f"depthwise ({layer.groups} channels, one filter each): few operations, much error"
        # Weights alone are dequantized in front of the kernels of the compute dtype.
        if self.recipe.activations and (refused := self._ruled(layer)):
            return refused
        return self._shared(layer) or self.cancelling.get(layer.node) or self._unfit(layer) or self._uncut(layer)

    def _ruled(self, layer: Layer) -> str | None:
        """Why kernels do not take the layer, or take longer for it."""
        rule = refusing(self.form.name, layer, slow=self.options.slow)
        if rule is None:
            return None
        if rule.slow and rule.told:
            self.slow[rule] = layer.node.op_type
        return rule.why(layer)

    def _uncut(self, layer: Layer) -> str | None:
        """Why the weight cannot be cut into the recipe's blocks along what is summed over."""
        block = self.recipe.weights.block
        if block is None:
            return None
        weight = layer.node.inputs[layer.weight or 0]
        if layer.node.op_type not in {"MatMul", "Gemm"} or weight is None or len(weight.shape or ()) != 2:
            return f"blocks of {block} are for weights that are one matrix"
        if layer.inputs is None or layer.inputs % block:
            return f"{layer.inputs} input channels, which blocks of {block} do not divide"
        return None

    def _refuse_attention(self, layer: Layer) -> str | None:
        """Both products of an attention are quantized, or neither."""
        block = self.partners.get(layer.node)
        if not self.options.attention:
            return "both operands are activations, which the recipe does not quantize"
        if block is None:
            return self._kept(layer.node) or "both operands are activations, and it is no part of an attention"
        scores, mix = describe(block.scores), describe(block.mix)
        assert scores is not None
        assert mix is not None
        shared = self._too_small(scores) or self._ruled(scores)
        for part in (layer, scores, mix):
            refused = self._kept(part.node) or self.cancelling.get(part.node) or self._unfit(part)
            if refused:
                return (
                    refused if part.node is layer.node else f"the other product of its attention stays wide: {refused}"
                )
        return shared

    def _kept(self, node: ir.Node) -> str | None:
        """Why the node is not quantized whatever it computes."""
        kept = self.patterns.match(node)
        if kept:
            self.placed.kept.add(node)
            return f"the recipe keeps '{kept}' wide"
        return self.islands.get(node)

    def _too_small(self, layer: Layer) -> str | None:
        """Below 16 in either size a product or convolution does not fill a kernel's tile, and Q/DQ only adds to it."""
        if layer.depthwise:
            return None
        for count, what in ((layer.inputs, "input"), (layer.outputs, "output")):
            if count is not None and count < self.options.min_channels:
                return f"{count} {what} channels, fewer than {self.options.min_channels}"
        return None

    def _shared(self, layer: Layer) -> str | None:
        """A weight that something else reads as well (a tied embedding) stays wide: one copy, one set of values."""
        assert layer.weight is not None
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
        if self.recipe.activations:
            yield layer.activation
        if layer.weight is None:
            yield 1

    def _unfit(self, layer: Layer) -> str | None:
        """Why one of the layer's activations cannot be quantized."""
        reasons = (self._unfit_value(layer.node.inputs[i]) for i in self._activations(layer))
        return next(filter(None, reasons), None)

    def _unfit_value(self, value: ir.Value | None) -> str | None:
        name = value.name if value is not None else "an input"
        amax = self.observed.of(value)
        if amax is None or self.ranges.of(value) is None:
            return f"{name} was not observed in calibration"
        if amax != amax or amax == float("inf"):
            return f"{name} was not finite in calibration"
        levels = amax / self.compute.tiny
        if self.form.name == "int8" and 0 < levels < _LEAST_LEVELS:
            return f"{name} reached only {figure(amax)}: {levels:.1f} levels of the smallest scale"
        return None

    def _range(self, value: ir.Value | None) -> float:
        """amax as the calibrator chose it. A softmax's shares reach 1 at most, and in FP8, whose steps shrink with the
        value, to leave room for 1 costs nothing."""
        amax = self.ranges.of(value) or 0.0
        if of_softmax(value):
            return 1.0 if self.form.name == "fp8" else min(amax, 1.0)
        return amax

    def _site(self, node: ir.Node, index: int) -> str:
        """Quantize an activation; what is said of it."""
        value = node.inputs[index]
        amax = self._range(value)
        scale = activation_scale(amax, self.form, self.compute)
        self.placed.sites.append(Site(node, index, scale))
        seen = self.observed.of(value) or 0.0
        clipped = f", clipped at {figure(amax)}" if amax < seen * 0.999 else ""
        return f"{value.name if value else ''} reached {figure(seen)}{clipped}, scale {figure(scale)}"

    def _add(self, layer: Layer) -> None:
        node = layer.node
        parts = [self._site(node, index) for index in self._activations(layer)]
        if layer.weight is not None:
            axis = layer.axis if self.recipe.per_channel else None
            self.placed.sites.append(Site(node, layer.weight, None, axis))
            said = "one weight scale" if axis is None else f"a weight scale for each index of axis {axis}"
            if self.recipe.per_channel and axis is None:
                said += f", for each index of axis 1 stands for an output channel of all {layer.groups} groups"
            parts.append(said)
        self.placed.quantized[node] = "; ".join(parts)

    def _residuals(self) -> None:
        read = {value for site in self.placed.sites if (value := site.node.inputs[site.index]) is not None}
        residuals = Residuals(self.graph, self.placed.quantized.keys(), read)
        for node in self.graph:
            index = residuals.skip(node)
            if index is None:
                continue
            skip = node.inputs[index]
            assert skip is not None
            refused = self._kept(node) or self._unfit_value(skip) or residuals.refuse(skip)
            if refused:
                self.placed.wide[node] = refused
                continue
            self.placed.quantized[node] = f"residual add: {self._site(node, index)}"
            read.add(skip)
