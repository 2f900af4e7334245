"""Nodes of plugins in an ONNX file: those that a plugin implements stay, and get its function.

A plugin implements a node of its domain and name, with the inputs and attributes of its SCHEMA. What the file's own
function says is what the result is compared with; the graph gets the plugin's, made of its reference, which holds in
every dtype that the plugin takes, and stands in where no kernel is launched. A node that is none of a plugin's is
written out by its own function, and where it has none nothing implements it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aot.errors import GraphError
from aot.plugins.header import Header, read
from aot.plugins.nodes import DTYPES, PluginNode, call_of, plugin_nodes
from aot.plugins.sizes import tree_of, varying

if TYPE_CHECKING:
    import onnx_ir as ir

    from aot.plugins.loading import Plugin

Op = tuple[str, str]
"""Domain and name."""


@dataclass
class Calls:
    """What of a file plugins implement. headers: by op; loaded models only. notes: sentences on what they do not."""

    headers: dict[Op, Header] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def ops_of(model: ir.Model) -> list[str]:
    """The ops outside ONNX's own domain that nodes of the graph and of its functions are of, `domain::name`."""
    nodes = [*model.graph.all_nodes(), *(node for one in model.functions.values() for node in one.all_nodes())]
    return sorted({f"{node.domain}::{node.op_type}" for node in nodes if node.domain not in ("", "ai.onnx")})


def called(model: ir.Model, files: Mapping[str, Path]) -> Calls:
    """The plugins whose domain and name nodes of the model have. files: of all plugins, by name.

    Raises PluginError for one that cannot be read.
    """
    found = Calls()
    for op in ops_of(model):
        domain, _, name = op.partition("::")
        if name in files and (header := read(files[name])).domain == domain:
            found.headers[domain, name] = header
    return found


def attach(model: ir.Model, calls: Calls, where: str) -> None:
    """Give every node that a plugin implements its function, in place; the sizes of the graph's inputs are known.

    Nodes that a plugin does not take are written out by the function that came with them, and told in `calls.notes`.
    Raises GraphError for one that came without, PluginError for a plugin that is broken.
    """
    from aot.graph import infer_shapes
    from aot.plugins.loading import load

    for op, header in list(calls.headers.items()):
        own = [key for key in model.functions if key[:2] == op]
        unfit = next((node for node in plugin_nodes(model, header) if node.call is None), None) if own else None
        if unfit is not None:
            _write_out(model, op)
            calls.notes.append(f"plugin {header.name} does not take {unfit.where}: {unfit.why}; its function is used")
            del calls.headers[op]
            infer_shapes(model)
        for key in own if unfit is None else ():
            del model.functions[key]
    plugins = {op: load(header.file) for op, header in calls.headers.items()}
    made: dict[Any, ir.Function] = {}
    todo = _called_nodes(model, calls)
    while todo:
        known = {node.name for node in todo if node.call is not None}
        if not known:
            raise GraphError(
                f"plugin {todo[0].op} does not take the node: {todo[0].why}",
                where=f"{todo[0].where} in {where}",
                fix=f"write the node as SCHEMA of plugins/{todo[0].op}.py says, or give the model a local function of "
                "that name",
            )
        _attach(model, plugins, known, made)
        infer_shapes(model)  # what follows from the results may be known now, inputs of other nodes among it
        todo = [node for node in _called_nodes(model, calls) if node.name in {one.name for one in todo} - known]


def _attach(
    model: ir.Model, plugins: Mapping[Op, Plugin], names: Collection[str], made: dict[Any, ir.Function]
) -> None:
    from aot.frontend.bridge.plugin_nodes import attach_functions
    from aot.frontend.translate import translated

    attach_functions(model, plugins, translated, lambda node: node.name in names, made)
    for node in model.graph.all_nodes():
        if node.name in names:
            _say_results(plugins[node.domain, node.op_type], node)


def _called_nodes(model: ir.Model, calls: Calls) -> list[PluginNode]:
    return [node for header in calls.headers.values() for node in plugin_nodes(model, header)]


def _say_results(plugin: Plugin, node: ir.Node) -> None:
    """Give the node's results the dtypes and sizes that the plugin says; a size that is computed has no name."""
    import onnx_ir as ir

    given = {one.name: value for one, value in zip(plugin.schema.inputs, node.inputs, strict=True) if value is not None}
    call = call_of(plugin, node)
    shapes = {
        name: tuple(varying(name, axis) if size is None else size for axis, size in enumerate(shape))
        for name, shape in call.shapes.items()
    }
    dtypes = plugin.schema.dtypes(plugin.schema.outputs, plugin.schema.chosen(call.dtypes))
    kinds = {dtype: kind for kind, dtype in DTYPES.items()}
    for value, dtype, shape in zip(node.outputs, dtypes, plugin.outputs(shapes, call.attributes), strict=True):
        trees = [tree_of(size) for size in shape]
        value.type = ir.TensorType(ir.DataType[kinds[dtype]])
        value.shape = ir.Shape([_dim(given, tree) for tree in trees])


def _dim(given: Mapping[str, ir.Value], tree: Any) -> Any:
    if isinstance(tree, int) or tree[0] != "size":
        return tree if isinstance(tree, int) else None
    shape = given[tree[1]].shape
    return None if shape is None else shape[tree[2]]


def lacking(model: ir.Model, calls: Calls) -> bool:
    """Whether nodes that a plugin implements came without a function."""
    ours = (node for node in model.graph.all_nodes() if (node.domain, node.op_type) in calls.headers)
    return any(node.op_identifier() not in model.functions for node in ours)


def _write_out(model: ir.Model, op: Op) -> None:
    from onnx_ir.passes import common

    common.InlinePass(lambda function: (function.domain, function.name) == op)(model)
    common.RemoveUnusedFunctionsPass()(model)  # type: ignore[no-untyped-call]
    common.NameFixPass()(model)
