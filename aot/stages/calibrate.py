"""Calibration: what the graph's values are on real data, and the ranges chosen from that."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aot.config import QUANTIZED
from aot.records import Data, Graph, Ranges, Record
from aot.run import Run
from aot.statistics import Level

if TYPE_CHECKING:
    from aot.config import Recipe
    from aot.plan import Plan
    from aot.progress import Progress
    from aot.statistics import Statistics

TOOLS = ("onnxruntime", "numpy")


def calibrate(run: Run, graph: Graph, data: Data, plan: Plan, workers: int = 1) -> Ranges:
    """Run the FP32 graph over the calibration batches, observe every float value in it, and choose ranges.

    All of them, since which ones are quantized and which need FP32 is decided later: changing that decision
    calibrates nothing anew, nor does another calibrator where as much was seen as it needs. An FP32 build observes
    nothing. workers: processes that share the batches.

    Raises UsageError for a calibrator that does not exist, and CalibrationError where a value is NaN or infinite or
    where there is no batch.
    """
    from aot.calibrator import get

    if plan.precision == "fp32":
        return uncalibrated(run, graph)
    kind = get(plan.recipe.calibrator)
    calibrator = kind.of(plan.recipe) if plan.precision in QUANTIZED else get("max")()
    batches = len(data.facts["calibration"])
    seen = _observed(run, graph, data, needed(plan.recipe), workers)

    def make(folder: Path) -> Mapping[str, Any]:
        from aot.calibrator import applies, choose
        from aot.statistics import Statistics

        statistics = Statistics.load(seen.path)
        chosen = choose(calibrator, statistics)
        ranges = {
            name: {
                "amax": amax,
                "low": (tensor := statistics[name]).low,
                "high": tensor.high,
                "calibrator": calibrator.name if applies(calibrator, tensor) else "max",
            }
            for name, amax in chosen.items()
        }
        _write(folder, ranges)
        return {"tensors": len(ranges), "batches": batches, "calibrator": calibrator.name}

    ranges = run.stage(
        Ranges,
        "calibrate",
        make,
        config=calibrator.settings(),
        inputs=[graph, data],
        tools=TOOLS,
        detail=calibrator.name,
    )
    return replace(ranges, observed=seen)


def needed(recipe: Recipe) -> Level:
    """How closely the recipe wants the values that layers read to be observed."""
    from aot.calibrator import get

    if recipe.precision not in QUANTIZED:
        return Level.EXTREMES
    # Weights alone need no ranges of activations.
    level = get(recipe.calibrator).needs if recipe.activations else Level.EXTREMES
    if recipe.weights.smooth is not None or recipe.weights.equalize or recipe.weights.bias_correction:
        level = max(level, Level.CHANNELS)
    if recipe.weights.rounding == "adaptive":
        level = max(level, Level.PRODUCTS)
    return level


def uncalibrated(run: Run, graph: Record) -> Ranges:
    """The ranges of what needs none."""
    return run.stage(Ranges, "calibrate", _nothing, config={"values": "none"}, inputs=[graph])


def _observed(run: Run, graph: Graph, data: Data, level: Level, workers: int) -> Record:
    """What was seen of the graph's values on the data, at that level or, where the store has it, a higher one."""
    batches = len(data.facts["calibration"])
    levels = [{"values": "floats", "level": step.name.lower()} for step in Level if step >= level]
    config = next((c for c in levels if run.holds("observe", config=c, inputs=[graph, data], tools=TOOLS)), levels[0])

    def make(folder: Path) -> Mapping[str, Any]:
        import aot

        statistics = observe(graph.model, data, level, run.progress, workers=workers)
        statistics.provenance = {
            "graph": graph.key,
            "data": data.key,
            "aot": aot.__version__,
            "level": level.name.lower(),
            "batches": batches,
        }
        statistics.save(folder)
        return {"tensors": len(statistics), "batches": batches, "level": level.name.lower()}

    return run.stage(
        Record,
        "observe",
        make,
        config=config,
        inputs=[graph, data],
        tools=TOOLS,
        detail=f"{batches} batches",
    )


def observe(
    model: Path, data: Data, level: Level, progress: Progress, *, workers: int = 1, memory: int | None = None
) -> Statistics:
    """What every float value of the ONNX file is on every calibration batch; those that layers read at `level`.

    workers: processes that share the batches, at most one a batch and a core; what they find is the same. memory: bytes
    of observed values that each holds at a time, about. Raises CalibrationError where a value is NaN or infinite or
    where there is no batch.
    """
    from aot.errors import CalibrationError
    from aot.observing import MEMORY, watch

    total = len(data.facts["calibration"])
    if not total:
        raise CalibrationError(
            "there is no calibration batch",
            where="calibration data",
            fix="let the function under @model.calibration yield at least one batch",
        )
    cores = os.cpu_count() or 1
    processes = min(workers, total, cores)
    if processes < workers:
        progress.warn(f"--workers {workers}: {processes} at work, for {total} batches on {cores} cores")
    if processes > 1:
        from aot.observing_workers import share

        files = [data.path / name for name in data.facts["calibration"]]
        return share(
            model, files, level, processes, lambda count: progress.step(count, total, "batches"), memory or MEMORY
        )
    return watch(
        model,
        enumerate(data.calibration()),
        level,
        lambda number: progress.step(number + 1, total, "batches"),
        memory or MEMORY,
    )


def _nothing(folder: Path) -> Mapping[str, Any]:
    _write(folder, {})
    return {"tensors": 0, "batches": 0, "calibrator": None}


def _write(folder: Path, ranges: Mapping[str, Mapping[str, Any]]) -> None:
    (folder / "ranges.json").write_text(json.dumps(ranges, indent=1, sort_keys=True) + "\n")
