"""`aot quantize`: an ONNX file becomes one with Q/DQ, or in FP16 or BF16, calibrated on the user's data."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aot import model_file
from aot.config import QUANTIZED, Budget, Recipe
from aot.declaration import ModelSpec
from aot.errors import CalibrationError, GraphError, UsageError
from aot.model_file import Stated, ends
from aot.progress import Progress, Silent
from aot.records import MODEL, Data
from aot.store import Entry

if TYPE_CHECKING:
    import onnx_ir as ir

    from aot.arrays import Arrays
    from aot.precision import Outcome
    from aot.profile import Triple

_TAKES = "aot quantize takes an .onnx file; aot build takes model.py, x.pt2, x.onnx and prepared artifacts"
_ANY = 2**31 - 1
"""The largest size that a dim of the data may have."""
_INTEGER = ("ConvInteger", "DynamicQuantizeLinear", "DequantizeLinear", "MatMulInteger", "QuantizeLinear")


@dataclass(frozen=True)
class Quantized:
    """What was made of a file. before, after: nodes of the main graph and its bodies.

    seconds: all of it. calibration_seconds: of running the graph on the data and choosing ranges. batches, heldout:
    how many ranges were taken from, and how many the result was compared on. compared: the worst cosine, relative_l2
    and max_abs over outputs and held-out batches, each None where nothing was compared. left: files of weights
    that nothing at the target reads any more.
    """

    before: int
    after: int
    seconds: float
    calibration_seconds: float
    calibrator: str
    batches: int
    heldout: int
    generated: bool
    outcome: Outcome
    compared: Mapping[str, float | None]
    left: tuple[Path, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain data; `decisions` has an entry for every node of the graph before Q/DQ was placed."""
        facts = self.outcome.facts("")
        return {
            "nodes": {"before": self.before, "after": self.after},
            "seconds": round(self.seconds, 3),
            "calibration": {
                "calibrator": self.calibrator,
                "batches": self.batches,
                "heldout": self.heldout,
                "generated": self.generated,
                "seconds": round(self.calibration_seconds, 3),
            },
            "quantized": {"ops": facts["ops"], "qdq": facts["qdq"]},
            **{name: self.compared.get(name) for name in ("max_abs", "relative_l2", "cosine")},
            "weights": facts["weights"],
            "decisions": facts["decisions"],
            "warnings": facts["warnings"],
        }


def quantize_file(
    source: Path,
    target: Path,
    recipe: Recipe,
    *,
    data: str | None = None,
    dims: Mapping[str, Triple] | None = None,
    workers: int = 1,
    optimize: bool = True,
    compare: bool = True,
    progress: Progress | None = None,
) -> Quantized:
    """Write `source`, in the precision of `recipe`, as `target`; both may be the same file.

    data: as `aot.quantize_data.read` takes it; None: generated inputs, whose dynamic dims `dims` bounds. workers:
    processes that share the calibration batches. optimize: the passes of `aot.passes` first, since placement knows
    layers and attention in the form that they make. compare: every fourth batch is held out, and the result compared
    with `source` on it; else all batches are calibrated on.
    Inputs, outputs and metadata stay; an opset before 20 is raised to it. For how the file is written see
    `aot.optimize_file.optimize_file`.

    Raises UsageError for a place that cannot be written or a recipe that quantizes nothing, GraphError for a file that
    is no whole and valid ONNX model, is quantized already, cannot be or has no layers, and CalibrationError for data
    that do not fit.
    """
    import onnx_ir as ir

    from aot import quantize_data
    from aot.batches import refuse_huge
    from aot.stages.collect import generated

    progress = progress or Silent()
    started = time.perf_counter()
    if recipe.precision == "fp32":
        raise UsageError("fp32 quantizes nothing", where="--precision fp32", fix="int8, fp8, int4, fp16 or bf16")
    model_file.check_source(source, _TAKES)
    model_file.check_place(source, target)
    progress.stage("load")
    model, stated = _load(source)
    before, external = _count(model), model_file.is_external(model)
    spec = _spec(model, source, data is not None, dims or {})
    given = generated(spec) if data is None else quantize_data.read(data, spec)
    if data is None:
        refuse_huge(spec)
        progress.warn("no data is given: ranges come from generated inputs and may not fit real ones; give --data")
    with model_file.workplace(target) as folder:
        batches = _collected(folder, spec, given, compare, progress)
        if optimize:
            _optimize(model, recipe, progress)
        _refuse_nothing(model, recipe, source)
        graph = folder / MODEL
        ir.save(model, graph, external_data=f"{MODEL}.data")
        outcome, spent = _quantized(model, graph, batches, recipe, workers, progress)
        model_file.restore(model, stated)
        after = _count(model)
        left = model_file.left_behind(source, target)
        compared: dict[str, float | None] = {}
        judge = partial(_compare, source, spec=spec, data=batches, into=compared, progress=progress)
        progress.stage("write")
        model_file.write(model, target, external=external, judge=judge if compare else None)
    return Quantized(
        before=before,
        after=after,
        seconds=time.perf_counter() - started,
        calibration_seconds=spent,
        calibrator=recipe.calibrator if recipe.precision in QUANTIZED else "max",
        batches=len(batches.facts["calibration"]),
        heldout=len(batches.facts["heldout"]),
        generated=data is None,
        outcome=outcome,
        compared=compared,
        left=tuple(left),
    )


