"""From an ONNX file as people have them to a graph that the rest of aot, and TensorRT, takes.

`loading.load` reads the file; `prepare` rewrites it, in the order below, one idea a module:

| step | module |
|---|---|
| what no engine has, random numbers last | `refusals` |
| inputs of one value as constants | `fixed` |
| functions for the nodes of plugins | `plugin_calls` |
| opset 7 and later up to 20 | `opsets`, `opset_rules` |
| com.microsoft written out | `microsoft`, `microsoft_attention`, `microsoft_integers` |
| integer arithmetic as float | `integers` |
| ops that ONNX defines by others | `written_out` |
| FP64 as FP32 | `doubles` |
| fills of constant shape as constants | `fills` |
| `If` decided by the Dims | `branches`, `ranges` |
| `Squeeze` without axes | `squeezes` |

Every rewrite keeps the numbers, but for what `Prepared.notes` says; the result is compared with the file as it was
given before anything is built of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx_ir as ir

    from aot.declaration import Input
    from aot.onnx_input.plugin_calls import Calls

OPSET = 20
"""Older models are converted up to this: the first that has everything the later stages write."""


@dataclass(frozen=True)
class Prepared:
    """What was done to a model. opset: the one it was written in.

    notes: sentences for the user. requantized: quantized activations became float, so that the numbers differ from
    the file's by its rounding.
    """

    opset: int
    notes: tuple[str, ...]
    requantized: bool


def prepare(model: ir.Model, inputs: Mapping[str, Input], where: str, calls: Calls | None = None) -> Prepared:
    """Rewrite a loaded model in place; `inputs` are the declared ones, whose Dims give the dims their names. calls:
    the nodes that plugins implement, which get their functions.

    Raises GraphError, naming the node, for what cannot be rewritten.
    """
    import onnx_ir as ir
    from onnx_ir.passes import common

    from aot.graph import infer_shapes
    from aot.onnx_input import (
        branches,
        doubles,
        fills,
        fixed,
        integers,
        microsoft,
        opsets,
        plugin_calls,
        ranges,
        refusals,
        squeezes,
        written_out,
    )
    from aot.passes.cleaning import drop_identities
    from aot.passes.fold_constants import fold_constants

    declare(model, inputs)
    refusals.refuse(model, where)
    outputs = {value.name: value.shape for value in model.graph.outputs}
    ranges.forget_shapes(model)
    fixed.fix_values(model, inputs)
    infer_shapes(model)
    if calls is not None:
        plugin_calls.attach(model, calls, where)
    opset = opsets.upgrade(model, OPSET, where)
    infer_shapes(model)
    notes = microsoft.rewrite(model)
    infer_shapes(model)
    changed = integers.to_float(model)
    notes += changed
    if changed:
        notes.append(
            "compared with the file, numbers differ by the rounding of its quantized activations: cosine 0.95 is asked "
            "for, whatever the precision"
        )
    infer_shapes(model)
    if written_out.write_out(model):
        infer_shapes(model)
    notes += doubles.narrow_doubles(model)
    infer_shapes(model)
    fold_constants(model)
    if fills.fill_small(model):
        fold_constants(model)
    branches.resolve_branches(model, inputs)
    fold_constants(model)
    drop_identities(model)
    squeezes.name_axes(model, inputs)
    common.RemoveUnusedNodesPass()(model)
    refusals.refuse_random(model, where)
    common.NameFixPass()(model)
    infer_shapes(model)
    for value in model.graph.outputs:
        before = outputs.get(value.name)
        if value.shape is None and before is not None:
            # The format wants a shape; what the file said of sizes may have been another size's.
            value.shape = ir.Shape([None] * len(before))
    return Prepared(opset, (*(calls.notes if calls is not None else ()), *notes), bool(changed))


def declare(model: ir.Model, inputs: Mapping[str, Input]) -> None:
    """Give the graph's inputs the shapes that are declared, dims by the names of their Dims."""
    import onnx_ir as ir

    for value in model.graph.inputs:
        declared = inputs[str(value.name)].shape
        value.shape = ir.Shape([size if isinstance(size, int) else size.name for size in declared])
