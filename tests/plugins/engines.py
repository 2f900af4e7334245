"""Functions of plugins in the place of their nodes, in an engine of TensorRT-RTX, which launches no kernels of ours."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import onnx_ir as ir

from aot.declaration import Dim, ModelSpec
from aot.plugins.expanding import expanded
from tests.precision.rtx import build


def built(model: Path, spec: ModelSpec, ops: Collection[str], folder: Path) -> bytes:
    """The engine, for the whole range of every Dim; what the builder says otherwise is in the failure."""
    sizes = {
        name: [tuple(axis.bounds[end] if isinstance(axis, Dim) else axis for axis in one.shape) for end in range(3)]
        for name, one in spec.inputs.items()
    }
    with expanded(model, ops, folder) as path:
        # Weights in memory: the parser is given no folder to look for them in.
        return build(ir.external_data.load_to_model(ir.load(path)), sizes)
