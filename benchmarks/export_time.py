"""What aot's checks add to an export: its stage `export` against plain `torch.onnx.export` (goal: at most 1.5 times).

    python benchmarks/export_time.py [--runs 3] [MODEL ...]

Both write the same model, with the same dynamic batch, to disk, in turns in one process after a first round that is
not counted. Needs torchvision and transformers. Writes benchmarks/results/export_time.json; exit code 1 where the goal
is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from _result import write

from aot.batches import generated
from aot.declaration import Dim, Input, ModelSpec
from aot.frontend.eager import tensor
from aot.frontend.export import write_module

GOAL = 1.5
BATCH = Dim("batch", min=1, opt=4, max=32)


def minilm() -> tuple[torch.nn.Module, dict[str, Input]]:
    """The encoder of all-MiniLM-L6-v2 from its sizes, random weights."""
    from transformers import BertConfig, BertModel

    sizes = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
    seq = Dim("seq", min=2, opt=32, max=256)
    ids = Input([BATCH, seq], "int64", low=0, high=30000)
    return BertModel(BertConfig(**sizes)), {"input_ids": ids, "attention_mask": Input([BATCH, seq], "int64", 0, 2)}


def vision(name: str) -> Callable[[], tuple[torch.nn.Module, dict[str, Input]]]:
    """A model of torchvision without weights."""

    def make() -> tuple[torch.nn.Module, dict[str, Input]]:
        import torchvision

        module = torchvision.models.get_model(name, weights=None)
        first = "x" if name == "vit_b_16" or name == "swin_t" else "input"
        return module, {first: Input([BATCH, 3, 224, 224])}

    return make


MODELS = {"minilm": minilm, "vit_b_16": vision("vit_b_16"), "swin_t": vision("swin_t")}


def plain(module: torch.nn.Module, spec: ModelSpec, folder: Path) -> None:
    """torch.onnx.export as its documentation has it."""
    sizes = {name: dim.bounds[1] for name, dim in spec.dims.items()}
    dims = {name: torch.export.Dim(name, min=dim.bounds[0], max=dim.bounds[2]) for name, dim in spec.dims.items()}
    shapes = {
        name: {axis: dims[d.name] for axis, d in enumerate(declared.shape) if isinstance(d, Dim)}
        for name, declared in spec.inputs.items()
    }
    given = {name: tensor(values) for name, values in generated(spec, sizes, seed=0).items()}
    torch.onnx.export(
        module, kwargs=given, f=str(folder / "model.onnx"), dynamo=True, dynamic_shapes=shapes, external_data=True
    )


def measured(name: str, runs: int) -> list[dict[str, Any]]:
    """A row for each tool: seconds, the median of the runs, and their ratio to the plain export."""
    module, inputs = MODELS[name]()
    module, spec = module.eval(), ModelSpec(name, inputs)
    taken: dict[str, list[float]] = {"torch.onnx.export": [], "aot": []}
    work: dict[str, Callable[[Path], object]] = {
        "torch.onnx.export": lambda folder: plain(module, spec, folder),
        "aot": lambda folder: write_module(module, spec, folder),
    }
    for turn in range(runs + 1):
        for tool, export in work.items():
            with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
                started = time.process_time()
                export(Path(folder))
                if turn:
                    taken[tool].append(time.process_time() - started)
    base = statistics.median(taken["torch.onnx.export"])
    return [
        {
            "model": name,
            "tool": tool,
            "seconds": round(statistics.median(seconds), 2),
            "min": round(min(seconds), 2),
            "max": round(max(seconds), 2),
            "runs": runs,
            "ratio": round(statistics.median(seconds) / base, 2),
        }
        for tool, seconds in taken.items()
    ]


def main() -> int:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"of {', '.join(MODELS)} (default: all)")
    parser.add_argument("--runs", type=int, default=3, help="how often each is timed (default: 3)")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    rows = [row for name in arguments.models or MODELS for row in measured(name, arguments.runs)]
    for row in rows:
        print(f"{row['model']:12} {row['tool']:20} {row['seconds']:8.2f} s   x {row['ratio']}")
    print(write("export_time", rows))
    return 0 if all(row["ratio"] <= GOAL for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
