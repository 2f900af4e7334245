"""Surgery: the exported graph becomes one that TensorRT builds well, with equal results."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aot.records import MODEL, Exported, Graph
from aot.run import Run

if TYPE_CHECKING:
    import onnx_ir as ir

    from aot.plan import Plan

TOOLS = ("onnx", "onnx-ir", "onnxscript")


def surgery(run: Run, exported: Exported, plan: Plan) -> Graph:
    """Run the passes of `aot.passes` over the exported graph.

    The result has the same inputs and outputs, unique node names, and the dtype and shape of every value that
    inference can find. All precisions narrower than FP32 share one result. Raises GraphError for a weight that
    holds NaN.
    """
    narrow = plan.precision != "fp32"

    def make(folder: Path) -> Mapping[str, Any]:
        return rewrite(exported.model, folder, narrow=narrow)

    return run.stage(
        Graph,
        "surgery",
        make,
        config={"narrow": narrow},
        inputs=[exported],
        tools=TOOLS,
        detail=f"{exported.nodes} nodes",
    )


def rewrite(source: Path, folder: Path, *, narrow: bool) -> Mapping[str, Any]:
    """Rewrite the ONNX file `source` into `folder`; the weights stay on disk (memory-mapped) until written.

    The same file in gives the same bytes out. Returns the facts of a `Graph`.
    """
    import onnx
    import onnx_ir as ir
    from onnx_ir.passes import common

    from aot.graph import run_passes
    from aot.passes import PASSES

    model = ir.load(source)
    check_weights(model)
    # Names first: what is skipped is reported by name.
    common.NameFixPass()(model)
    done = run_passes([one for one in PASSES if narrow or not one.narrow_only], model)
    common.NameFixPass()(model)
    common.TopologicalSortPass()(model)
    ir.save(model, folder / MODEL, external_data=f"{MODEL}.data", size_threshold_bytes=1024)
    # By path, since weights beside the file are looked for there, and they may exceed the 2 GB of a protobuf.
    onnx.checker.check_model(folder / MODEL)
    return {
        "nodes": len(model.graph),
        "passes": [
            {
                "name": one.name,
                "sites": one.sites,
                "seconds": round(one.seconds, 4),
                "skipped": [{"node": node, "reason": reason} for node, reason in one.skipped.items()],
            }
            for one in done
        ],
    }


def check_weights(model: ir.Model) -> None:
    """Raise GraphError for the first float weight that holds NaN, naming it and a node that reads it.

    Infinity is let through: masks hold it.
    """
    import numpy as np

    from aot import origins
    from aot.errors import GraphError

    for name, value in model.graph.initializers.items():
        tensor = value.const_value
        if tensor is None or not tensor.dtype.is_floating_point() or not tensor.size or tensor.dtype.bitwidth < 16:
            continue
        # max() is NaN where any element is, and needs no copy of the weight.
        if np.isnan(float(np.max(tensor.numpy()))):
            reader = next(iter(value.consumers()), None)
            raise GraphError(
                f"weight '{name}' holds NaN",
                where=origins.where_of(reader) if reader is not None else None,
                fix="check the checkpoint and how it is loaded; aot builds no engine from weights that are not numbers",
            )
