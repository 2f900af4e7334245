"""From a module to ONNX: `torch.export`, then `torch.onnx`, each checked for what it silently does.

Imports torch; import it only where torch is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx_ir as ir
import torch
from torch.utils import _pytree as pytree

from aot import origins
from aot.declaration import ModelSpec
from aot.errors import ExportError
from aot.frontend import call, capture, names, patterns
from aot.frontend.bridge import recurrent
from aot.frontend.eager import named_leaves
from aot.frontend.rehearsal import refuse_another_way
from aot.frontend.tracing import captured
from aot.frontend.translate import translated
from aot.frontend.watch import refuse_state
from aot.plugins.replacing import NOTHING, Replacing
from aot.records import MODEL


def write_module(
    module: torch.nn.Module,
    spec: ModelSpec,
    folder: Path,
    project: Path | None = None,
    replacing: Replacing = NOTHING,
) -> Mapping[str, Any]:
    """Export a module to `folder/model.onnx`. Raises ExportError for whatever would not be the promised model.

    project: the folder that source lines are told from, where they lie inside. replacing: see `write_program`.
    """
    module = module.eval()
    call.check(module, spec)
    capture.check_weights(module)
    refuse_state(module, spec)
    program = captured(module, spec)
    refuse_another_way(program, module, spec)
    return write_program(program, spec, folder, type(module).__name__, project, replacing)


def write_program(
    program: torch.export.ExportedProgram,
    spec: ModelSpec,
    folder: Path,
    owner: str = "the saved program",
    project: Path | None = None,
    replacing: Replacing = NOTHING,
) -> Mapping[str, Any]:
    """Translate an exported program; `owner` is whose forward it was, for messages.

    replacing: the plugins whose patterns are looked for. Returns {nodes, opset, outputs}, and where there are any such
    plugins {replaced, warnings}: see records.Exported. Raises ExportError, PluginError.
    """
    capture.check_program(program, spec)
    program, places = patterns.replaced(program, replacing, project)
    outputs = _outputs(program, spec, owner)
    model = translated(program, project)
    recurrent.settle(model)
    graph = model.graph
    for value, name in zip(graph.inputs, call.tensor_inputs(program), strict=True):
        value.name = name  # torch.onnx calls an input otherwise that is an output as well
    names.name_dims(graph, spec, capture.refuse_fixed)
    names.name_outputs(graph, outputs)
    origins.inherit(model, {})
    graph.name = spec.name
    ir.save(model, folder / MODEL, external_data=f"{MODEL}.data")
    facts = {"nodes": len(graph), "opset": model.opset_imports[""], "outputs": outputs}
    return {**facts, **patterns.facts(places, replacing)} if replacing.names else facts


def _outputs(program: torch.export.ExportedProgram, spec: ModelSpec, owner: str) -> list[str]:
    """The names of the outputs. Raises ExportError for one that is no tensor, or where all of them are constants."""
    structure = program.call_spec.out_spec
    returned = pytree.tree_unflatten(range(structure.num_leaves), structure)
    found = list(program.graph.output_node().args[0])[-structure.num_leaves :]
    values = [leaf.meta.get("val") if isinstance(leaf, torch.fx.Node) else leaf for leaf in found]
    names = named_leaves(returned, spec, owner, lambda index: values[index])
    inputs = set(call.tensor_inputs(program))
    if not any(_reaches(found[index], inputs) for index in names.values()):
        raise ExportError(
            "the model's output does not depend on any input",
            where=f"forward of {owner}",
            fix="return what is computed from the inputs; a constant needs no engine",
        )
    return list(names)


def _reaches(node: torch.fx.Node, inputs: set[str]) -> bool:
    """Whether a node is computed from an input, its shape included."""
    seen, left = {node}, [node]
    while left:
        one = left.pop()
        if one.op == "placeholder" and one.name in inputs:
            return True
        new = [before for before in one.all_input_nodes if before not in seen]
        seen.update(new)
        left += new
    return False