def _load(source: Path) -> tuple[ir.Model, list[Stated]]:
    """The model in opset 20 or later, its dtypes known; and what the file states of its inputs and outputs.

    Raises GraphError for one that is quantized already, or does not compute in FP32.
    """
    from aot import origins
    from aot.graph import infer_shapes
    from aot.graph.shapes import forget_wrong_shapes
    from aot.onnx_input import OPSET
    from aot.onnx_input.loading import load
    from aot.onnx_input.opsets import upgrade
    from aot.stages.surgery import check_weights

    model = load(source)
    stated = [Stated.of(value) for value in ends(model)]
    for node in model.graph.all_nodes():
        if node.op_type in _INTEGER or node.op_type.startswith("QLinear"):
            raise GraphError(
                "the model is quantized already",
                where=f"{origins.where_of(node)} in {source}",
                fix="quantize the model that it was made from; aot build takes a quantized file and makes it float",
            )
    check_weights(model)
    forget_wrong_shapes(model)
    infer_shapes(model)
    upgrade(model, OPSET, str(source))
    infer_shapes(model)
    _refuse_rounded(model, source)
    return model, stated


def _refuse_nothing(model: ir.Model, recipe: Recipe, source: Path) -> None:
    """Raise GraphError where there is no layer that the recipe could quantize, and UsageError where it names an op
    type that is none: before time is spent on calibration."""
    from aot.precision.patterns import check_op_types

    check_op_types(recipe.keep_fp32, model)
    layers = [node for node in model.graph if node.domain == "" and node.op_type in recipe.placement.ops]
    if recipe.precision in QUANTIZED and not layers:
        raise GraphError(
            f"there is nothing to quantize: the graph has no {', '.join(recipe.placement.ops)}",
            where=str(source),
            fix="--precision fp16 or bf16 narrows any graph",
        )


def _refuse_rounded(model: ir.Model, source: Path) -> None:
    """Raise GraphError where layers compute in a float type, and none in FP32; and for FP64 inputs and outputs."""
    import onnx_ir as ir

    from aot import origins
    from aot.config import Placement

    for value in ends(model):
        if value.dtype == ir.DataType.DOUBLE:
            raise GraphError(
                f"'{value.name}' is FP64, which neither INT8 nor FP8 kernels take",
                where=str(source),
                fix="export the model in FP32; aot build narrows FP64 by itself",
            )
    layers = [node for node in model.graph if node.domain == "" and node.op_type in Placement().ops]
    dtypes = {node.outputs[0].dtype for node in layers} - {None}
    if dtypes and ir.DataType.FLOAT not in dtypes:
        name = " and ".join(sorted(dtype.name for dtype in dtypes if dtype is not None))
        raise GraphError(
            f"the model computes in {name}, not in FP32: ranges and weights would be taken from rounded ones",
            where=f"{origins.where_of(layers[0])} in {source}",
            fix="quantize the FP32 model that it was made from",
        )


