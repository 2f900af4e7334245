"""The nodes of a graph by what implements them, and those that one should know of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from aot import origins
from aot.backend import Unsupported
from aot.backends._graph import ONNX_DOMAINS, name_of
from aot.backends._operators import PLUGINS
from aot.explain.findings import Ops, Remark

if TYPE_CHECKING:
    import onnx_ir as ir

_BY_VALUES = {
    "NonZero": "how many elements are not zero",
    "Compress": "the condition's values",
    "Unique": "how many values differ",
    "NonMaxSuppression": "how many boxes remain",
}
_CONTROL = {
    "If": "control flow: the engine holds both sides, and runs one",
    "Loop": "control flow: the engine holds a loop, within which little is fused",
    "Scan": "control flow: the engine holds a loop, within which little is fused",
}


def counted(
    model: ir.Model,
    backend: str,
    refused: Iterable[Unsupported],
    before: Iterable[Unsupported],
    plugins: Collection[str],
) -> Ops:
    """The nodes of the final graph by support; `refused` of them are not taken, `before` were not as exported."""
    names = {one.node for one in refused}
    none, native, plugin = Counter(one.op for one in refused), Counter[str](), Counter[str]()
    functions = {(domain, name) for domain, name, _ in model.functions}
    for node in model.graph.all_nodes():
        if name_of(node) in names:
            continue
        own = node.domain not in ONNX_DOMAINS and (node.domain, node.op_type) not in functions
        vendors = backend == "tensorrt" and node.op_type in PLUGINS
        (plugin if vendors or (own and node.op_type in plugins) else native)[node.op_type] += 1
    rewritten = Counter(one.op for one in before) - none
    return Ops(*(dict(sorted(counts.items())) for counts in (native, plugin, rewritten, none)))


def replacements(places: Iterable[Mapping[str, Any]]) -> tuple[Remark, ...]:
    """Where patterns of plugins occur, and what a build makes of them."""
    return tuple(
        Remark(
            place["node"],
            place["plugin"],
            place["module"],
            place["source"],
            f"{'takes' if place['replaced'] else 'does not take'} the place of what the model computes: {place['why']}",
        )
        for place in places
    )


def remarks(model: ir.Model) -> tuple[Remark, ...]:
    """Nodes whose output's size depends on values, and control flow."""
    found = []
    for node in model.graph.all_nodes():
        note = _CONTROL.get(node.op_type)
        if node.op_type in _BY_VALUES:
            note = f"the size of its result depends on values: {_BY_VALUES[node.op_type]}"
        if note is not None and node.domain in ONNX_DOMAINS:
            origin = origins.of(node) or origins.Origin()
            found.append(Remark(name_of(node), node.op_type, origin.module, origin.place, note))
    return tuple(found)
