"""What calibration would see of a graph, and the graph's outputs; both by onnxruntime."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from aot.precision.formats import INT8
from aot.precision.weights.seen import Seen
from aot.readings import readings_of
from aot.statistics import Level, Reading, Statistics
from tests.precision.graphs import FP32, Array, Feeds, session


def statistics(model: ir.Model, batches: Sequence[Feeds], level: Level = Level.PRODUCTS) -> Statistics:
    """Of every float value, those that layers read at that level."""
    watched = model.clone()
    names = {o.name for o in watched.graph.outputs}
    floats = [v for n in watched.graph for v in n.outputs if v.dtype == FP32 and v.name not in names]
    watched.graph.outputs.extend(floats)
    readings = readings_of(model.graph)
    run = session(watched)
    found = Statistics()
    for feeds in batches:
        made = run.run(None, feeds)
        values = {**feeds, **dict(zip([o.name for o in run.get_outputs()], made, strict=True))}
        for name, array in values.items():
            if array.dtype == np.float32:
                reading = readings.get(name, Reading())
                found.observe(name, array, level if reading.axis is not None else Level.EXTREMES, reading)
    return found


def seen_by(model: ir.Model, batches: Sequence[Feeds]) -> Seen:
    """The statistics with the largest magnitudes as ranges."""
    found = statistics(model, batches)
    return Seen(found, found.amax(), None, INT8)


def outputs(model: ir.Model, feeds: Feeds) -> list[Array]:
    """In the order of the graph."""
    return [np.asarray(array) for array in session(model).run(None, feeds)]


def relative(reference: Array, got: Array) -> float:
    """||got - reference|| / ||reference||."""
    return float(np.linalg.norm(got.astype(np.float64) - reference) / np.linalg.norm(reference))
