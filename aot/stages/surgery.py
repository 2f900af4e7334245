"""Surgery: the exported graph becomes one that TensorRT builds well, with equal results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aot.config import QUANTIZED
from aot.records import MODEL, Exported, Graph
from aot.run import Run

if TYPE_CHECKING:
    import onnx_ir as ir

    from aot.plan import Plan

TOOLS = ("onnx", "onnx-ir")


def surgery(run: Run, exported: Exported, plan: Plan) -> Graph:
    """Run the passes of `aot.passes` over the exported graph.

    The result has the same inputs and outputs, unique node names, and the dtype and shape of every value that
    inference can find. FP16 and BF16 share one result, INT8, FP8 and INT4 another. Raises GraphError for a weight that
    holds NaN, and for a pass that changes what the graph computes, which is looked at in a few places of each.
    """
    narrow, quantized, asked = plan.precision != "fp32", plan.precision in QUANTIZED, plan.surgery

    def make(folder: Path) -> Mapping[str, Any]:
        return rewrite(
            exported.model, folder, narrow=narrow, quantized=quantized, without=asked.without, verify=asked.verify
        )

    return run.stage(
        Graph,
        "surgery",
        make,
        config={"narrow": narrow, "quantized": quantized, **asked.model_dump()},
        inputs=[exported],
        tools=TOOLS,
        detail=f"{exported.nodes} nodes",
    )


def rewrite(
    source: Path,
    folder: Path,
    *,
    narrow: bool,
    quantized: bool = False,
    without: Collection[str] = (),
    verify: bool = False,
) -> Mapping[str, Any]:
    """Rewrite the ONNX file `source` into `folder`; the weights stay on disk (memory-mapped) until written.

    without: passes to leave out. verify: compare the whole graph after every pass, not a sample of what it changed.
    The same file in gives the same bytes out. Returns the facts of a `Graph`. Raises GraphError where a pass changes
    what the graph computes.
    """
    import onnx
    import onnx_ir as ir

    from aot.graph.check import Check
    from aot.optimize import optimize

    model = ir.load(source)
    check_weights(model)
    before = count_ops(model)
    done = optimize(model, narrow=narrow, quantized=quantized, without=without, check=Check(whole=verify))
    ir.save(model, folder / MODEL, external_data=f"{MODEL}.data", size_threshold_bytes=1024)
    # By path, since weights beside the file are looked for there, and they may exceed the 2 GB of a protobuf.
    onnx.checker.check_model(folder / MODEL)
    return {**done.to_json(), "nodes": len(model.graph), "ops": {"before": before, "after": count_ops(model)}}


def count_ops(model: ir.Model) -> dict[str, int]:
    """How many nodes of each op the main graph has; an op of another domain as `domain::op`."""
    return dict(Counter(f"{node.domain}::{node.op_type}" if node.domain else node.op_type for node in model.graph))


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
        found = np.isnan(float(np.max(tensor.numpy())))
        forget_pages(tensor)
        if found:
            reader = next(iter(value.consumers()), None)
            raise GraphError(
                f"weight '{name}' holds NaN",
                where=origins.where_of(reader) if reader is not None else None,
                fix="check the checkpoint and how it is loaded; aot builds no engine from weights that are not numbers",
            )


def forget_pages(tensor: ir.TensorProtocol) -> None:
    """Give the memory back that reading a weight beside the file has taken; it is read again where it is needed."""
    import mmap

    mapped = getattr(tensor, "raw", None)
    if isinstance(mapped, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        mapped.madvise(mmap.MADV_DONTNEED)
