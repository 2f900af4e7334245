"""Calibration: the ranges of the graph's values on real data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aot.records import Data, Graph, Ranges, Record
from aot.run import Run

if TYPE_CHECKING:
    from aot.calibrator import Calibrator
    from aot.plan import Plan
    from aot.progress import Progress

# Bytes of observed values held at a time.
MEMORY = 1 << 28


def calibrate(run: Run, graph: Graph, data: Data, plan: Plan) -> Ranges:
    """Run the FP32 graph over the calibration batches and observe every float value in it.

    All of them, since which ones are quantized and which need FP32 is decided later: changing that decision
    calibrates nothing anew. An FP32 build observes nothing.

    Raises UsageError for a calibrator that does not exist, and CalibrationError where a value is NaN or infinite or
    where there is no batch.
    """
    name = plan.recipe.calibrator
    if plan.precision == "fp32":
        return uncalibrated(run, graph)
    batches = len(data.facts["calibration"])

    def make(folder: Path) -> Mapping[str, Any]:
        from aot.calibrator import get

        calibrator = get(name)()
        ranges = observe(graph.model, data, calibrator, run.progress)
        _write(folder, {tensor: {"amax": amax, "calibrator": name} for tensor, amax in ranges.items()})
        return {"tensors": len(ranges), "batches": batches, "calibrator": name}

    return run.stage(
        Ranges,
        "calibrate",
        make,
        config={"values": "floats", "calibrator": name},
        inputs=[graph, data],
        tools=("onnxruntime", "numpy"),
        detail=f"{batches} batches",
    )


def uncalibrated(run: Run, graph: Record) -> Ranges:
    """The ranges of what needs none."""
    return run.stage(Ranges, "calibrate", _nothing, config={"values": "none"}, inputs=[graph])


def observe(
    model: Path, data: Data, calibrator: Calibrator, progress: Progress, memory: int = MEMORY
) -> dict[str, float]:
    """Let `calibrator` observe every float value of the ONNX file on every calibration batch; return amax by name.

    One batch is held at a time, cut so that its observed values take at most about `memory` bytes.
    """
    from aot.backends.onnxruntime_tap import Tap
    from aot.calibrator import NotFinite
    from aot.errors import CalibrationError
    from aot.observe import float_values

    observed = float_values(model)
    tap = Tap(model, observed.values)
    files = data.facts["calibration"]
    if not files:
        raise CalibrationError(
            "there is no calibration batch",
            where="calibration data",
            fix="let the function under @model.calibration yield at least one batch",
        )
    for number, batch in enumerate(data.calibration()):
        for part in observed.parts(batch, memory):
            values = tap(part)
            # In graph order: the first value that is not finite is where it began.
            for name in observed.values:
                try:
                    calibrator.observe(name, values[name])
                except NotFinite as error:
                    raise CalibrationError(
                        f"value '{name}' is NaN or infinite on calibration batch {number}",
                        where=observed.places[name],
                        fix="check the batch and the model in FP32 at this place: a range cannot be taken from it",
                    ) from error
            del values  # freed before the next run allocates its own
        progress.step(number + 1, len(files), "batches")
    ranges = calibrator.ranges()
    for name, source in observed.alias.items():
        if source in ranges:
            ranges[name] = ranges[source]
    return ranges


def _nothing(folder: Path) -> Mapping[str, Any]:
    _write(folder, {})
    return {"tensors": 0, "batches": 0, "calibrator": None}


def _write(folder: Path, ranges: Mapping[str, Mapping[str, Any]]) -> None:
    (folder / "ranges.json").write_text(json.dumps(ranges, indent=1, sort_keys=True) + "\n")
