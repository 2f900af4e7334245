"""How `--precision auto` came to its precision."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aot.report import choice
from aot.report.html import ms, paragraph, table_of
from aot.report.html import section as titled
from aot.report.svg import Bar, bars
from aot.text import sizes


def section(data: Mapping[str, Any]) -> str:
    """The verdict, a bar for every precision that was timed, and the figures."""
    found = data.get("choice")
    if not found:
        return ""
    plots = "".join(_plot(found, place, at) for place, at in enumerate(found["sizes"]))
    table = table_of(choice.head(found), choice.rows(found))
    return titled("Why this precision", paragraph(choice.verdict(found)), plots, table)


def _plot(found: Mapping[str, Any], place: int, at: Mapping[str, int]) -> str:
    timed = [one for one in found["candidates"] if len(one["ms"]) > place]
    if not timed:
        return ""
    rows = [
        Bar(
            one["precision"], one["ms"][place], ms(one["ms"][place]),
            "bar" if one["precision"] == found["precision"] else "other",
        )
        for one in timed
    ]  # fmt: skip
    said = ", ".join(f"{row.label} {row.said}" for row in rows)
    where = f" at {sizes(at)}" if at else ""
    return paragraph(f"Median of a run{where}, on {found['on']}", "soft") + bars("Time by precision", said, rows)
