"""Attention of a final graph as kernels of the plugin aot::attention: asked for, or measured to be faster.

The sites are found in the graph alone, so it does not matter what that was exported from. The rewrite itself is made
for the build (`aot.form`); here it is made in memory, for the nodes that there will be.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aot import content, origins
from aot.origins import Origin
from aot.plugins import header as headers
from aot.plugins import tuned
from aot.plugins.header import Header
from aot.plugins.nodes import PluginNode, plugin_nodes
from aot.plugins.replacing import timed
from aot.profile import Profile
from aot.records import Kernels
from aot.runtime.kernels import Compiled

if TYPE_CHECKING:
    import onnx_ir as ir

    from aot.plan import Plan

NAME = "attention"
QUALIFIED = f"aot::{NAME}"

Compile = Callable[[Sequence[PluginNode]], Sequence[tuple[Compiled, ...] | str]]
"""The kernels of each node, or why it has none."""


@dataclass
class Attention:
    """What became of a graph's attention. made: the nodes with their kernels. left: reasons -> names of nodes, in a
    graph where they stay two MatMuls and a Softmax. quiet: reasons that are no news. origins: of all nodes named."""

    made: list[tuple[PluginNode, tuple[Compiled, ...]]] = field(default_factory=list)
    left: dict[str, list[str]] = field(default_factory=dict)
    quiet: set[str] = field(default_factory=set)
    origins: dict[str, Origin] = field(default_factory=dict)

    def leave(self, name: str, why: str, *, quiet: bool = False) -> None:
        """Count a site that stays."""
        self.left.setdefault(why, []).append(name)
        if quiet:
            self.quiet.add(why)

    def facts(self, why: str) -> dict[str, Any]:
        """See `records.Kernels`; why: there are kernels at all."""
        return {
            "formed": [node.name for node, _ in self.made],
            "left": [{"why": why, "nodes": nodes, "told": why not in self.quiet} for why, nodes in self.left.items()],
            "places": [
                *(self._place(node.name, True, why) for node, _ in self.made),
                *(self._place(name, False, reason) for reason, names in self.left.items() for name in names),
            ],
        }

    def _place(self, name: str, replaced: bool, why: str) -> dict[str, Any]:
        origin = self.origins.get(name) or Origin()
        about = {"module": origin.module, "source": origin.place}
        return {"plugin": NAME, "node": name, "replaced": replaced, "why": why, **about}


def wanted(plan: Plan, target: str) -> Header | None:
    """The plugin, where the plan asks for it or an engine on `target` was timed with and without it."""
    file = content.names("plugins", plan.project).get(NAME)
    if file is None or plan.attention == "never" or (plan.attention == "measured" and plan.precision == "fp32"):
        return None
    header = headers.read(file) if plan.attention == "asked" else timed(file, target, plan.project)
    return header if header is not None and header.qualified == QUALIFIED else None


def of(model: ir.Model, header: Header, plan: Plan, target: str, gpu: str | None, compiled: Compile) -> Attention:
    """What becomes kernels in the graph by the plan, where nobody asked: what is faster at the sizes that every profile
    is optimized for. The graph is rewritten in place."""
    from aot.passes.attention_kernel import is_joined

    def slower(node: PluginNode) -> str | None:
        if plan.attention == "asked" or node.call is None:
            return None
        dtypes, (made,) = node.call.dtypes, [one for one in model.graph.all_nodes() if one.name == node.name]
        if any(is_joined(value) for value in made.inputs):
            return "its heads have to be copied side by side, which was not measured: --plugin attention does it"
        sizes = [_shapes(header, made, profile) for profile in plan.profiles]
        won = [tuned.wins(header, target, dtypes, one, gpu=gpu, project=plan.project) for one in sizes]
        if None in won:
            return f"not measured on {target} at these sizes: aot plugin tune {NAME}"
        return None if all(won) else f"measured to be no faster on {target}"

    return forming(model, header, slower, compiled, quiet=plan.attention != "asked")


def forming(
    model: ir.Model,
    header: Header,
    slower: Callable[[PluginNode], str | None],
    compiled: Compile,
    *,
    quiet: bool = False,
) -> Attention:
    """What can become kernels in the graph, which is rewritten in place, sites without kernels as well.

    slower: why a node is not to have a kernel, None where it is. quiet: only kernels that do not come to be are news.
    """
    from aot.graph import run_passes
    from aot.passes.attention_kernel import attention_kernel

    before = {node.name for node in plugin_nodes(model, header)}
    (done,) = run_passes([attention_kernel], model)
    found = Attention()
    for name, why in done.skipped.items():
        found.leave(name, why, quiet=quiet)
    nodes = []
    for node in plugin_nodes(model, header):
        if node.name in before:
            continue
        reason = slower(node)
        if reason is None:
            nodes.append(node)
        else:
            found.leave(node.name, reason, quiet=quiet)
    for node, made in zip(nodes, compiled(nodes), strict=True):
        if isinstance(made, str):
            found.leave(node.name, made)
        else:
            found.made.append((node, made))
    found.origins = {str(node.name): origins.of(node) or Origin() for node in model.graph.all_nodes()}
    return found


def places(kernels: Sequence[Kernels], plan: Plan) -> list[dict[str, Any]]:
    """What became of each attention, as `records.Exported` says it of patterns, for the first target that knows."""
    known = [one.facts["attention"]["places"] for one in kernels if "attention" in one.facts]
    return list(known[0]) if known and plan.attention != "never" else []


def _shapes(header: Header, node: ir.Node, profile: Profile) -> dict[str, tuple[int | None, ...]]:
    """Of the inputs, by name, at the profile's opt; None for a size that has no Dim."""
    found = {}
    for declared, value in zip(header.schema.inputs, node.inputs, strict=True):
        assert value is not None
        assert value.shape is not None
        sizes = [size if isinstance(size, int) else profile.get(str(size.value)) for size in value.shape]
        found[declared.name] = tuple(size[1] if isinstance(size, tuple) else size for size in sizes)
    return found


def formed_in(kernels: Kernels | None) -> tuple[str, ...]:
    """The nodes that attention can become with these kernels, by name."""
    return tuple(kernels.facts.get("attention", {}).get("formed", ())) if kernels is not None else ()


def formed_by(kernels: Kernels | None, plan: Plan) -> tuple[str, ...]:
    """Those that it becomes in an engine of this plan, which may leave kernels alone that were brought along."""
    return formed_in(kernels) if plan.attention != "never" else ()
