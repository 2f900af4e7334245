"""Kernels of plugins in engines of TensorRT 10.9 to 11: PTX in the engine, no Python where it runs.

A node with kernels becomes a quick plugin (`tensorrt.plugin`) with an ahead-of-time implementation, its kernels the
tactics that TensorRT times. Nothing of the plugin's file is run: what a kernel is launched with are expressions as
plain data (see `aot/plugins/sizes.py`), which become TensorRT's.

Every set of kernels is a plugin of its own, whose name holds its digest, for two reasons. TensorRT keeps the fastest
tactic in its timing cache under the plugin's name, and the identifier that would tell two kernels of one name apart is
always empty (`get_timing_cache_id` of tensorrt/plugin/_plugin_class.py). And a name is registered once a process. The
node's attributes are constants of the kernels, so the plugin has none.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import operator
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import GenericAlias, ModuleType
from typing import Any

from aot.plugins.schema import TENSORRT_TYPES
from aot.plugins.sizes import OPERATIONS
from aot.records import MODEL
from aot.runtime.kernels import Compiled

NAMESPACE = "aot"
"""Of every plugin registered here, whatever its op's domain: `trt`, `std` and the like are TensorRT's own."""
_COMBINED = {"FLOAT": "FP32", "HALF": "FP16"}
"""The DataTypes that `AutoTuneCombination` calls otherwise."""


def prepare(trt: ModuleType, graph: Path, kernels: Mapping[str, Sequence[Compiled]], folder: Path) -> Path:
    """Register the kernels and write the graph that names them below `folder`; return its path.

    kernels: node name -> the kernels of one node, one for each way to run it. Nodes without kernels stay as they are.
    """
    import onnx_ir as ir
    from onnx_ir.passes import common

    plugins = import_module(f"{trt.__name__}.plugin")
    model = ir.load(graph)
    for node in model.graph.all_nodes():
        given = kernels.get(node.name or "")
        if given:
            _call(node, register(trt, plugins, node.op_type, given))
    model.opset_imports[NAMESPACE] = 1
    common.RemoveUnusedFunctionsPass()(model)  # type: ignore[no-untyped-call]
    path = folder / MODEL
    ir.save(model, path, external_data=f"{MODEL}.data")
    return path


def _call(node: Any, name: str) -> None:
    """Make the node one that TensorRT's parser takes for the registered plugin, ahead of time."""
    import onnx_ir as ir

    node.domain, node.op_type, node.overload = NAMESPACE, name, ""
    node.attributes.clear()
    for attribute in (
        ir.AttrString("plugin_namespace", NAMESPACE),
        ir.AttrString("plugin_version", "1"),
        ir.AttrInt64("aot", 1),
    ):
        node.attributes[attribute.name] = attribute


def plugin_name(op: str, kernels: Sequence[Compiled]) -> str:
    """`op_0123456789abcdef`: another name for other kernels, or other ways to launch them."""
    what = [{**kernel.to_json(), "source": None} for kernel in kernels]
    return f"{op}_{hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:16]}"


def register(trt: ModuleType, plugins: ModuleType, op: str, kernels: Sequence[Compiled]) -> str:
    """Make a plugin of the kernels of one node; return its name in NAMESPACE."""
    name = plugin_name(op, kernels)
    if hasattr(getattr(plugins.op, NAMESPACE, None), name):
        return name
    first = kernels[0]
    types = [TENSORRT_TYPES[dtype] for dtype in (*first.dtypes, *first.output_dtypes)]
    tactics = range(1, len(kernels) + 1)  # 0 is TensorRT's word for a plugin without tactics

    def describe(*inputs: Any) -> tuple[Any, ...]:
        sizes = _sizes(first, inputs)
        return tuple(
            plugins.from_shape_expr(
                tuple(expression(plugins, tree, sizes) for tree in shape), getattr(trt.DataType, kind)
            )
            for shape, kind in zip(first.outputs, types[len(first.dtypes) :], strict=True)
        )

    def autotune(*_: Any) -> list[Any]:
        named = ",".join(_COMBINED.get(kind, kind) for kind in types)
        return [plugins.AutoTuneCombination(named, "LINEAR", tactics)]

    def implement(*given: Any) -> tuple[str, str, Any, Any]:
        kernel, sizes = kernels[given[-1] - 1], _sizes(first, given)
        x, y, z = (expression(plugins, tree, sizes) for tree in kernel.grid)
        launch = plugins.KernelLaunchParams(
            grid_x=x, grid_y=y, grid_z=z, block_x=kernel.threads, shared_mem=kernel.shared
        )
        scalars = [plugins.SymInt32(expression(plugins, tree, sizes)) for tree in kernel.scalars.values()]
        return kernel.entry, kernel.code, launch, plugins.SymIntExprs.from_tuple(tuple(scalars))

    tensor = plugins.TensorDesc
    inputs = {f"input_{index}": tensor for index in range(len(first.inputs))}
    made = GenericAlias(tuple, (tensor,) * len(first.outputs))
    identity = f"{NAMESPACE}::{name}"
    plugins.register(identity)(_signed(describe, inputs, made))
    plugins.autotune(identity)(
        _signed(autotune, {**inputs, "outputs": made}, GenericAlias(list, (plugins.AutoTuneCombination,)))
    )
    plugins.aot_impl(identity)(
        _signed(
            implement,
            {**inputs, "outputs": made, "tactic": int},
            GenericAlias(tuple, (str, str, plugins.KernelLaunchParams, plugins.SymIntExprs)),
        )
    )
    return name


def _signed(function: Callable[..., Any], parameters: Mapping[str, Any], returns: Any) -> Callable[..., Any]:
    """The function under the signature that TensorRT reads."""
    function.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=kind)
            for name, kind in parameters.items()
        ],
        return_annotation=returns,
    )
    return function


def _sizes(kernel: Compiled, given: Sequence[Any]) -> dict[str, Any]:
    """input -> its sizes, of the leading arguments of a call."""
    return {name: tensor.shape_expr for name, tensor in zip(kernel.inputs, given, strict=False)}


def expression(plugins: ModuleType, tree: Any, sizes: Mapping[str, Any]) -> Any:
    """An expression of sizes as TensorRT's: a ShapeExpr, or an int where no size is in it."""
    if isinstance(tree, int):
        return tree
    operation, *operands = tree
    if operation == "size":
        name, axis = operands
        return sizes[name][axis]
    left, right = (expression(plugins, one, sizes) for one in operands)
    if isinstance(left, int) and isinstance(right, int):
        return OPERATIONS[operation](left, right)
    # Asked for the outputs' dtypes alone, TensorRT gives sizes that stand for nothing and cannot be computed with.
    if any(isinstance(one, plugins.ShapeExpr) and one.is_fake for one in (left, right)):
        return plugins.ShapeExpr()
    # A ShapeExpr computes with an int on its right, not on its left.
    left = plugins.ShapeExpr(left) if isinstance(left, int) else left
    functions = {"+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv}
    functions |= {"ceil": plugins.cdiv, "max": plugins.max, "min": plugins.min}
    return functions[operation](left, right)
