"""The kept rows, and the table made of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from _result import ROOT

Row = dict[str, Any]


def key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """What a row is about: model, batch, length, precision."""
    return (row["model"], row["batch"], row.get("length"), row["precision"])


def kept(name: str) -> list[Row]:
    """The rows of `benchmarks/results/NAME.json`; none where there is no such file."""
    path = ROOT / "benchmarks/results" / f"{name}.json"
    return list(json.loads(path.read_text())["rows"]) if path.is_file() else []


def text(rows: Sequence[Row]) -> str:
    """One line a size: milliseconds in each precision with what it is faster than FP16 by, kernels, what went wrong."""
    precisions = list(dict.fromkeys(row["precision"] for row in rows))
    lines = ["| model | " + " | ".join(f"{p}, ms" for p in precisions) + " | narrow kernels | Q/DQ alone | reformats |"]
    lines.append("|---|" + "---|" * (len(precisions) + 3))
    sizes: dict[tuple[Any, ...], dict[str, Row]] = {}
    for row in rows:
        sizes.setdefault(key(row)[:3], {})[row["precision"]] = row
    for (model, batch, length), found in sizes.items():
        base = found.get("fp16", {}).get("ms")
        cells = [_time(found.get(p), base) for p in precisions]
        narrow = [row for row in found.values() if row.get("quantized")]
        cells.append(
            ", ".join(f"{r['precision']} {r['quantized'] - len(r['wide'])} of {r['quantized']}" for r in narrow)
        )
        cells.append(", ".join(f"{r['precision']} {len(r['qdq_layers'])}" for r in narrow))
        cells.append(", ".join(f"{p} {len(row['reformats'])}" for p, row in found.items() if "reformats" in row))
        label = f"{model}, {batch}" + ("" if length is None else f" x {length}")
        lines.append(f"| {label} | " + " | ".join(cell or "-" for cell in cells) + " |")
    failed = [f"- {_label(row)}: {row['reason']}" for row in rows if "reason" in row]
    return "\n".join([*lines, *(["", "What did not build or run:", "", *failed] if failed else [])])


def _time(row: Row | None, base: float | None) -> str:
    if row is None or "ms" not in row:
        return "-" if row is None or row.get("built") else "not built"
    return f"{row['ms']:.3f}" + (f" ({base / row['ms']:.2f}x)" if base and row["precision"] != "fp16" else "")


def _label(row: Row) -> str:
    sizes = f"{row['batch']}" + (f" x {row['length']}" if row.get("length") else "")
    return f"{row['model']} {sizes} {row['precision']}"
