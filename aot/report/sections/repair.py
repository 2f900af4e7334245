"""What is kept wide because the budget was missed, or why no choice is enough."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aot.report import search
from aot.report.html import listing, paragraph, table_of
from aot.report.html import section as titled


def section(data: Mapping[str, Any]) -> str:
    """A row for each node that is kept wide: what comes without it, and what it costs."""
    found = data.get("search")
    if not found:
        return ""
    missed = paragraph(f"As asked for, the budget was missed: {search.said(found['before'])}.")
    if not found["met"]:
        return titled("No choice of nodes to keep wide meets the budget", missed, paragraph(found["why"]))
    table = table_of(search.HEAD, search.rows(found))
    return titled("Kept wide so that the budget holds", missed, table, listing(search.tail(found)))
