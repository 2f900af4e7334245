"""Stage: the weights that a stripped plan leaves out, as one safetensors file, and what of the graph stays in the plan.

What leaves: initializers of two elements and more, in FP32, FP16 or BF16, that layers read as weights (`_READS`).
Scalars stay, since patterns such as GELU are found by them; so do integers. The plan depends on all of the graph but on
the values that leave: models with equal graphs and other weights, such as fine-tunes, have one plan.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aot.records import QuantizedGraph, StrippedWeights
from aot.run import Run
from aot.runtime.refit import DTYPES, WEIGHTS

if TYPE_CHECKING:
    import onnx_ir as ir

_ANY = frozenset({0, 1})
_READS: Mapping[str, frozenset[int]] = {
    **dict.fromkeys(("MatMul", "Add", "Sub", "Mul", "Div"), _ANY),
    **dict.fromkeys(("Conv", "ConvTranspose", "LayerNormalization", "InstanceNormalization"), frozenset({1, 2})),
    "Gemm": frozenset({1, 2}),
    "Gather": frozenset({0}),
    "PRelu": frozenset({1}),
}
"""Op -> the inputs at which TensorRT takes a constant as weights that may change."""


def strip(run: Run, final: QuantizedGraph) -> StrippedWeights:
    """Write the weights that leave the plan. facts: see records.StrippedWeights."""

    def make(folder: Path) -> Mapping[str, Any]:
        import onnx_ir as ir

        model = ir.load(final.model)
        weights = dict(sorted(leaving(model).items(), key=lambda item: (-item[1].dtype.itemsize, item[0])))
        size = write(folder / WEIGHTS, weights)
        return {"names": list(weights), "bytes": size, "rest": _rest(final.model, weights)}

    return run.stage(StrippedWeights, "strip", make, config={}, inputs=[final])


def leaving(model: ir.Model) -> dict[str, ir.TensorProtocol]:
    """The weights that leave, by name."""
    found: dict[str, ir.TensorProtocol] = {}
    for name, value in model.graph.initializers.items():
        tensor = value.const_value
        if tensor is None or tensor.size < 2 or tensor.dtype.name not in DTYPES.values():
            continue
        reads = [(use.node, use.idx) for use in value.uses()]
        plain = all(not node.domain and index in _READS.get(node.op_type, ()) for node, index in reads)
        if reads and plain and not value.is_graph_output() and all(node.graph is model.graph for node, _ in reads):
            found[name] = tensor
    return found


def write(path: Path, weights: Mapping[str, ir.TensorProtocol]) -> int:
    """Write a safetensors file, one tensor at a time in memory; return its size in bytes."""
    names = {name: short for short, name in DTYPES.items()}
    header: dict[str, Any] = {}
    end = 0
    for name, tensor in weights.items():
        header[name] = {
            "dtype": names[tensor.dtype.name],
            "shape": [int(size) for size in tensor.shape.numpy()],
            "data_offsets": [end, end + tensor.nbytes],
        }
        end += tensor.nbytes
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    with path.open("wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        for tensor in weights.values():
            file.write(tensor.tobytes())
        return file.tell()


def _rest(path: Path, weights: Collection[str]) -> str:
    """SHA-256 of the graph without the values of these weights; those of all other constants count."""
    import onnx
    from onnx.external_data_helper import load_external_data_for_tensor

    model = onnx.load(path, load_external_data=False)
    for tensor in model.graph.initializer:
        if tensor.name in weights:
            kept = onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
            tensor.CopyFrom(kept)
        elif tensor.data_location == onnx.TensorProto.EXTERNAL:
            load_external_data_for_tensor(tensor, str(path.parent))
            tensor.ClearField("data_location")
            tensor.ClearField("external_data")
    return hashlib.sha256(model.SerializeToString(deterministic=True)).hexdigest()
