"""Where error enters, layer by layer: a table in 100 columns, and a page with a plot that needs no network."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from aot.report.html import STYLE, table_of
from aot.text import number, table

HEAD = ("node", "op", "module", "source", "cosine", "relative L2", "added here", "share of the outputs' error")
_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 960, 320, 60, 10, 20
_FLOOR = 1e-8

_PLOT_STYLE = """
svg { width: 100%; height: auto; } svg text { font: 11px system-ui, sans-serif; fill: currentColor; }
.grid { stroke: var(--line); } .whole { fill: none; stroke: #2471a3; stroke-width: 1.5; }
.added { fill: #ca6f1e; } .lost { fill: var(--bad); }
"""


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


def page(layers: Mapping[str, Any]) -> str:
    """The page: the plot, then the table."""
    title = "Where error enters, layer by layer"
    listed = "".join(f"<li>{escape(line)}</li>" for line in notes(layers))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{STYLE}{_PLOT_STYLE}</style></head><body><h1>{title}</h1>"
        f"<ul>{listed}</ul>{_plot(layers['rows'])}{table_of(HEAD, rows(layers))}</body></html>\n"
    )


def _plot(found: Sequence[Mapping[str, Any]]) -> str:
    """Relative L2 on a logarithmic axis over the layers in order: a line for the whole graph, a bar for what is added
    at each layer; a mark at the top where a value is not finite. Each bar names its layer when pointed at."""
    if not found:
        return ""
    values = [value for row in found for value in (row["relative_l2"], row["added"]) if value]
    top = math.ceil(math.log10(max([*values, 10 * _FLOOR])))
    bottom = math.floor(math.log10(max(min(values, default=_FLOOR), _FLOOR)))
    bottom = min(bottom, top - 1)
    step = (_WIDTH - _LEFT) / len(found)

    def y(value: float) -> float:
        place = (math.log10(max(value, 10.0**bottom)) - bottom) / (top - bottom)
        return _HEIGHT - _BOTTOM - place * (_HEIGHT - _TOP - _BOTTOM)

    def marks() -> Iterator[str]:
        for power in range(bottom, top + 1):
            at = y(10.0**power)
            yield f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH}" y1="{at:.1f}" y2="{at:.1f}"/>'
            yield f'<text x="{_LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">1e{power}</text>'
        for place, row in enumerate(found):
            left = _LEFT + place * step
            numbers = f"{number(row['relative_l2'])}, added {number(row['added'])}"
            said = escape(f"{row['node']} ({row['op']}) {row['module']}: {numbers}")
            at = y(row["added"]) if row["added"] else _HEIGHT - _BOTTOM
            if not row["finite"]:
                yield f'<rect class="lost" x="{left:.1f}" y="{_TOP}" width="{step:.2f}" height="6"/>'
            yield (
                f'<rect class="added" x="{left:.1f}" y="{at:.1f}" width="{max(step * 0.8, 0.5):.2f}" '
                f'height="{_HEIGHT - _BOTTOM - at:.1f}"><title>{said}</title></rect>'
            )
        line = [
            f"{_LEFT + (place + 0.5) * step:.1f},{y(row['relative_l2']):.1f}"
            for place, row in enumerate(found)
            if row["relative_l2"] is not None
        ]
        yield f'<polyline class="whole" points="{" ".join(line)}"/>'
        legend = "relative L2: the line in the whole graph, the bars added at a layer"
        yield f'<text x="{_LEFT}" y="{_HEIGHT - 4}">{legend}</text>'

    box = f'viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="relative L2 by layer"'
    return f"<svg {box}>{''.join(marks())}</svg>"
