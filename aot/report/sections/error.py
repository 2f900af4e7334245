"""Where the error of the outputs enters, by layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aot.report import layers
from aot.report.html import fold, legend, paragraph, table_of
from aot.report.html import section as titled


def section(data: Mapping[str, Any]) -> str:
    """The comparison that the search for nodes to keep wide began with: its plot, and its table folded away."""
    found = data.get("layers")
    if not found or not found.get("rows"):
        return ""
    before = "before any node was kept wide for the budget" if data.get("search") else ""
    said = "The final graph beside the FP32 one, layer by layer" + (f", {before}" if before else "")
    if found.get("case"):
        said += f"; case '{found['case']}'"
    return titled(
        "Where error enters",
        paragraph(f"{said}.", "soft"),
        legend(layers.LEGEND),
        layers.plot(found["rows"]),
        paragraph(layers.shares(found["rows"])),
        fold(f"Every layer ({len(found['rows'])})", table_of(layers.HEAD, layers.rows(found))),
    )
