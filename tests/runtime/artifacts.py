"""Small artifacts written by hand: the part of a manifest that a runtime reads, and the files beside it."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

WEIGHT = np.array([[1.0, -2.0], [0.5, 3.0], [2.0, 0.25]], np.float32)
LINEAR = f"""<ir_version: 10, opset_import: ["": 20]>
linear (float[batch, 3] x) => (float[batch, 2] y)
<float[3, 2] w = {{{", ".join(str(float(v)) for v in WEIGHT.ravel())}}}> {{ y = MatMul(x, w) }}"""
COUNTER = """<ir_version: 10, opset_import: ["": 20]>
counter (float[batch, 3] x, float[batch, 3] state_sum) => (float[batch, 3] y, float[batch, 3] state_sum_out)
<float two = {2.0}> { state_sum_out = Add(state_sum, x)  y = Mul(state_sum_out, two) }"""
"""A model that keeps the sum of its inputs and gives twice that."""
ZERO = np.float32(0)
DIMS = {"batch": [1, 2, 4]}
ENGINE = {"target": "sm90", "backend": "tensorrt", "version": "10.6.0"}


def rows(count: int, seed: int = 0) -> np.ndarray[Any, Any]:
    """That many rows of x."""
    return np.random.default_rng(seed).standard_normal((count, 3)).astype(np.float32)


def linear(folder: Path, *, profiles: Sequence[Any] = (DIMS,), engines: Sequence[Any] = (), **more: Any) -> Path:
    """y = x W, x [batch, 3]."""
    return write(
        folder,
        LINEAR,
        inputs={"x": ("float32", ["batch", 3])},
        outputs={"y": ("float32", ["batch", 2])},
        profiles=profiles,
        engines=engines,
        **more,
    )


def counter(folder: Path, *, initial: Any = ZERO, **more: Any) -> Path:
    """See COUNTER. initial: one value for all of the state, or all of it."""
    state = {"path": "sum", "output": "state_sum_out", "initial": base64.b64encode(initial.tobytes()).decode()}
    tensor = ("float32", ["batch", 3])
    return write(
        folder,
        COUNTER,
        inputs={"x": tensor, "state_sum": tensor},
        outputs={"y": tensor, "state_sum_out": tensor},
        profiles=(DIMS,),
        states={"state_sum": state},
        **more,
    )


def write(
    folder: Path,
    graph: str | None,
    inputs: Mapping[str, tuple[str, list[Any]]],
    outputs: Mapping[str, tuple[str, list[Any]]],
    profiles: Sequence[Mapping[str, Sequence[int]]],
    engines: Sequence[Mapping[str, Any]] = (),
    states: Mapping[str, Any] | None = None,
    multiples: Mapping[str, int] | None = None,
    precision: str = "fp32",
    plan: bytes = b"plan",
) -> Path:
    """An artifact of an ONNX model in text form, None for one without, and of engines, each with these bytes."""
    dims = {
        dim: [min(p[dim][0] for p in profiles), profiles[0][dim][1], max(p[dim][2] for p in profiles)]
        + [multiple for name, multiple in (multiples or {}).items() if name == dim]
        for dim in profiles[0]
    }
    if graph is not None:
        (folder / "graph").mkdir(parents=True)
        onnx.save(onnx.parser.parse_model(graph), str(folder / "graph/model.onnx"))
    (folder / "engines").mkdir(parents=True)
    facts = [{"file": f"{one['target']}.plan", **one} for one in engines]
    for one in facts:
        (folder / "engines" / one["file"]).write_bytes(plan)
    manifest = {
        "schema_version": 1,
        "name": "tiny",
        "spec": {
            "dims": dims,
            "inputs": {n: {"dtype": d, "shape": s, "low": None, "high": None} for n, (d, s) in inputs.items()},
            "states": states or {},
        },
        "plan": {"precision": precision, "profiles": [{d: list(t) for d, t in p.items()} for p in profiles]},
        "io": {"inputs": [], "outputs": [{"name": n, "dtype": d, "shape": s} for n, (d, s) in outputs.items()]},
        "engines": [{"engine": {"facts": one}} for one in facts],
        "files": listed(folder),
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def listed(folder: Path) -> dict[str, Any]:
    """The size and SHA-256 of every file."""
    return {
        str(path.relative_to(folder)): {
            "bytes": path.stat().st_size,
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        }
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
