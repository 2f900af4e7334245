"""TensorRT-RTX: builds without a GPU, one plan a target. Runs on RTX GPUs only, so here mostly «built, not run».

The compute capabilities are those of the module's `ComputeCapability` enumeration (1.7), kept as a constant so
that a decision need not import the module. Kernels are chosen when the engine is loaded: there is nothing to
time while building, and timing caches do not apply.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from aot import toolchain
from aot.backends import _graph
from aot.backends._nvinfer import Nvinfer
from aot.config import Precision
from aot.errors import EngineError, GraphError, TargetError
from aot.targets import check_precision
from aot.toolchain import Machine

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto

TARGETS = ("sm75", "sm80", "sm86", "sm89", "sm120", "sm121")


class TensorRtRtx(Nvinfer):
    """See the module's docstring."""

    name = "tensorrt_rtx"
    title = "TensorRT-RTX"
    module_name = "tensorrt_rtx"

    def version(self) -> str | None:
        """See Backend.version."""
        found = (toolchain.version(name) for name in ("tensorrt-rtx-cu13", "tensorrt-rtx-cu12", "tensorrt-rtx"))
        return next((version for version in found if version), None)

    def targets(self, machine: Machine) -> tuple[str, ...]:
        """Every target it knows, this machine's GPU first."""
        here = machine.gpu.target if machine.gpu else None
        return tuple(sorted(TARGETS, key=lambda target: target != here)) if self.version() else ()

    def check(self, precision: Precision, target: str, machine: Machine) -> None:
        """See Backend.check."""
        if self.version() is None:
            raise TargetError(
                "TensorRT-RTX is not installed",
                where=f"--target {target}",
                fix="pip install tensorrt-rtx-cu13, or --until graph here and finish on the machine with the GPU",
            )
        if target not in TARGETS:
            raise TargetError(
                f"TensorRT-RTX does not build for {target}",
                where=f"--target {target}",
                fix=f"it builds for {', '.join(TARGETS)}; for {target} use TensorRT: --until graph here, then "
                "aot build on the prepared artifact on a machine with that GPU",
            )
        check_precision(precision, target)

    def aim(self, trt: ModuleType, config: Any, target: str) -> None:
        """One compute capability a plan."""
        capability = getattr(trt.ComputeCapability, target.upper(), None)
        config.num_compute_capabilities = 1
        if capability is None or not config.set_compute_capability(capability, 0):
            raise EngineError(
                f"TensorRT-RTX {self.version()} does not know {target}", fix="pip install -U tensorrt-rtx-cu13"
            )

    def check_graph(self, graph: Path, precision: Precision, target: str) -> None:
        """Also refuses ONNX Attention in FP32, which passes the parser and then fails in the builder."""
        wide = _wide_attention(_graph.load_structure(graph).graph)
        if wide is not None:
            raise GraphError(
                f"TensorRT-RTX {self.version()} has no FP32 kernel for the ONNX op Attention",
                where=_graph.describe(wide),
                fix="export with opset 20, which writes attention as MatMul and Softmax, or use --precision fp16",
            )
        super().check_graph(graph, precision, target)

    def can_run(self, target: str, machine: Machine) -> str | None:
        """See Backend.can_run."""
        if machine.gpu is not None and machine.gpu.target not in TARGETS:
            return f"TensorRT-RTX does not run on {machine.gpu.target}"
        return super().can_run(target, machine)


def _wide_attention(graph: GraphProto) -> NodeProto | None:
    """The first ONNX Attention node whose query is FP32, by the types that the graph states or implies."""
    import onnx

    found = [n for n in _graph.nodes(graph) if n.op_type == "Attention" and n.domain in _graph.ONNX_DOMAINS]
    if not found:
        return None
    types = {value.name: value.type.tensor_type.elem_type for value in (*graph.input, *graph.value_info)}
    types.update({tensor.name: tensor.data_type for tensor in graph.initializer})
    for node in _graph.nodes(graph):  # a cast says what value_info may leave out
        if node.op_type == "Cast":
            types[node.output[0]] = next(a.i for a in node.attribute if a.name == "to")
    return next((node for node in found if types.get(node.input[0]) == onnx.TensorProto.FLOAT), None)


BACKEND = TensorRtRtx()
