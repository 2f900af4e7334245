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
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from _engine import Dims, Replay, build, load, make_noise, strip
from _result import write

if TYPE_CHECKING:
    import torch

TOOLS = ("plain", "aot")
RUNS = 60


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


def prepare(folder: Path, names: list[str]) -> None:
    """Write NAME.plain.onnx and NAME.aot.onnx, without their large weights."""
    import onnx_ir as ir

    from aot import content
    from aot.config import Recipe
    from aot.config import load as load_settings
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
            apply(model, load_settings(Recipe, content.find("calib", "fp16")), {})
            ir.save(model, work / "narrow.onnx", external_data="narrow.onnx.data")
            strip(work / "narrow.onnx", folder / f"{name}.aot.onnx")
        sizes = [len(ir.load(folder / f"{name}.{tool}.onnx").graph) for tool in TOOLS]
        print(f"{name}: {sizes[0]} nodes plain, {sizes[1]} after surgery", flush=True)


def measure(folder: Path, name: str, tools: list[str]) -> list[dict[str, Any]]:
    """A row for each tool, timed in turns."""
    make_noise(folder)
    dims = SUBJECTS[name].dims
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
        engine = load(plan)
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
