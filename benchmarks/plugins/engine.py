"""The same op without its plugin, as TensorRT builds it: what a kernel has to beat inside an engine.

Weights are inputs here, as they are of the kernel.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

LEVEL = 3
"""The builder's optimization level, its default."""


def export(function: Callable[..., Any], inputs: Mapping[str, torch.Tensor], path: Path) -> None:
    """Write the function as ONNX for just these shapes. Raises what torch.onnx raises."""

    class Module(torch.nn.Module):
        def forward(self, *given: torch.Tensor) -> Any:
            return function(*given)

    names = list(inputs)
    torch.onnx.export(
        Module().eval(), tuple(inputs.values()), path, input_names=names, dynamo=True, opset_version=20, verbose=False
    )


def build(function: Callable[..., Any], inputs: Mapping[str, torch.Tensor], plan: Path) -> None:
    """Write the engine, strongly typed. Raises RuntimeError with what TensorRT said."""
    import _engine

    with tempfile.TemporaryDirectory() as folder:
        graph = Path(folder) / "op.onnx"
        export(function, inputs, graph)
        made, _ = _engine.build(graph, {}, LEVEL)
    plan.write_bytes(made)


class Running:
    """An engine on tensors of ours; `run` enqueues it on torch's current stream."""

    def __init__(self, plan: Path, inputs: Mapping[str, torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
        import _engine
        import tensorrt as trt

        engine = _engine.load(plan.read_bytes())
        self._context = engine.create_execution_context()
        self.made = [torch.empty_like(one) for one in outputs]
        names = [engine.get_tensor_name(i) for i in range(engine.num_io_tensors)]
        given = [name for name in names if engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT]
        results = [name for name in names if name not in given]
        tensors = {**{name: inputs[name] for name in given}, **dict(zip(results, self.made, strict=True))}
        for name, tensor in tensors.items():
            if tuple(engine.get_tensor_shape(name)) != tuple(tensor.shape):
                raise RuntimeError(f"the engine's '{name}' is {tuple(engine.get_tensor_shape(name))}")
            self._context.set_tensor_address(name, tensor.data_ptr())

    def run(self) -> None:
        """One run. Raises RuntimeError where TensorRT refuses."""
        cuda: Any = torch.cuda
        if not self._context.execute_async_v3(cuda.current_stream().cuda_stream):
            raise RuntimeError("the engine does not run")
