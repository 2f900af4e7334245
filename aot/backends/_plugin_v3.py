"""A graph whose nodes call the plugin that TensorRT 10.6 to 10.8 launches from Python: `aot/runtime/plugin_v3.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from aot.records import MODEL
from aot.runtime.kernels import Compiled
from aot.runtime.plugin_v3 import FIELDS, NAMESPACE, TYPE, VERSION, Key, Launcher, learn, register

if TYPE_CHECKING:
    import onnx_ir as ir


def prepare(trt: ModuleType, graph: Path, kernels: Mapping[str, Sequence[Compiled]], folder: Path) -> Path:
    """Register the plugin and write the graph that calls it below `folder`; return its path.

    kernels: node name -> the kernels of one node, one for each way to run it. Nodes without kernels stay as they are;
    the others keep their names, inputs, outputs and origins.
    """
    import onnx_ir as ir
    from onnx_ir.passes import common

    register(trt)
    learn(kernels)
    model = ir.load(graph)
    for node in model.graph.all_nodes():
        given = kernels.get(node.name or "")
        if given:
            _call(node, Launcher(str(node.name), given).key)
    model.opset_imports[NAMESPACE] = 1
    common.RemoveUnusedFunctionsPass()(model)  # type: ignore[no-untyped-call]
    path = folder / MODEL
    ir.save(model, path, external_data=f"{MODEL}.data")
    return path


def _call(node: ir.Node, key: Key) -> None:
    """Make the node one that the parser takes for the plugin."""
    import onnx_ir as ir

    node.domain, node.op_type, node.overload = NAMESPACE, TYPE, ""
    node.attributes.clear()
    for name, part in zip(FIELDS, key, strict=True):
        node.attributes[name] = ir.AttrInt64(name, part)
    for name, value in {"plugin_namespace": NAMESPACE, "plugin_version": VERSION}.items():
        node.attributes[name] = ir.AttrString(name, value)
