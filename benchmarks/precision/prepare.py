"""The models in every precision: final graphs without their large weights, as an engine would be built from them."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from _engine import Dims, strip

RECIPES = ("fp16", "int8", "fp8")


@dataclass(frozen=True)
class Cell:
    """A model of `surgery.models` at one size: what engines are built for, and timed at."""

    model: str
    batch: int
    length: int | None = None

    @property
    def dims(self) -> Dims:
        """A profile of its own: kernels chosen for one batch size lose at another."""
        sizes = {"batch": self.batch} | ({} if self.length is None else {"seq": self.length})
        return {name: (size, size, size) for name, size in sizes.items()}

    @property
    def label(self) -> str:
        """`bert-base 64 x 512`."""
        return f"{self.model} {self.batch}" + ("" if self.length is None else f" x {self.length}")


# The costly ones first: a run that is cut short has them.
CELLS = (
    Cell("bert-base", 64, 512),
    *(
        Cell(model, batch, length)
        for batch in (64, 8, 1)
        for model, length in (("bert-base", 128), ("vit_b_16", None), ("resnet50", None), ("minilm", 128))
    ),
)
MODELS = tuple(dict.fromkeys(cell.model for cell in CELLS))


def prepare(folder: Path, models: Sequence[str], recipes: Sequence[str]) -> None:
    """Write MODEL.RECIPE.onnx for each. recipes: names in `calib/`, or paths."""
    import onnx_ir as ir
    from surgery.models import MODELS as SOURCES

    from aot import content
    from aot.config import Recipe, load
    from aot.precision import apply
    from aot.stages.surgery import rewrite

    for name in models:
        with tempfile.TemporaryDirectory() as scratch:
            work = Path(scratch)
            source = SOURCES[name]
            source.write(work / "exported.onnx")
            amax: dict[bool, dict[str, float]] = {}
            for wanted in recipes:
                recipe = load(Recipe, content.find("calib", wanted))
                quantized = recipe.precision in ("int8", "fp8")
                rewritten = work / ("quantized" if quantized else "wide")
                if quantized not in amax:
                    rewritten.mkdir()
                    rewrite(work / "exported.onnx", rewritten, narrow=recipe.precision != "fp32", quantized=quantized)
                    amax[quantized] = observe(rewritten / "model.onnx", name)
                model = ir.load(rewritten / "model.onnx")
                outcome = apply(model, recipe, amax[quantized])
                ir.save(model, work / "final.onnx", external_data="final.onnx.data")
                target = folder / f"{name}.{Path(wanted).stem}.onnx"
                strip(work / "final.onnx", target)
                (work / "final.onnx.data").unlink()
                ops = ", ".join(f"{count} {op}" for op, count in outcome.ops.items()) or "nothing"
                print(f"{target.name}: {outcome.nodes} nodes, quantized: {ops}", flush=True)


def observe(graph: Path, name: str) -> dict[str, float]:
    """The largest magnitude of every float value over two random batches: it decides where FP32 stays, and scales."""
    import numpy as np
    from surgery.models import MODELS as SOURCES

    from aot.backends.onnxruntime_tap import Tap
    from aot.batches import generated
    from aot.declaration import ModelSpec
    from aot.observe import float_values

    observed = float_values(graph)
    tap = Tap(graph, observed.values)
    spec = ModelSpec(name, SOURCES[name].inputs)
    found: dict[str, float] = {}
    for seed in range(2):
        for value, array in tap(generated(spec, {"batch": 2, "seq": 128}, seed)).items():
            found[value] = max(found.get(value, 0.0), float(np.abs(array).max()))
    return found | {alias: found[of] for alias, of in observed.alias.items() if of in found}
