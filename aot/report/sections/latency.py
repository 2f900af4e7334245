"""The benchmark by shape: how latency grows with each dimension."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from aot.report import svg
from aot.report.bench import Row, contender, contenders, measured, rows_of
from aot.report.html import legend, paragraph
from aot.report.html import section as titled
from aot.text import sizes

_HEIGHT = 280


def section(data: Mapping[str, Any]) -> str:
    """A plot for the dimension that was measured at the most sizes, one for each size of the others."""
    rows = measured(rows_of(data))
    dim = _dim(rows)
    if dim is None:
        return ""
    names = contenders(rows)
    others: dict[tuple[tuple[str, int], ...], list[Row]] = {}
    for row in rows:
        rest = tuple((name, size) for name, size in row["sizes"].items() if name != dim)
        others.setdefault(rest, []).append(row)
    axis = svg.logarithmic([float(row["p50_ms"]) for row in rows])
    plots = [
        _plot(dim, dict(rest), group, names, axis)
        for rest, group in others.items()
        if len({row["sizes"][dim] for row in group}) > 1
    ]
    if not plots:
        return ""
    keys = legend((f"mark-{place % 8}", f"{'●■▲◆'[place % 4]} {name}") for place, name in enumerate(names))
    said = paragraph(f"Median of a call by {dim}; both axes are logarithmic, lower is better.", "soft")
    return titled("Latency by shape", said, keys, *plots)


def _dim(rows: Sequence[Row]) -> str | None:
    """The dimension with the most sizes; None where none has two."""
    found: dict[str, set[int]] = {}
    for row in rows:
        for name, size in (row.get("sizes") or {}).items():
            found.setdefault(name, set()).add(size)
    name = max(found, key=lambda one: len(found[one]), default=None)
    return name if name is not None and len(found[name]) > 1 else None


def _plot(dim: str, rest: Mapping[str, int], rows: Sequence[Row], names: Sequence[str], axis: svg.Axis) -> str:
    ticks = sorted({int(row["sizes"][dim]) for row in rows})
    across = svg.Axis(max(ticks[0], 1) / 1.15, ticks[-1] * 1.15, log=True)
    parts = [svg.grid(axis, _HEIGHT, " ms")]
    places = _apart([across.at(size) for size in ticks])
    parts += [svg.text(svg.across(across.at(ticks[n])), _HEIGHT - 4, str(ticks[n]), "soft", "middle") for n in places]
    said = []
    for place, name in reversed(list(enumerate(names))):
        found = {int(row["sizes"][dim]): float(row["p50_ms"]) for row in rows if contender(row) == name}
        points = [(across.at(size), svg.level(axis, value, _HEIGHT)) for size, value in sorted(found.items())]
        parts.append(svg.line(points, _HEIGHT, f"line-{place % 8}"))
        for (size, value), (x, y) in zip(sorted(found.items()), points, strict=True):
            parts.append(svg.mark(x, y, place, f"mark-{place % 8}", f"{name}, {dim}={size}: {value:.4g} ms"))
        said.append(f"{name}: " + ", ".join(f"{value:.4g} ms at {size}" for size, value in sorted(found.items())))
    title = f"Latency by {dim}" + (f" at {sizes(rest)}" if rest else "")
    head = f"<h3>{title}</h3>" if rest else ""
    return head + svg.plot(title, "; ".join(reversed(said)), _HEIGHT, "".join(parts))


def _apart(places: Sequence[float], least: float = 0.07) -> list[int]:
    """Which labels to write so that none stands on another."""
    kept: list[int] = []
    for number, place in enumerate(places):
        if not kept or place - places[kept[-1]] >= least:
            kept.append(number)
    return kept
