"""Where error enters, layer by layer: a table in 100 columns, and a page with a plot that needs no network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from aot.report import svg
from aot.report.html import document, legend, listing, paragraph, table_of
from aot.report.style import STYLE
from aot.text import number, table

HEAD = ("node", "op", "module", "source", "cosine", "relative L2", "added here", "share of the outputs' error")
LEGEND = (
    ("whole", "relative L2 of the value in the whole graph"),
    ("added", "what its own layer adds to exact inputs"),
    ("lost", "not finite"),
)
_HEIGHT = 300
_FLOOR = 1e-8


def rows(layers: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """One a layer, under `HEAD`, in the order of the first graph."""
    return [
        (
            row["node"],
            row["op"],
            row["module"] or "-",
            row["source"] or "-",
            number(row["cosine"]),
            number(row["relative_l2"]) if row["finite"] else "not finite",
            number(row["added"]),
            f"{row['share']:.1%}",
        )
        for row in layers["rows"]
    ]


def text(layers: Mapping[str, Any]) -> str:
    """The table, and under it what could not be compared."""
    return "\n".join([table([HEAD, *rows(layers)]), "", *(f"  {line}" for line in notes(layers))])


def notes(layers: Mapping[str, Any]) -> list[str]:
    """What was compared, on what, and what was left out."""
    first, second = layers["alone"]
    lines = [
        f"A  {layers['a']}",
        f"B  {layers['b']}",
        f"{len(layers['rows'])} values of both, over {layers['cases']} cases together; not compared, for the other "
        f"has none of that name: {first} of A, {second} of B (what quantizing and casting add among them)",
        "added here: what B's layer makes of A's values, against A's; share: of the outputs' squared error, followed "
        "back to the layers it entered at, an estimate",
    ]
    lost = next((row for row in layers["rows"] if not row["finite"]), None)
    if lost is not None:
        lines.append(f"the first value that is not finite in B and is in A: {lost['value']}, made by {lost['node']}")
    return lines


def shares(found: Sequence[Mapping[str, Any]], most: int = 3) -> str:
    """The layers at which most of the outputs' error entered, in a sentence; empty where none stands out."""
    worst = sorted(found, key=lambda row: float(row["share"]), reverse=True)[:most]
    named = [
        f"{row['node']} ({row['module'] or row['op']}) {row['share']:.0%}" for row in worst if row["share"] >= 0.01
    ]
    return f"Most of the outputs' squared error enters at {', '.join(named)}." if named else ""


def page(layers: Mapping[str, Any]) -> str:
    """The page: the plot, then the table."""
    title = "Where error enters, layer by layer"
    parts = (listing(notes(layers)), legend(LEGEND), plot(layers["rows"]), paragraph(shares(layers["rows"])))
    return document(title, f"<h1>{title}</h1>{''.join(parts)}{table_of(HEAD, rows(layers))}", STYLE)


def plot(found: Sequence[Mapping[str, Any]]) -> str:
    """Relative L2 on a logarithmic axis over the layers in order: a line for the whole graph, a bar for what is added
    at each layer; a mark at the top where a value is not finite. Each bar names its layer when pointed at."""
    if not found:
        return ""
    values = [value for row in found for value in (row["relative_l2"], row["added"]) if value]
    axis = svg.logarithmic([*values, min(values, default=_FLOOR) / 2], _FLOOR)  # the least bar has a height too
    step, base = 1000 / len(found), _HEIGHT - svg.BOTTOM
    shapes = []
    for place, row in enumerate(found):
        left, width = place * step, max(step * 0.8, 0.5)
        numbers = f"{number(row['relative_l2'])}, added {number(row['added'])}"
        said = escape(f"{row['node']} ({row['op']}) {row['module']}: {numbers}")
        if not row["finite"]:
            shapes.append(f'<rect class="lost" x="{left:.2f}" y="0" width="{step:.2f}" height="8"/>')
        top = svg.level(axis, row["added"], _HEIGHT) if row["added"] else base
        box = f'x="{left:.2f}" y="{top:.1f}" width="{width:.2f}" height="{base - top:.1f}"'
        shapes.append(f'<rect class="added" {box}><title>{said}</title></rect>')
    points = [
        ((place + 0.4) / len(found), svg.level(axis, row["relative_l2"], _HEIGHT))
        for place, row in enumerate(found)
        if row["relative_l2"] is not None
    ]
    body = svg.grid(axis, _HEIGHT) + svg.stretched("".join(shapes), _HEIGHT) + svg.line(points, _HEIGHT, "whole")
    ends = svg.text(svg.LEFT, _HEIGHT - 4, "first layer", "soft") + svg.text(
        100, _HEIGHT - 4, "last layer", "soft", "end"
    )
    return svg.plot("Relative L2 by layer", shares(found) or "relative L2 by layer", _HEIGHT, body + ends)
