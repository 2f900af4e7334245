"""Quantized files against the original: `python -m calibration.judging MODEL FOLDER FILE...` prints a JSON object.

wanted: the figure of the model in FP32. found: for each file its `layers` and either `reason`, why there is no number,
or cosine (the least over outputs), relative_l2 (the largest) and the figure, over all held-out batches. Every file runs
on onnxruntime's CPU provider with Q/DQ executed as written, and FP16 rounded after every op (`aot/backends`).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from aot import backend
from aot.compare import measure
from aot.declaration import ModelSpec
from aot.errors import AotError
from calibration.layers import layers_of
from calibration.models import MODELS, batches_of

Outputs = Mapping[str, Any]
NUMBERS = ("cosine", "relative_l2", "figure")


def main(name: str, folder: Path, files: Sequence[Path]) -> dict[str, Any]:
    """Judge each of `files`."""
    model, batches = MODELS[name], batches_of(folder / "heldout")
    original = opened(folder / "model.onnx")
    wanted = [original(batch) for batch in batches]
    figure = model.figure.of(original, batches, wanted) if model.figure is not None else None
    found = []
    for file in files:
        row: dict[str, Any] = {**layers_of(file).to_json(), **dict.fromkeys(NUMBERS), "reason": None}
        try:
            run = opened(file)
            row |= compared(wanted, [run(batch) for batch in batches])
            row["figure"] = model.figure.of(run, batches, wanted) if model.figure is not None else None
        except AotError as error:
            row["reason"] = f"does not run: {error.what}"
        found.append(row)
    return {"wanted": figure, "found": found}


def opened(file: Path) -> Any:
    """A session of an ONNX file: inputs by name to outputs by name."""
    return backend.get("onnxruntime").open(file, ModelSpec("model", {}), ())


def compared(wanted: Sequence[Outputs], got: Sequence[Outputs]) -> dict[str, float]:
    """The least cosine and the largest relative L2 over outputs, each flattened over all batches."""
    found = []
    for index, name in enumerate(wanted[0]):
        # By place: a tool may name its outputs anew.
        one, other = (
            [list(outputs.values())[index].astype(np.float64).ravel() for outputs in side] for side in (wanted, got)
        )
        found.append(measure(np.concatenate(one), np.concatenate(other)))
        if found[-1].nonfinite["mismatched"]:
            return {"cosine": 0.0, "relative_l2": float("inf")}
        assert found[-1].cosine is not None, name
    return {
        "cosine": min(metrics.cosine or 0.0 for metrics in found),
        "relative_l2": max(metrics.relative_l2 or 0.0 for metrics in found),
    }


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], Path(sys.argv[2]), [Path(file) for file in sys.argv[3:]])))
