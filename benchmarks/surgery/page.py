"""The result for people: tables of nodes, seconds, memory and differences, and in words where aot misses its goals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from surgery.tools import TOOLS

EQUAL = 1e-5
"""The largest relative difference of an output in FP32 that a rewrite may make."""
STEADY = 4.0
"""A difference of up to so many times what the original moves when its inputs move in their last digit is rounding."""
SLOWER = 1.5
"""How many times the seconds of the fastest tool aot may take."""
START, END = "<!-- surgery: written by surgery.py -->", "<!-- /surgery -->"

Row = dict[str, Any]


def line(row: Row) -> str:
    """One row in one line."""
    said = f"{row['model']:20} {row['tool']:10}"
    if row["nodes"] is not None:
        said += f" {row['before']:5} -> {row['nodes']:5} nodes {row['seconds']:8.3f} s {row['peak_mb']:6} MB"
    if row["difference"] is not None:
        said += f" {row['difference']:8.1e}"
    return said + (f"  {row['reason'][:300]}" if row["reason"] else "")


def text(rows: Sequence[Row]) -> str:
    """Both tables and the misses, in Markdown."""
    missed = misses(rows)
    return "\n".join(
        [
            "Nodes left, and seconds:",
            "",
            *_table(rows, lambda row: f"{_nodes(row)} · {row['seconds']:.2f} s"),
            "",
            "Peak memory in MB, and the largest difference:",
            "",
            *_table(rows, lambda row: f"{row['peak_mb']} · {_difference(row)}"),
            *_listed("Where a goal is missed:", missed),
            *_listed("What gave no result, and why:", _reasons(rows)),
        ]
    )


def misses(rows: Sequence[Row]) -> list[str]:
    """Where aot leaves more nodes than a tool that is right, takes too long, or differs; and what did not run.

    A tool whose result is not `right` sets no mark for nodes or seconds.
    """
    found = []
    for model, of in _by_model(rows).items():
        ours = of.get("aot")
        if ours is None:
            continue
        if ours["nodes"] is None or ours["difference"] is None:
            found.append(f"{model}: no result")
        if ours["nodes"] is None:
            continue
        if ours["difference"] is not None and ours["difference"] > EQUAL:
            itself = "; the original with its inputs moved in their last digit, by"
            found.append(f"{model}: differs by {ours['difference']:.1e}{itself} {ours['noise']:.1e}")
        peers = [row for tool, row in of.items() if tool != "aot" and right(row)]
        fewest = min(peers, key=lambda row: row["nodes"], default=None)
        fastest = min(peers, key=lambda row: row["seconds"], default=None)
        if fewest and fewest["nodes"] < ours["nodes"]:
            found.append(f"{model}: {ours['nodes']} nodes, {fewest['tool']} leaves {fewest['nodes']}")
        if fastest and ours["seconds"] > SLOWER * fastest["seconds"]:
            found.append(
                f"{model}: {ours['seconds']:.2f} s, {ours['seconds'] / fastest['seconds']:.1f} times"
                f" {fastest['tool']}'s {fastest['seconds']:.2f} s, which leaves {fastest['nodes']} nodes"
            )
    return found


def right(row: Row) -> bool:
    """Whether a tool's result runs and is equal to the original but for rounding."""
    return row["difference"] is not None and row["difference"] <= max(EQUAL, STEADY * row["noise"])


def update(readme: Path, rows: Sequence[Row]) -> None:
    """Write the tables between the marks of the page; leaves a page without marks alone."""
    page = readme.read_text()
    before, start, rest = page.partition(START)
    _, end, after = rest.partition(END)
    if start and end:
        readme.write_text(f"{before}{START}\n{text(rows)}\n{END}{after}")


def _listed(title: str, entries: Sequence[str]) -> list[str]:
    """A list in Markdown; nothing where it is empty."""
    return ["", title, "", *(f"- {entry}" for entry in entries)] if entries else []


def _reasons(rows: Sequence[Row]) -> list[str]:
    """What did not run or could not be compared, the same reason once for all tools of a model."""
    found: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if row["reason"]:
            found.setdefault((row["model"], row["reason"]), []).append(row["tool"])
    return [f"{model}, {', '.join(tools)}: {reason[:300]}" for (model, reason), tools in found.items()]


def _by_model(rows: Sequence[Row]) -> dict[str, dict[str, Row]]:
    """The rows by model, then by tool."""
    found: dict[str, dict[str, Row]] = {}
    for row in rows:
        found.setdefault(row["model"], {})[row["tool"]] = row
    return found


def _table(rows: Sequence[Row], cell: Callable[[Row], str]) -> list[str]:
    """A line for each model, a column for each tool."""
    lines = [f"| model | nodes | {' | '.join(TOOLS)} |", f"|---|---|{'---|' * len(TOOLS)}"]
    for model, of in _by_model(rows).items():
        before = next((row["before"] for row in of.values() if row["before"] is not None), "")
        cells = ["" if tool not in of else cell(of[tool]) if of[tool]["nodes"] is not None else "-" for tool in TOOLS]
        lines.append(f"| {model} | {before} | {' | '.join(cells)} |")
    return lines


def _nodes(row: Row) -> str:
    """The count; in parentheses where the result is not equal to the original."""
    return str(row["nodes"]) if right(row) else f"({row['nodes']})"


def _difference(row: Row) -> str:
    if row["difference"] is None:
        return "does not run"
    return "0" if row["difference"] == 0 else f"{row['difference']:.0e}"
