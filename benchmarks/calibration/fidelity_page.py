"""Fidelity for people: a table for each precision, and in words where a peer is closer or a floor is missed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from calibration.page import by_model, listed, reasons, replace
from calibration.tools import JUDGED

MARKS = "<!-- calib-fidelity: written by fidelity.py -->", "<!-- /calib-fidelity -->"
FLOORS = {
    ("minilm", "int8"): (0.99, 12),
    ("mobilenet", "int8"): (0.98, 4),
    ("minilm", "fp8"): (0.995, 12),
    ("mobilenet", "fp8"): (0.995, 20),
}
"""The least cosine of aot's best recipe with at most so many wide layers."""
SAME = 1e-4
"""Differences of a cosine that are no difference: a value on the edge between two steps."""

Row = Mapping[str, Any]


def line(row: Row) -> str:
    """One row in one line."""
    said = f"{row['model']:16} {row['tool']:22}"
    if row["cosine"] is not None:
        said += f" cosine {row['cosine']:.6f}  L2 {row['relative_l2']:.5f}  {row['quantized']} + {row['wide']} layers"
        if row["figure"] is not None:
            said += f"  {row['figure_name']} {row['figure']:.4f}"
    return said + (f"  {row['reason'][:300]}" if row["reason"] else "")


def text(rows: Sequence[Row]) -> str:
    """The tables and the misses, in Markdown."""
    lines = []
    for precision in ("int8", "fp8"):
        lines += [f"{precision.upper()}: cosine · relative L2 · the model's own figure · quantized + wide layers", ""]
        lines += [*_table(rows, precision), ""]
    said = {row["model"]: row for row in rows if row["figure"] is not None}
    figures = "; ".join(f"{model}: {row['figure_name']}, {row['wanted']:.3f} in FP32" for model, row in said.items())
    lines += [f"The figures: {figures}."] if figures else []
    lines += listed("Where a goal is missed:", misses(rows))
    lines += listed("What gave no result, and why:", reasons(rows))
    return "\n".join(lines)


def misses(rows: Sequence[Row]) -> list[str]:
    """Where a peer's cosine is higher than that of all recipes of aot with as few wide layers, or none has as few; a
    floor missed."""
    found = []
    for model, of in by_model(rows).items():
        for precision in ("int8", "fp8"):
            measured = {
                t: row for t, row in of.items() if JUDGED[t].precision == precision and row["cosine"] is not None
            }
            ours = [row for tool, row in measured.items() if tool.startswith("aot-")]
            if not ours:
                if any(tool.startswith("aot-") and JUDGED[tool].precision == precision for tool in of):
                    found.append(f"{model}, {precision}: no result")
                continue
            if (model, precision) in FLOORS:
                floor, most = FLOORS[model, precision]
                best = max((row["cosine"] for row in ours if row["wide"] <= most), default=0.0)
                if best < floor:
                    found.append(
                        f"{model}, {precision}: cosine {best:.5f} with {most} wide layers at most, the goal is {floor}"
                    )
            for tool, peer in measured.items():
                if tool.startswith("aot-"):
                    continue
                rivals = [row for row in ours if row["wide"] <= peer["wide"]]
                rival = max(rivals, key=lambda row: row["cosine"], default=None)
                if rival is None:
                    least = min(row["wide"] for row in ours)
                    found.append(f"{model}, {precision}: {least} wide layers at least, {tool} has {peer['wide']}")
                elif peer["cosine"] > rival["cosine"] + SAME:
                    found.append(_behind(model, precision, rival, peer))
    return found


def update(readme: Path, rows: Sequence[Row]) -> None:
    """Write the tables between the marks of the page."""
    replace(readme, MARKS, text(rows))


def _behind(model: str, precision: str, best: Row, peer: Row) -> str:
    return (
        f"{model}, {precision}: cosine {best['cosine']:.5f} ({best['wide']} wide) with {best['tool']}, "
        f"{peer['tool']} has {peer['cosine']:.5f} ({peer['wide']} wide)"
    )


def _table(rows: Sequence[Row], precision: str) -> list[str]:
    tools = [name for name, tool in JUDGED.items() if tool.precision == precision]
    lines = [f"| model | {' | '.join(tools)} |", f"|---|{'---|' * len(tools)}"]
    for model, of in by_model(rows).items():
        cells = [_cell(of[tool]) if tool in of else "" for tool in tools]
        lines.append(f"| {model} | {' | '.join(cells)} |")
    return lines


def _cell(row: Row) -> str:
    if row["cosine"] is None:
        return "-"
    own = f" · {row['figure']:.3f}" if row["figure"] is not None else ""
    return f"{row['cosine']:.5f} · {row['relative_l2']:.3f}{own} · {row['quantized']} + {row['wide']}"
