"""Rewritten files against the original: `python -m surgery.difference MODEL ORIGINAL FILE...` prints a JSON object.

differences: of each file, the largest of any output, relative to the largest magnitude of that output, on
onnxruntime's CPU provider with its own rewrites off, at two sizes of every Dim; or a text on why there is none.
noise: the same of the original with itself, its inputs moved by up to two units in the last place.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from aot.batches import generated
from aot.declaration import ModelSpec
from surgery.models import MODELS

Outputs = dict[str, Any]


def main(name: str, original: Path, files: list[Path]) -> dict[str, Any]:
    """Compare each of `files`."""
    model = MODELS[name]
    spec = ModelSpec("surgery", model.inputs)
    feeds = []
    for seed in (0, 1):
        sizes = {name: dim.bounds[seed] for name, dim in spec.dims.items()}
        feed = generated(spec, sizes, seed)
        feeds.append(feed | {name: make(feed[name].shape) for name, make in model.samples.items()})
    wanted = outputs(original, feeds)
    moved = outputs(original, [{name: _moved(values) for name, values in feed.items()} for feed in feeds])
    return {"differences": [_compared(wanted, file, feeds) for file in files], "noise": _largest(wanted, moved)}


def outputs(file: Path, feeds: list[dict[str, Any]]) -> list[Outputs]:
    """The outputs by name for each of the feeds, of which inputs that the file does not have are left out."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    inputs, names = [i.name for i in session.get_inputs()], [o.name for o in session.get_outputs()]
    return [dict(zip(names, session.run(names, {i: feed[i] for i in inputs}), strict=True)) for feed in feeds]


def relative(wanted: Any, got: Any) -> float:
    """The largest difference over the largest magnitude; infinite where shape, dtype or what is not finite differs."""
    if wanted.shape != got.shape or wanted.dtype != got.dtype:
        return float("inf")
    if not wanted.size:
        return 0.0
    finite = np.isfinite(wanted) & np.isfinite(got)
    if not np.array_equal(wanted[~finite], got[~finite], equal_nan=wanted.dtype.kind == "f"):
        return float("inf")
    a, b = (np.where(finite, values, 0).astype(np.float64) for values in (wanted, got))
    difference = float(np.abs(a - b).max())
    return difference / float(np.abs(a).max()) if difference and a.any() else difference


def _compared(wanted: list[Outputs], file: Path, feeds: list[dict[str, Any]]) -> float | str:
    try:
        got = outputs(file, feeds)
    except Exception as error:  # noqa: BLE001 - onnxruntime's errors have no other base; a file that does not run is a result
        return f"does not run: {str(error).splitlines()[0]}"
    if any(a.keys() != b.keys() for a, b in zip(wanted, got, strict=True)):
        return f"its outputs are {', '.join(got[0])}"
    return _largest(wanted, got)


def _largest(wanted: list[Outputs], got: list[Outputs]) -> float:
    return max(relative(a[name], b[name]) for a, b in zip(wanted, got, strict=True) for name in a)


def _moved(values: Any) -> Any:
    if values.dtype.kind != "f":
        return values
    steps = np.random.default_rng(0).uniform(-2, 2, values.shape) * np.finfo(values.dtype).eps
    return (values * (1 + steps)).astype(values.dtype)


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], Path(sys.argv[2]), [Path(file) for file in sys.argv[3:]])))
