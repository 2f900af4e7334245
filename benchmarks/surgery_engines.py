"""Engines with and without surgery: layers, latency and build time of FP16 engines on this machine's GPU.

    python benchmarks/surgery_engines.py prepare FOLDER [--only MODEL]     needs no GPU
    python benchmarks/surgery_engines.py measure FOLDER [--only MODEL]     on the GPU, with TensorRT

`plain` is what `torch.onnx.export` makes of the model in half precision; `aot` is what surgery and FP16 placement
make of the export in FP32. Both graphs are written without their large weights, which a time does not depend on:
each is read from one file of noise. Both engines are built from nothing and timed in turns: median milliseconds of a
CUDA graph that is replayed on inputs that lie on the GPU already.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from _result import write

if TYPE_CHECKING:
    import torch

TOOLS = ("plain", "aot")
# Elements. Larger float weights are not written.
LARGE = 1 << 14
NOISE = "noise.bin"
RUNS = 60
_TORCH = {"FLOAT": "float32", "HALF": "float16", "INT64": "int64", "INT32": "int32", "BOOL": "bool"}

Dims = dict[str, tuple[int, int, int]]
"""(min, opt, max) of every dim, in the order of an input's axes."""


@dataclass(frozen=True)
class Subject:
    """A model, and what it is built for and timed at: each dim's (min, opt, max); the time is taken at opt."""

    make: Callable[[], tuple[torch.nn.Module, dict[str, torch.Tensor]]]
    dims: Dims


def image(batch: int, side: int = 224) -> torch.Tensor:
    """A picture batch, FLOAT [batch, 3, side, side]."""
    import torch

    return torch.randn(batch, 3, side, side)


def _vision(name: str) -> Callable[[], tuple[Any, dict[str, Any]]]:
    def make() -> tuple[Any, dict[str, Any]]:
        from torchvision import models

        return getattr(models, name)(weights=None), {"x": image(2)}

    return make


def _bert() -> tuple[Any, dict[str, Any]]:
    import torch
    from transformers import BertConfig, BertModel

    ids = torch.randint(0, 30522, (2, 16))
    return BertModel(BertConfig()), {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def _whisper() -> tuple[Any, dict[str, Any]]:
    import torch
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    config = WhisperConfig(d_model=512, encoder_layers=6, encoder_attention_heads=8, encoder_ffn_dim=2048)
    return WhisperEncoder(config), {"input_features": torch.randn(2, 80, 3000)}


def _segformer() -> tuple[Any, dict[str, Any]]:
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    return SegformerForSemanticSegmentation(SegformerConfig()), {"pixel_values": image(2, 512)}


_BATCH = {"batch": (1, 8, 16)}
SUBJECTS: dict[str, Subject] = {
    "bert-base": Subject(_bert, {"batch": (1, 64, 64), "seq": (128, 128, 128)}),
    "vit_b_16": Subject(_vision("vit_b_16"), _BATCH),
    "swin_t": Subject(_vision("swin_t"), _BATCH),
    "convnext_tiny": Subject(_vision("convnext_tiny"), _BATCH),
    "whisper-encoder": Subject(_whisper, _BATCH),
    "segformer": Subject(_segformer, _BATCH),
    "efficientnet_b0": Subject(_vision("efficientnet_b0"), _BATCH),
    "resnet50": Subject(_vision("resnet50"), _BATCH),
}


def export(subject: Subject, path: Path, *, half: bool) -> None:
    """The plain export, dynamic in every Dim that the subject has; FP16 where `half`."""
    import torch

    torch.manual_seed(0)
    module, inputs = subject.make()
    module.eval()
    if half:
        module.half()
        inputs = {name: x.half() if x.is_floating_point() else x for name, x in inputs.items()}
    names = list(subject.dims)
    dims = {name: torch.export.Dim(name, min=1, max=4096) for name in names}
    shapes = {name: {axis: dims[d] for axis, d in enumerate(names) if axis < x.ndim} for name, x in inputs.items()}
    torch.onnx.export(
        module, (), path, kwargs=inputs, input_names=list(inputs), dynamo=True, dynamic_shapes=shapes, verbose=False
    )


def strip(source: Path, target: Path) -> None:
    """Write the graph `source` to `target`, its large float weights read from the file NOISE beside it."""
    import onnx

    model = onnx.load(source)
    for tensor in model.graph.initializer:
        elements = 1
        for size in tensor.dims:
            elements *= size
        width = {onnx.TensorProto.FLOAT: 4, onnx.TensorProto.FLOAT16: 2}.get(tensor.data_type)
        if width is None or elements < LARGE:
            continue
        for field in ("raw_data", "float_data", "int32_data"):
            tensor.ClearField(field)
        tensor.data_location = onnx.TensorProto.EXTERNAL
        for key, value in (("location", NOISE), ("offset", "0"), ("length", str(elements * width))):
            entry = tensor.external_data.add()
            entry.key, entry.value = key, value
    target.write_bytes(model.SerializeToString())


def prepare(folder: Path, names: list[str]) -> None:
    """Write NAME.plain.onnx and NAME.aot.onnx, without their large weights."""
    import onnx_ir as ir

    from aot import content
    from aot.config import Recipe, load
    from aot.precision import apply
    from aot.stages.surgery import rewrite

    for name in names:
        with tempfile.TemporaryDirectory() as scratch:
            work = Path(scratch)
            export(SUBJECTS[name], work / "half.onnx", half=True)
            strip(work / "half.onnx", folder / f"{name}.plain.onnx")
            export(SUBJECTS[name], work / "single.onnx", half=False)
            (work / "out").mkdir()
            rewrite(work / "single.onnx", work / "out", narrow=True)
            model = ir.load(work / "out" / "model.onnx")
            apply(model, load(Recipe, content.find("calib", "fp16")), {})
            ir.save(model, work / "narrow.onnx", external_data="narrow.onnx.data")
            strip(work / "narrow.onnx", folder / f"{name}.aot.onnx")
        sizes = [len(ir.load(folder / f"{name}.{tool}.onnx").graph) for tool in TOOLS]
        print(f"{name}: {sizes[0]} nodes plain, {sizes[1]} after surgery", flush=True)


def make_noise(folder: Path) -> None:
    """256 MiB of FP16 numbers with standard deviation 0.01; read as FP32 they are harmless too."""
    import numpy as np

    if not (folder / NOISE).exists():
        noise = np.random.default_rng(0).standard_normal(1 << 22, dtype=np.float32) * 0.01
        (folder / NOISE).write_bytes(np.tile(noise.astype(np.float16), 32).tobytes())


def build(graph: Path, dims: Dims) -> tuple[bytes, float]:
    """The engine and the seconds of the builder's call, nothing cached. Raises RuntimeError with the log."""
    import tensorrt as trt

    log = trt.Logger(trt.Logger.ERROR)
    builder = trt.Builder(log)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, log)
    if not parser.parse_from_file(str(graph)):
        raise RuntimeError(parser.get_error(0).desc())
    config = builder.create_builder_config()
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
        raise RuntimeError("the builder gives no engine")
    return bytes(memoryview(plan)), time.perf_counter() - started


