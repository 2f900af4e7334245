"""Tiny ONNX graphs, written as text."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import parser
from onnx.numpy_helper import from_array


def write(path: Path, text: str, *, opset: int = 20, **weights: np.ndarray) -> Path:
    """Write the graph `text` (without its header) with `weights` as initializers; nodes are named n0, n1, ..."""
    model = parser.parse_model(f'<ir_version: 10, opset_import: ["" : {opset}, "own" : 1]>\n' + text)
    for index, node in enumerate(model.graph.node):
        node.name = f"n{index}"
    model.graph.initializer.extend(from_array(array, name) for name, array in weights.items())
    onnx.save(model, str(path))
    return path
