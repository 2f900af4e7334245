"""The sweep's result for people: counts by library, and every miss with its reason."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

GOALS = {"torchvision": 0.95, "timm": 0.95, "transformers": 0.9, "modules": 0.9}
"""The share of a library's models that have to come out built and equal."""
START, END = "<!-- sweep: written by sweep.py -->", "<!-- /sweep -->"

Row = dict[str, Any]


def line(row: Row) -> str:
    """One row in one line."""
    marks = " ".join(f"{name}={_mark(row[name])}" for name in ("exported", "equal", "built"))
    reason = f"  {row['reason'][:300]}" if row["reason"] else ""
    return f"{row['library']} {row['model']}: {marks} {row['seconds']} s{reason}"


def table(rows: Sequence[Row]) -> str:
    """Counts by library, in Markdown."""
    lines = ["| library | models | exported | equal to eager | engine built |", "|---|---|---|---|---|"]
    for library in dict.fromkeys(row["library"] for row in rows):
        of = [row for row in rows if row["library"] == library]
        counts = [sum(bool(row[name]) for row in of) for name in ("exported", "equal", "built")]
        lines.append(f"| {library} | {len(of)} | {' | '.join(map(str, counts))} |")
    return "\n".join(lines)


def misses(rows: Sequence[Row]) -> list[str]:
    """A list entry for each model that did not come through, with what `aot` said."""
    return [f"- {row['library']} {row['model']}: {row['reason']}" for row in rows if row["reason"]]


def reached(rows: Sequence[Row]) -> bool:
    """Whether every library has reached its goal."""
    for library, goal in GOALS.items():
        of = [row for row in rows if row["library"] == library]
        if of and sum(bool(row["equal"] and row["built"] is not False) for row in of) < goal * len(of):
            return False
    return True


def update(readme: Path, rows: Sequence[Row]) -> None:
    """Write the counts and the misses between the marks of the page; leaves a page without marks alone."""
    text = readme.read_text()
    before, start, rest = text.partition(START)
    _, end, after = rest.partition(END)
    if start and end:
        missed = misses(rows)
        body = [table(rows), *(["", "What did not come through, and why:", "", *missed] if missed else [])]
        readme.write_text("\n".join([f"{before}{START}", *body, f"{END}{after}"]))


def _mark(value: bool | None) -> str:
    return "-" if value is None else "yes" if value else "NO"
