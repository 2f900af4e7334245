"""Graphs without their weights, and the engines that TensorRT makes of them, timed on this machine's GPU.

A time does not depend on the numbers that it is taken with, so a graph is carried without its large weights: each is
read from a file of noise of its dtype, which is made where the engine is built.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import torch

# The kernels of plugins that a graph's nodes are, or that an engine launches, in a file beside it.
KERNELS = ".kernels"
# Elements. Larger weights are not written.
LARGE = 1 << 14
# Elements in a file of noise: more than any weight here has.
NOISE_LENGTH = 1 << 26
# Bytes between the beginnings of two weights: at one place TensorRT would take them for one.
APART = 4096
_TORCH = {"FLOAT": "float32", "HALF": "float16", "INT64": "int64", "INT32": "int32", "BOOL": "bool"}

Dims = dict[str, tuple[int, int, int]]
"""(min, opt, max) of every dim, in the order of an input's axes."""


def _half(normal: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    import numpy as np

    return (normal * 0.01).astype(np.float16)


def _int8(normal: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    import numpy as np

    return (normal * 32).clip(-127, 127).astype(np.int8)


def _fp8(normal: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    import ml_dtypes

    return (normal * 100).clip(-448, 448).astype(ml_dtypes.float8_e4m3fn)


# By ONNX dtype: the file, bytes a value, and how it is made. FP16 noise read as FP32 is harmless too.
_NOISE: dict[str, tuple[str, int, Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]]] = {
    "FLOAT": ("noise.fp16", 4, _half),
    "FLOAT16": ("noise.fp16", 2, _half),
    "INT8": ("noise.int8", 1, _int8),
    "FLOAT8E4M3FN": ("noise.fp8", 1, _fp8),
}


def strip(source: Path, target: Path) -> None:
    """Write the graph `source` to `target`, its large weights read from files of noise beside it."""
    import onnx

    model = onnx.load(source)
    offset = 0
    for tensor in model.graph.initializer:
        elements = 1
        for size in tensor.dims:
            elements *= size
        dtype = onnx.TensorProto.DataType.Name(tensor.data_type)
        if dtype not in _NOISE or elements < LARGE:
            continue
        name, width, _ = _NOISE[dtype]
        for field in ("raw_data", "float_data", "int32_data"):
            tensor.ClearField(field)
        tensor.data_location = onnx.TensorProto.EXTERNAL
        for key, value in (("location", name), ("offset", str(offset)), ("length", str(elements * width))):
            entry = tensor.external_data.add()
            entry.key, entry.value = key, value
        offset += APART
    target.write_bytes(model.SerializeToString())


def make_noise(folder: Path) -> None:
    """The files of noise that stripped graphs in `folder` read: FP16 of deviation 0.01 (2 × NOISE_LENGTH values, since
    FP32 takes two), INT8 of deviation 32, FP8 of deviation 100."""
    import numpy as np

    normal = np.random.default_rng(0).standard_normal(1 << 22, dtype=np.float32)
    for name, _, made in set(_NOISE.values()):
        if not (folder / name).exists():
            length = NOISE_LENGTH * 2 if name == "noise.fp16" else NOISE_LENGTH
            (folder / name).write_bytes(np.tile(made(normal), length // len(normal)).tobytes())


def build(graph: Path, dims: Dims, level: int = 3) -> tuple[bytes, float]:
    """The engine and the seconds of the builder's call, nothing cached.

    Raises RuntimeError with the last of what TensorRT logged.
    """
    import tensorrt as trt

    from aot.runtime.log import last_lines, make_log

    log = make_log(trt)
    builder = trt.Builder(log)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, log)
    with TemporaryDirectory() as folder:
        if not parser.parse_from_file(str(_launching(graph, Path(folder)))):
            said = parser.get_error(0).desc() if parser.num_errors else last_lines(log.errors)
            raise RuntimeError(f"not parsed: {said}")
    config = builder.create_builder_config()
    config.builder_optimization_level = level
    config.clear_flag(trt.BuilderFlag.TF32)
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    profile = builder.create_optimization_profile()
    bounds = list(dims.values())
    for position in range(network.num_inputs):
        tensor = network.get_input(position)
        shape = [tuple(bounds[axis]) if size == -1 else (size,) * 3 for axis, size in enumerate(tensor.shape)]
        profile.set_shape(tensor.name, *(tuple(size[k] for size in shape) for k in range(3)))
    config.add_optimization_profile(profile)
    started = time.perf_counter()
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise RuntimeError(last_lines(log.errors, 3) or "the builder gives no engine")
    return bytes(memoryview(plan)), time.perf_counter() - started


def _launching(graph: Path, folder: Path) -> Path:
    """The graph with its kernels in the place of nodes, below `folder`; the graph itself where none lie beside it."""
    if not graph.with_suffix(KERNELS).exists():
        return graph
    from aot import backend
    from aot.runtime.kernels import read_kernels

    return backend.get("tensorrt").with_kernels(graph, read_kernels(graph.with_suffix(KERNELS)), folder)


def learn(plan: Path) -> None:
    """Know the kernels that an engine launches, before it is loaded; nothing where none lie beside the plan."""
    if not plan.with_suffix(KERNELS).exists():
        return
    import tensorrt as trt

    from aot.runtime import plugin_v3
    from aot.runtime.kernels import read_kernels

    plugin_v3.register(trt)
    plugin_v3.learn(read_kernels(plan.with_suffix(KERNELS)))


def load(plan: bytes) -> Any:
    """The engine. Raises RuntimeError where TensorRT does not take it."""
    import tensorrt as trt

    from aot.runtime.log import last_lines, make_log

    log = make_log(trt)
    engine = trt.Runtime(log).deserialize_cuda_engine(plan)
    if engine is None:
        raise RuntimeError(last_lines(log.errors) or "the engine does not load")
    return engine


class Running:
    """An engine at every dim's opt, its inputs and outputs on the GPU; `context` may be asked and run."""

    def __init__(self, engine: Any, dims: Dims) -> None:
        import tensorrt as trt
        import torch

        self.context = engine.create_execution_context()
        self._data: list[torch.Tensor] = []
        names = [engine.get_tensor_name(i) for i in range(engine.num_io_tensors)]
        fed = [name for name in names if engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT]
        opts = [opt for _, opt, _ in dims.values()]
        for name in fed:
            shape = [opts[axis] if size == -1 else size for axis, size in enumerate(engine.get_tensor_shape(name))]
            self.context.set_input_shape(name, shape)
        for name in [*fed, *(name for name in names if name not in fed)]:
            dtype = getattr(torch, _TORCH[engine.get_tensor_dtype(name).name])
            full = tuple(self.context.get_tensor_shape(name))
            self._data.append(torch.randn(full).to(dtype) if dtype.is_floating_point else torch.ones(full, dtype=dtype))
            self._data[-1] = self._data[-1].cuda()
            self.context.set_tensor_address(name, self._data[-1].data_ptr())
        cuda: Any = torch.cuda
        self.stream = cuda.Stream()

    def enqueue(self) -> None:
        """Start one run. Raises RuntimeError where TensorRT refuses."""
        if not self.context.execute_async_v3(self.stream.cuda_stream):
            raise RuntimeError("the engine does not run")

    def wait(self) -> None:
        """Until all that was started is done."""
        self.stream.synchronize()


class Replay(Running):
    """The same in a CUDA graph; `run()` is one run's milliseconds."""

    def __init__(self, engine: Any, dims: Dims) -> None:
        import torch

        super().__init__(engine, dims)
        for _ in range(3):
            self.enqueue()
        self.wait()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, stream=self.stream):
            self.enqueue()

    def run(self) -> float:
        """Milliseconds of one run on the GPU."""
        import torch

        cuda: Any = torch.cuda
        begin, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        with cuda.stream(self.stream):
            begin.record()
            self._graph.replay()
            end.record()
        end.synchronize()
        return float(begin.elapsed_time(end))
