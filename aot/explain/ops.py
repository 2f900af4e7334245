"""The nodes of a graph by what implements them, and those that one should know of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

from aot import origins, toolchain
from aot.backend import Backend, Unsupported
from aot.backends._graph import ONNX_DOMAINS, name_of
from aot.backends._operators import PLUGINS
from aot.explain.findings import Called, Ops, Remark
from aot.plugins.compiling import TARGETS
from aot.plugins.schema import NODE_TYPES

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
    plugins: Iterable[Called],
) -> Ops:
    """The nodes of the final graph by support; `refused` of them are not taken, `before` were not as exported, and
    `plugins` says which are nodes of plugins."""
    names = {one.node for one in refused}
    none, native, plugin = Counter(one.op for one in refused), Counter[str](), Counter[str]()
    launched = {one.node for one in plugins if one.does == "kernel"}
    for node in model.graph.all_nodes():
        if name_of(node) in names:
            continue
        vendors = backend == "tensorrt" and node.op_type in PLUGINS and node.domain in ONNX_DOMAINS
        if vendors or name_of(node) in launched:
            plugin[node.op_type] += 1
        else:
            native.update(one.op_type for one in _in_place_of(model, node))
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


def _in_place_of(model: ir.Model, node: ir.Node) -> Iterator[ir.Node]:
    """The nodes of its function, where a node has one; else the node."""
    function = model.functions.get(node.op_identifier())
    if function is None:
        yield node
        return
    for inner in function.all_nodes():
        yield from _in_place_of(model, inner)


def called(model: ir.Model, backend: Backend, target: str | None, plugins: Collection[str]) -> tuple[Called, ...]:
    """The nodes of plugins, and what the backend does with each in an engine for the target."""
    does, why = _fate(backend, target)
    found = []
    for node in model.graph.all_nodes():
        if node.domain not in ONNX_DOMAINS and (NODE_TYPES in node.metadata_props or node.op_type in plugins):
            origin = origins.of(node) or origins.Origin()
            found.append(
                Called(name_of(node), f"{node.domain}::{node.op_type}", origin.module, origin.place, does, why)
            )
    return tuple(found)


def _fate(backend: Backend, target: str | None) -> tuple[Literal["kernel", "function"], str]:
    launching = backend.launches(backend.version())
    if launching is None:
        return "function", f"{backend.title} launches no kernels of plugins"
    if target is not None and target not in TARGETS:
        return "function", f"kernels are compiled for {', '.join(TARGETS)}"
    if toolchain.version("triton") is None:
        return "function", "triton, which compiles kernels, is not installed"
    if launching == "python":
        return "kernel", "launched from Python, which the engine needs where it runs"
    return "kernel", "launched by the engine itself"


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
