"""Small artifacts to serve."""

from __future__ import annotations

from pathlib import Path

from tests.runtime import artifacts

BATCH = {"batch": [1, 2, 4]}
DTYPES = {
    "bool": "bool",
    **{f"{kind}{size}": f"{kind}{size}" for kind in ("int", "uint") for size in (8, 16, 32, 64)},
    "float16": "float16",
    "bfloat16": "bfloat16",
    "float32": "float",
    "float64": "double",
}
"""What onnx's text calls each dtype."""


def every_dtype(folder: Path) -> Path:
    """One input `in_DTYPE` [batch, 2] of each dtype, and `out_DTYPE` equal to it."""
    takes = ", ".join(f"{onnx}[batch, 2] in_{name}" for name, onnx in DTYPES.items())
    gives = ", ".join(f"{onnx}[batch, 2] out_{name}" for name, onnx in DTYPES.items())
    nodes = " ".join(f"out_{name} = Identity(in_{name})" for name in DTYPES)
    return artifacts.write(
        folder,
        f'<ir_version: 10, opset_import: ["": 20]> dtypes ({takes}) => ({gives}) {{ {nodes} }}',
        inputs={f"in_{name}": (name, ["batch", 2]) for name in DTYPES},
        outputs={f"out_{name}": (name, ["batch", 2]) for name in DTYPES},
        profiles=[BATCH],
    )


def slow(folder: Path, steps: int = 20_000) -> Path:
    """y = x, x [batch, 3], after an even number of steps that take a few microseconds each."""
    return artifacts.write(
        folder,
        f"""<ir_version: 10, opset_import: ["": 20]>
        slow (float[batch, 3] x) => (float[batch, 3] y) <int64 steps = {{{steps}}}, bool on = {{1}}> {{
            y = Loop (steps, on, x) <body = step (int64 i, bool go, float[batch, 3] s) => (bool on_, float[batch, 3] t)
            {{ on_ = Identity(go) t = Neg(s) }}>
        }}""",
        inputs={"x": ("float32", ["batch", 3])},
        outputs={"y": ("float32", ["batch", 3])},
        profiles=[BATCH],
    )


def lookup(folder: Path) -> Path:
    """y = table[x], x int64 [batch, n]: an index above 3 breaks the call."""
    return artifacts.write(
        folder,
        """<ir_version: 10, opset_import: ["": 20]>
        lookup (int64[batch, n] x) => (float[batch, n] y) <float[4] table = {0.0, 10.0, 20.0, 30.0}>
        { y = Gather(table, x) }""",
        inputs={"x": ("int64", ["batch", "n"])},
        outputs={"y": ("float32", ["batch", "n"])},
        profiles=[{"batch": [1, 2, 8], "n": [1, 2, 5]}],
    )
