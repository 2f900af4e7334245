"""A benchmark's rows, sorted for reading: by size, by contender."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]

TOOLS = {
    "aot": "aot",
    "eager": "eager PyTorch",
    "compile-default": "torch.compile",
    "compile-reduce-overhead": "torch.compile reduce-overhead",
    "compile-max-autotune": "torch.compile max-autotune",
    "onnxruntime-cpu": "onnxruntime CPU",
    "onnxruntime-cuda": "onnxruntime CUDA",
    "onnxruntime-tensorrt": "onnxruntime TensorRT",
    "torch-tensorrt": "Torch-TensorRT",
}


def rows_of(data: Mapping[str, Any]) -> list[Row]:
    """The rows of a report's benchmark; none where it has no benchmark."""
    return list((data.get("bench") or {}).get("rows") or ())


def measured(rows: Sequence[Row]) -> list[Row]:
    """Those with a latency."""
    return [row for row in rows if row.get("p50_ms") is not None]


def contender(row: Row) -> str:
    """`torch.compile max-autotune, fp16`; of several artifacts each by its own name: `aot small, fp16`."""
    tool = str(row["tool"])
    name = str(row.get("name") or tool)
    shown = TOOLS.get(tool, tool) if name == tool else name
    return f"{shown}, {row['precision']}" if row.get("precision") else shown


def contenders(rows: Sequence[Row]) -> list[str]:
    """Each once, aot before the others, else in the order of the rows."""
    names = list(dict.fromkeys(map(contender, rows)))
    ours = {contender(row) for row in rows if row["tool"] == "aot"}
    return sorted(names, key=lambda name: name not in ours)


def by_size(rows: Sequence[Row]) -> list[tuple[dict[str, int], list[Row]]]:
    """The rows of each size, in the order in which sizes first come."""
    found: dict[tuple[tuple[str, int], ...], list[Row]] = {}
    for row in rows:
        found.setdefault(tuple((row.get("sizes") or {}).items()), []).append(row)
    return [(dict(size), group) for size, group in found.items()]


def best(rows: Sequence[Row], *, ours: bool) -> Row | None:
    """The fastest of aot's, or of the others'; None where none was measured."""
    able = [row for row in measured(rows) if (row["tool"] == "aot") is ours]
    return min(able, key=lambda row: float(row["p50_ms"]), default=None)
