"""Time and memory for people: two tables, and in words where aot misses its goals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from calibration.tools import HISTOGRAMS, TIMED

MARKS = "<!-- calibration: written by calibration.py -->", "<!-- /calibration -->"
SLOWER = {"aot-max": 1.5, **{f"aot-{name}": 2.0 for name in HISTOGRAMS}}
"""How many times the plain forward pass over the same data calibration may take."""
MEMORY = 0.6
"""The share of onnxruntime's peak memory that aot may take, method against method."""
PEERS = {"aot-max": "onnxruntime-minmax", "aot-percentile": "onnxruntime-percentile"}
"""The method of onnxruntime that is closest; entropy for all others."""

Row = Mapping[str, Any]


def line(row: Row) -> str:
    """One row in one line."""
    said = f"{row['model']:12} {row['tool']:24}"
    if row["seconds"] is not None:
        alone = "" if row["calibration"] is None else f"  calibration {row['calibration']:7.2f} s"
        said += f" {row['seconds']:7.2f} s{alone}  {row['peak_mb']:6} MB"
    return said + (f"  {row['reason'][:300]}" if row["reason"] else "")


def text(rows: Sequence[Row]) -> str:
    """The table, the goals and what gave no result, in Markdown."""
    lines = [
        "Seconds of calibration alone / from file to quantized file, and peak memory in MB:",
        "",
        *_table(rows),
        "",
        "Goals, as shares of the forward pass and of onnxruntime's memory:",
        "",
        *_goals(rows),
    ]
    return "\n".join([*lines, *listed("What gave no result, and why:", reasons(rows))])


def misses(rows: Sequence[Row]) -> list[str]:
    """Which goals are missed."""
    return [said for said, met in judged(rows) if not met]


def judged(rows: Sequence[Row]) -> list[tuple[str, bool]]:
    """Every goal in words, and whether it is met."""
    found = []
    for model, of in by_model(rows).items():
        forward = of.get("forward")
        for tool, limit in SLOWER.items():
            row = of.get(tool)
            if row is None or row["seconds"] is None:
                continue
            if forward is not None and forward["calibration"]:
                share = row["calibration"] / forward["calibration"]
                found.append((f"{model}, {tool}: {share:.2f} x forward, at most {limit:g}", share <= limit))
            peer = of.get(PEERS.get(tool, "onnxruntime-entropy"))
            if peer is not None and peer["peak_mb"]:
                share = row["peak_mb"] / peer["peak_mb"]
                found.append(
                    (
                        f"{model}, {tool}: {share:.2f} x the memory of {peer['tool']}, at most {MEMORY:g}",
                        share <= MEMORY,
                    )
                )
    return found


def update(readme: Path, rows: Sequence[Row]) -> None:
    """Write the tables between the marks of the page."""
    replace(readme, MARKS, text(rows))


def replace(readme: Path, marks: tuple[str, str], new: str) -> None:
    """Write `new` between two marks; leaves a page without them alone."""
    before, start, rest = readme.read_text().partition(marks[0])
    _, end, after = rest.partition(marks[1])
    if start and end:
        readme.write_text(f"{before}{start}\n{new}\n{end}{after}")


def by_model(rows: Sequence[Row]) -> dict[str, dict[str, Row]]:
    """The rows by model, then by tool."""
    found: dict[str, dict[str, Row]] = {}
    for row in rows:
        found.setdefault(row["model"], {})[row["tool"]] = row
    return found


def listed(title: str, entries: Sequence[str]) -> list[str]:
    """A list in Markdown; nothing where it is empty."""
    return ["", title, "", *(f"- {entry}" for entry in entries)] if entries else []


def reasons(rows: Sequence[Row]) -> list[str]:
    """What did not run, the same reason once for all models and tools."""
    found: dict[str, list[str]] = {}
    for row in rows:
        if row["reason"]:
            found.setdefault(row["reason"], []).append(f"{row['model']} {row['tool']}")
    return [f"{', '.join(which)}: {reason[:300]}" for reason, which in found.items()]


def _goals(rows: Sequence[Row]) -> list[str]:
    """Every goal, met or missed."""
    return [f"- {'met' if met else '**missed**'}: {said}" for said, met in judged(rows)]


def _table(rows: Sequence[Row]) -> list[str]:
    """A line for each tool, a column for each model."""
    models = list(by_model(rows))
    lines = [f"| tool | {' | '.join(models)} |", f"|---|{'---|' * len(models)}"]
    cell: Callable[[Row | None], str] = _cell
    for tool in TIMED:
        lines.append(f"| {tool} | {' | '.join(cell(by_model(rows)[model].get(tool)) for model in models)} |")
    return lines


def _cell(row: Row | None) -> str:
    if row is None:
        return ""
    if row["seconds"] is None:
        return "-"
    alone = "" if row["calibration"] is None else f"{row['calibration']:.1f} / "
    return f"{alone}{row['seconds']:.1f} s · {row['peak_mb']}"