def _spec(model: ir.Model, source: Path, with_data: bool, asked: Mapping[str, Triple]) -> ModelSpec:
    """The inputs, whose dynamic dims get their names. Data may have any size; what is generated needs bounds."""
    import onnx_ir as ir

    from aot.declaration import Dim, Input
    from aot.sources.dims import Found, bounded, identifier, values
    from aot.sources.onnx_file import inputs_of

    tensors = inputs_of(model, source)
    axes = [size for tensor in tensors for size in tensor.shape if isinstance(size, Found)]
    ranges = values(asked, {t.name: t.dtype for t in tensors}, {axis.name for axis in axes})
    if with_data:
        axes = [Found(axis.name, axis.tensor, axis.axis, 0, _ANY) for axis in axes]
    try:
        dims = bounded(axes, {name: triple for name, triple in asked.items() if name not in ranges}, str(source))
    except UsageError as error:
        if with_data or error.fix is None or not error.fix.startswith("add --dim"):
            raise
        raise UsageError(error.what, where=error.where, fix=f"give --data, or {error.fix}") from error
    inputs = {}
    for tensor, value in zip(tensors, model.graph.inputs, strict=True):
        shape: list[int | Dim] = [dims[size.name] if isinstance(size, Found) else size for size in tensor.shape]
        inputs[tensor.name] = Input(shape, tensor.dtype, *ranges.get(tensor.name, (None, None)))
        value.shape = ir.Shape([size.name if isinstance(size, Dim) else size for size in shape])
    return ModelSpec(identifier(source.stem), inputs)


def _collected(folder: Path, spec: ModelSpec, given: Iterable[Arrays], compare: bool, progress: Progress) -> Data:
    """The batches on disk, every fourth held out where the result is to be compared. Raises CalibrationError."""
    from aot.stages.collect import spooled

    progress.stage("data")
    facts = spooled(folder, spec, given)
    if not facts["calibration"]:
        raise CalibrationError("there is no calibration batch", where="--data", fix="give at least one")
    if not compare:
        facts |= {"calibration": sorted(facts["calibration"] + facts["heldout"]), "heldout": []}
    elif not facts["heldout"]:
        progress.warn("one batch: nothing is held out, so the result is compared on what it was calibrated on")
    return Data(Entry("collect", "", folder, facts))


def _optimize(model: ir.Model, recipe: Recipe, progress: Progress) -> None:
    """The passes that a build in this precision runs, each looked at in a few places."""
    from aot.graph.check import Check
    from aot.optimize import optimize

    progress.stage("optimize")
    optimize(model, narrow=True, quantized=recipe.precision in QUANTIZED, check=Check())


def _quantized(
    model: ir.Model, graph: Path, data: Data, recipe: Recipe, workers: int, progress: Progress
) -> tuple[Outcome, float]:
    """Calibrate on the file `graph`, which is `model`, and change the model as the recipe says.

    Returns what was decided, and the seconds of calibration.
    """
    from aot.calibrator import choose, get
    from aot.precision import apply
    from aot.stages.calibrate import needed, observe

    calibrator = get(recipe.calibrator).of(recipe) if recipe.precision in QUANTIZED else get("max")()
    progress.stage("calibrate", f"{len(data.facts['calibration'])} batches")
    started = time.perf_counter()
    statistics = observe(graph, data, needed(recipe), progress, workers=workers)
    amax = choose(calibrator, statistics)
    spent = time.perf_counter() - started
    progress.stage("quantize")
    outcome = apply(model, recipe, amax, statistics)
    for warning in outcome.warnings:
        progress.warn(warning)
    return outcome, spent


def _compare(
    source: Path, written: Path, *, spec: ModelSpec, data: Data, into: dict[str, float | None], progress: Progress
) -> None:
    """Run both files on what was held out, and keep the worst numbers in `into`.

    Raises GraphError where the new file does not run, or holds NaN or infinity where the old one does not.
    """
    from aot import backend
    from aot.compare import compare, worst
    from aot.onnx_input.original import original

    progress.stage("compare")
    batches = list(data.facts["heldout"]) or list(data.facts["calibration"])
    rows = []
    before = original(source, spec)
    with backend.get("onnxruntime").open(written, spec, ()) as after:
        for number, batch in enumerate(data.heldout() if data.facts["heldout"] else data.calibration()):
            wanted = before(batch)
            verdict = compare(wanted, after(batch), Budget(), inputs=batch, names=("the original", "the new model"))
            if verdict.reasons:
                raise GraphError(
                    f"the quantized model fails on batch {batches[number]}: {verdict.reasons[0]}",
                    where=str(source),
                    fix="nothing was written; bf16 has the range of FP32, and a recipe's keep leaves nodes in FP32",
                )
            rows.append(verdict.worst())
            progress.step(number + 1, len(batches), "batches")
    into.update(worst(rows))


def _count(model: ir.Model) -> int:
    return sum(1 for _ in model.graph.all_nodes())
