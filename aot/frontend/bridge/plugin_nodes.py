"""Ops of plugins in ONNX: one node each, of the plugin's domain, and a model-local function that says what it does.

The function is the plugin's reference, exported. It computes in FP32 and casts at its ends, so that one holds for every
dtype; node and function are tied by `overload`, since attributes, ranks and fixed sizes are part of the function.
Whatever has no kernel for the node takes the function: onnxruntime, and every backend that does not launch PTX.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxscript.values
import torch

from aot.errors import AotError, PluginError
from aot.frontend.bridge.quantized import FP8, clipping, drop_unused
from aot.frontend.plugins import plugin_of, results
from aot.frontend.quiet import RAISED, silenced
from aot.plugins.header import Bound
from aot.plugins.loading import Plugin
from aot.plugins.schema import ATTRIBUTES, NODE_TYPES, ONNX_TYPES

_KINDS = {
    "int": onnx.defs.OpSchema.AttrType.INT,
    "float": onnx.defs.OpSchema.AttrType.FLOAT,
    "bool": onnx.defs.OpSchema.AttrType.INT,
    "str": onnx.defs.OpSchema.AttrType.STRING,
    "int[]": onnx.defs.OpSchema.AttrType.INTS,
}
# Sizes to export with: none of them 0 or 1, which torch takes for constants, and no two the same.
_EXAMPLES = (5, 7, 11, 13, 17, 19, 23, 29, 31, 37)

Translate = Callable[[torch.export.ExportedProgram], ir.Model]


class Plugins:
    """The plugins that one program uses. project: whose `plugins/` are looked up first."""

    def __init__(self, project: Path | None) -> None:
        self._project = project
        self._known: dict[object, Plugin | None] = {}

    def implement(self, target: object) -> bool:
        """Whether a plugin implements this op. Raises PluginError for one that is broken."""
        if target not in self._known:
            self._known[target] = plugin_of(target, self._project)
        return self._known[target] is not None

    def translations(self, program: torch.export.ExportedProgram) -> dict[Any, Any]:
        """How torch.onnx writes the ops of plugins that the program uses."""
        modules = (one for one in program.graph_module.modules() if isinstance(one, torch.fx.GraphModule))
        targets = {node.target for one in modules for node in one.graph.nodes if node.op == "call_function"}
        return {target: _translation(self._known[target]) for target in targets if self.implement(target)}

    def attach_functions(self, model: ir.Model, translated: Translate) -> None:
        """Give every node of a plugin its function. Raises PluginError for a reference that cannot be exported."""
        plugins = {(one.domain, one.name): one for one in self._known.values() if one is not None}
        attach_functions(model, plugins, translated)


def attach_functions(
    model: ir.Model,
    plugins: Mapping[tuple[str, str], Plugin],
    translated: Translate,
    wanted: Callable[[ir.Node], bool] = lambda node: True,
    made: dict[Any, ir.Function] | None = None,
) -> None:
    """Give every node of the plugins, by domain and name, that is wanted its function, in place; attributes that it
    leaves out have their defaults then. made: the functions that the model was given before, by what they are made of.
    Raises PluginError for a reference that cannot be exported."""
    made = {} if made is None else made
    for node in model.graph.all_nodes():
        plugin = plugins.get((node.domain, node.op_type))
        if plugin is None or not wanted(node):
            continue
        for one in plugin.schema.attributes:
            if one.name not in node.attributes:
                node.attributes[one.name] = ir.convenience.convert_attribute(one.name, one.default)
        attributes = {one.name: _value(one.kind, node.attributes[one.name]) for one in plugin.schema.attributes}
        given = list(map(_known, plugin.schema.inputs, node.inputs))
        key = (plugin.qualified, tuple(attributes.items()), tuple(_pattern(plugin, given)))
        if key not in made:
            count = sum(name[:2] == (node.domain, node.op_type) for name in model.functions)
            made[key] = _function(plugin, attributes, given, f"v{count}" if count else "", translated)
            model.functions[made[key].identifier()] = made[key]
        node.overload = made[key].overload
        allowed = [plugin.schema.allowed(one) for one in (*plugin.schema.inputs, *plugin.schema.outputs)]
        node.metadata_props[NODE_TYPES] = ";".join(" ".join(dtypes) for dtypes in allowed)
    for domain in {function.domain for function in made.values()}:
        model.opset_imports[domain] = 1
    if made:
        model.ir_version = max(model.ir_version or 0, 10)  # from there on, functions have overloads


Given = tuple[str, ir.DataType, tuple[int | str | None, ...]]
"""An input of a node: its name in SCHEMA, its dtype, its shape."""


def _known(declared: Any, value: ir.Value | None) -> Given:
    assert value is not None
    if value.shape is None or value.dtype is None:
        raise PluginError(f"the shape of '{declared.name}' is not known in the graph")
    shape = tuple(size if isinstance(size, int) else size.value for size in value.shape)
    return declared.name, value.dtype, shape


def _translation(plugin: Plugin | None) -> Callable[..., Any]:
    """A function that records the node; torch.onnx reads from its signature what is an attribute."""
    assert plugin is not None
    schema = plugin.schema
    made = onnx.defs.OpSchema(
        plugin.name,
        plugin.domain,
        1,
        inputs=[onnx.defs.OpSchema.FormalParameter(one.name, f"T_{one.name}") for one in schema.inputs],
        outputs=[onnx.defs.OpSchema.FormalParameter(one.name, f"T_{one.name}") for one in schema.outputs],
        type_constraints=[
            (f"T_{one.name}", [f"tensor({ONNX_TYPES[dtype]})" for dtype in schema.allowed(one)], "")
            for one in (*schema.inputs, *schema.outputs)
        ],
        attributes=[
            onnx.defs.OpSchema.Attribute(one.name, _KINDS[one.kind], required=True) for one in schema.attributes
        ],
    )
    op = onnxscript.values.Op(onnxscript.values.Opset(plugin.domain, 1), plugin.name, made)
    count = len(schema.inputs)
    defaults = {one.name: one.default for one in schema.attributes}

    def translation(*given: Any, **named: Any) -> Any:
        return op(*given[:count], **{**defaults, **dict(zip(defaults, given[count:], strict=False)), **named})

    positional = inspect.Parameter.POSITIONAL_OR_KEYWORD
    translation.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(one.name, positional) for one in schema.inputs]
        + [
            inspect.Parameter(
                one.name,
                positional,
                annotation=Sequence[int] if one.kind == "int[]" else ATTRIBUTES[one.kind],
                default=inspect.Parameter.empty if one.default is None else one.default,
            )
            for one in schema.attributes
        ]
    )
    return translation


def _value(kind: str, attribute: ir.Attr) -> Any:
    if kind == "str":
        return attribute.as_string()
    return ATTRIBUTES[kind](attribute.value)


def _pattern(plugin: Plugin, given: Sequence[Given]) -> Iterator[Any]:
    """What of the inputs is part of the function: ranks, fixed sizes, and dtypes that no cast brings to FP32."""
    fixed = _fixed(plugin, given)
    for name, dtype, shape in given:
        yield (
            "float" if dtype.is_floating_point() and dtype != FP8 else dtype,
            tuple(fixed.get(key) for key in plugin.keys(name, len(shape))),
        )


def _fixed(plugin: Plugin, given: Sequence[Given]) -> dict[Any, int]:
    """The sizes that are known in one place at least."""
    found: dict[Any, int] = {}
    for name, _, shape in given:
        for key, size in zip(plugin.keys(name, len(shape)), shape, strict=True):
            if isinstance(key, int) or isinstance(size, int):
                found[key] = key if isinstance(key, int) else int(size)  # type: ignore[arg-type]
    return found


class _Reference(torch.nn.Module):
    def __init__(self, plugin: Plugin, attributes: Mapping[str, Any]) -> None:
        super().__init__()
        self._plugin, self._attributes = plugin, attributes

    def forward(self, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        # A copy, for a result may not be an input itself.
        made = results(self._plugin, self._plugin.reference(*given, *self._attributes.values()))
        return tuple(one.clone() for one in made)


def _function(
    plugin: Plugin,
    attributes: Mapping[str, Any],
    given: Sequence[Given],
    overload: str,
    translated: Translate,
) -> ir.Function:
    program = silenced(lambda: _exported(plugin, attributes, given))
    try:
        model = translated(program)
    except AotError as error:
        raise plugin.error(f"reference has no ONNX form: {error.what}", "reference", error.fix) from error
    graph = model.graph
    _cast_ends(plugin, graph, given)
    for value in reversed(list(graph.initializers.values())):
        constant = ir.node("Constant", [], {"value": ir.AttrTensor("value", value.const_value)})  # type: ignore[arg-type]
        constant.outputs[0].name = value.name
        value.replace_all_uses_with(constant.outputs[0])
        graph.insert_before(graph[0], constant)
    graph.initializers.clear()
    for value in graph.inputs:
        value.type = value.shape = None
    for node in graph.all_nodes():
        node.metadata_props.clear()  # of this machine, and of no use
        for value in node.outputs:
            value.metadata_props.clear()
            value.type = value.shape = None  # of the example
    names = [*attributes]
    return ir.Function(
        plugin.domain,
        plugin.name,
        overload,
        graph=graph,
        attributes=[ir.Attr(name, ir.AttributeType.UNDEFINED, None) for name in names],
    )


def _exported(plugin: Plugin, attributes: Mapping[str, Any], given: Sequence[Given]) -> torch.export.ExportedProgram:
    fixed = _fixed(plugin, given)
    sizes: dict[Any, int] = dict(fixed)
    for name, _, shape in given:
        for key in plugin.keys(name, len(shape)):
            bound = plugin.bound(key) if isinstance(key, str) else Bound()
            possible = [size for size in map(bound.near, _EXAMPLES) if size not in sizes.values()]
            sizes.setdefault(key, possible[0] if possible else bound.near(2))
    examples, dynamic = [], []
    for name, dtype, shape in given:
        keys = plugin.keys(name, len(shape))
        kind = torch.float32 if dtype.is_floating_point() else getattr(torch, dtype.name.lower())
        examples.append(torch.ones([sizes[key] for key in keys], dtype=kind))
        dynamic.append({axis: torch.export.Dim.DYNAMIC for axis, key in enumerate(keys) if key not in fixed})
    try:
        with torch.no_grad():
            return torch.export.export(
                _Reference(plugin, attributes), tuple(examples), dynamic_shapes=(tuple(dynamic),), strict=False
            )
    except AotError:
        raise
    except RAISED as error:  # torch.export raises as many types as the reference's code can
        said = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise plugin.error(
            f"reference cannot be exported for any size: {said}",
            "reference",
            "write it with torch functions alone, no loop or branch over a size that varies",
        ) from error


def _constant(before: ir.Node, tensor: ir.TensorProtocol) -> ir.Value:
    node = ir.node("Constant", [], {"value": ir.AttrTensor("value", tensor)}, outputs=[ir.Value(name=tensor.name)])
    assert before.graph is not None
    before.graph.insert_before(before, node)
    return node.outputs[0]


def _cast_ends(plugin: Plugin, graph: ir.Graph, given: Sequence[Given]) -> None:
    """Let the function take floats of any width and give what SCHEMA says: computed in FP32, rounded at the end."""
    first = graph[0]
    like: dict[str, ir.Value] = {}
    inputs = list(zip(plugin.schema.inputs, given, strict=True))
    narrow = {declared.kind for declared, (_, dtype, _) in inputs if dtype == FP8}
    if narrow:  # TensorRT has no casts of FP8
        one = _constant(first, ir.tensor(np.float32(1.0), name="fp8_scale"))
        zero = _constant(first, ir.tensor(np.zeros((), FP8.numpy()), dtype=FP8, name="fp8_zero"))
    for index, (declared, (name, dtype, _)) in enumerate(inputs):
        old = graph.inputs[index]
        if not dtype.is_floating_point():
            old.name = name
            continue
        new = ir.Value(name=name)
        like.setdefault(declared.kind, new)
        result = ir.Value(name=f"{name}_fp32")
        if dtype == FP8:
            cast = ir.node("DequantizeLinear", [new, one], outputs=[result])
        else:
            cast = ir.node("Cast", [new], {"to": ir.DataType.FLOAT}, outputs=[result])
        old.replace_all_uses_with(cast.outputs[0])
        graph.inputs[index] = new
        graph.insert_before(first, cast)
    for index, declared in enumerate(plugin.schema.outputs):
        value = graph.outputs[index]
        if declared.kind in like:
            if declared.kind in narrow:
                clip = clipping(value, FP8)
                cast = ir.node("QuantizeLinear", [clip.inputs[0] if clip else value, one, zero], outputs=[ir.Value()])
            else:
                cast = ir.node("CastLike", [value, like[declared.kind]], outputs=[ir.Value()])
            graph.append(cast)
            graph.outputs[index] = cast.outputs[0]
            if declared.kind in narrow and clip:
                drop_unused(clip)
        graph.outputs[index].name = f"{declared.name}_result"
