"""The models in every precision: final graphs without their large weights, as an engine would be built from them."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from _engine import Dims, strip

from precision import attention

if TYPE_CHECKING:
    from aot.config import Recipe
    from aot.statistics import Statistics

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


def prepare(folder: Path, models: Sequence[str], recipes: Sequence[str], *, kernels: bool = False) -> None:
    """Write MODEL.RECIPE.onnx for each. recipes: names in `calib/`, or paths. A refused one is printed with why.

    kernels: also MODEL.RECIPE-attention.onnx, whose attention is kernels.
    """
    from surgery.models import MODELS as SOURCES

    from aot import content
    from aot.config import Recipe, load
    from aot.errors import GraphError

    for name in models:
        with tempfile.TemporaryDirectory() as scratch:
            work = Path(scratch)
            SOURCES[name].write(work / "exported.onnx")
            for wanted in recipes:
                target = folder / f"{name}.{Path(wanted).stem}.onnx"
                try:
                    said = lower(name, load(Recipe, content.find("calib", wanted)), work, target, kernels=kernels)
                except GraphError as error:
                    target.unlink(missing_ok=True)
                    said = f"refused: {error.what}"
                print(f"{target.name}: {said}", flush=True)


def lower(name: str, recipe: Recipe, work: Path, target: Path, *, kernels: bool = False) -> str:
    """What `aot build` makes of work/exported.onnx by the recipe, without its weights; says what was quantized.

    kernels: also as `attention.write` does, beside `target`.
    Rewritten graphs and what was seen of their values are kept in `work` for the next recipe.
    """
    import onnx_ir as ir

    from aot.calibrator import choose, get
    from aot.config import QUANTIZED
    from aot.precision import apply
    from aot.stages.calibrate import needed
    from aot.stages.surgery import rewrite
    from aot.statistics import Statistics

    quantized = recipe.precision in QUANTIZED
    rewritten = work / ("quantized" if quantized else "wide")
    if not rewritten.exists():
        rewritten.mkdir()
        rewrite(work / "exported.onnx", rewritten, narrow=True, quantized=quantized)
    seen = rewritten / needed(recipe).name
    if not seen.exists():
        seen.mkdir()
        observed(rewritten / "model.onnx", name, recipe).save(seen)
    statistics = Statistics.load(seen)
    calibrator = get(recipe.calibrator).of(recipe) if quantized else get("max")()
    model = ir.load(rewritten / "model.onnx")
    outcome = apply(model, recipe, choose(calibrator, statistics), statistics)
    ir.save(model, work / "final.onnx", external_data="final.onnx.data")
    strip(work / "final.onnx", target)
    form = ""
    if kernels:
        form = "; " + attention.write(work / "final.onnx", target.with_stem(target.stem + attention.SUFFIX))
    (work / "final.onnx.data").unlink()
    ops = ", ".join(f"{count} {op}" for op, count in outcome.ops.items()) or "nothing"
    return f"{outcome.nodes} nodes, quantized: {ops}{form}"


def observed(graph: Path, name: str, recipe: Recipe) -> Statistics:
    """What the recipe needs to know of the graph's values, from random inputs: what stays FP32, and scales."""
    from surgery.models import MODELS as SOURCES

    from aot.batches import generated
    from aot.declaration import ModelSpec
    from aot.observing import watch
    from aot.stages.calibrate import needed

    spec = ModelSpec(name, SOURCES[name].inputs)
    batches = (generated(spec, {"batch": 2, "seq": 128}, seed) for seed in range(2))
    return watch(graph, enumerate(batches), needed(recipe), lambda number: None)