class Replay:
    """An engine at every dim's opt, in a CUDA graph; `run()` is one run's milliseconds."""

    def __init__(self, engine: Any, dims: Dims) -> None:
        import tensorrt as trt
        import torch

        self._context = engine.create_execution_context()
        self._data: list[torch.Tensor] = []
        names = [engine.get_tensor_name(i) for i in range(engine.num_io_tensors)]
        fed = [name for name in names if engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT]
        opts = [opt for _, opt, _ in dims.values()]
        for name in fed:
            shape = [opts[axis] if size == -1 else size for axis, size in enumerate(engine.get_tensor_shape(name))]
            self._context.set_input_shape(name, shape)
        for name in [*fed, *(name for name in names if name not in fed)]:
            dtype = getattr(torch, _TORCH[engine.get_tensor_dtype(name).name])
            full = tuple(self._context.get_tensor_shape(name))
            self._data.append(torch.randn(full).to(dtype) if dtype.is_floating_point else torch.ones(full, dtype=dtype))
            self._data[-1] = self._data[-1].cuda()
            self._context.set_tensor_address(name, self._data[-1].data_ptr())
        self._stream = torch.cuda.Stream()
        for _ in range(3):
            self._context.execute_async_v3(self._stream.cuda_stream)
        self._stream.synchronize()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, stream=self._stream):
            self._context.execute_async_v3(self._stream.cuda_stream)

    def run(self) -> float:
        """Milliseconds of one run on the GPU."""
        import torch

        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        with torch.cuda.stream(self._stream):
            begin.record()
            self._graph.replay()
            end.record()
        end.synchronize()
        return float(begin.elapsed_time(end))


def measure(folder: Path, name: str, tools: list[str]) -> list[dict[str, Any]]:
    """A row for each tool, timed in turns."""
    import tensorrt as trt

    make_noise(folder)
    dims = SUBJECTS[name].dims
    runtime = trt.Runtime(trt.Logger(trt.Logger.ERROR))
    rows: dict[str, dict[str, Any]] = {}
    replays: dict[str, Replay] = {}
    for tool in tools:
        about: dict[str, Any] = {"model": name, "tool": tool, "precision": "fp16"}
        about.update({dim: opt for dim, (_, opt, _) in dims.items()})
        try:
            plan, seconds = build(folder / f"{name}.{tool}.onnx", dims)
        except RuntimeError as error:
            rows[tool] = {**about, "built": False, "reason": " ".join(str(error).split())[-300:]}
            continue
        engine = runtime.deserialize_cuda_engine(plan)
        made = {"built": True, "seconds": round(seconds, 2), "layers": engine.num_layers, "bytes": len(plan)}
        rows[tool] = {**about, **made}
        replays[tool] = Replay(engine, dims)
    times: dict[str, list[float]] = {tool: [] for tool in replays}
    for _ in range(RUNS):
        for tool, one in replays.items():
            times[tool].append(one.run())
    for tool, taken in times.items():
        tenths = statistics.quantiles(taken[RUNS // 10 :], n=10)
        middle = statistics.median(taken[RUNS // 10 :])
        rows[tool].update(ms=round(middle, 4), ms_p10=round(tenths[0], 4), ms_p90=round(tenths[-1], 4))
    return list(rows.values())


def main() -> int:
    """Prepare the graphs, or measure them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("prepare", "measure"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", action="append", choices=sorted(SUBJECTS), help="this model only; may be repeated")
    parser.add_argument("--tool", action="append", help="these graphs only: plain, aot, ...")
    parser.add_argument("--name", default="surgery-engines", help="the result's name")
    arguments = parser.parse_args()
    names = arguments.only or list(SUBJECTS)
    if arguments.step == "prepare":
        arguments.folder.mkdir(parents=True, exist_ok=True)
        prepare(arguments.folder, names)
        return 0
    rows: list[dict[str, Any]] = []
    for name in names:
        for row in measure(arguments.folder, name, arguments.tool or list(TOOLS)):
            rows.append(row)
            print(json.dumps(row), flush=True)
        write(arguments.name, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
