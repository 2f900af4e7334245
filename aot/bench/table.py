"""The answer for people, in 100 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from aot.text import number, size_of, sizes, table

WIDTH = 100
NAME = 24

Row = Mapping[str, Any]
Column = tuple[str, Callable[[Row], str]]


def short(value: float | None) -> str:
    """At most six characters, from 1e-4 to a million: four digits, `-` for none."""
    if value is None:
        return "-"
    if value >= 1000 or value == 0:
        return f"{value:.0f}"
    return f"{value:.4g}" if value >= 1 else f"{value:.{3 if value >= 0.1 else 4}f}"


def _name(name: str) -> str:
    return name if len(name) <= NAME else f"{name[: NAME - 1]}…"


def _bytes(row: Row, name: str) -> str:
    return "-" if row[name] is None else size_of(row[name])


def _seconds(row: Row) -> str:
    return "-" if row["first_ms"] is None else f"{row['first_ms'] / 1e3:.2f}"


SPEED: Sequence[Column] = (
    ("", lambda row: _name(row["name"])),
    ("", lambda row: row["precision"] or "-"),
    ("p50 ms", lambda row: short(row["p50_ms"])),
    ("p90 ms", lambda row: short(row["p90_ms"])),
    ("p99 ms", lambda row: short(row["p99_ms"])),
    ("items/s", lambda row: short(row["throughput"])),
    ("launches", lambda row: "-" if row["launches"] is None else str(row["launches"])),
    ("cosine", lambda row: number(row["cosine"])),
    ("rel. L2", lambda row: "-" if row["relative_l2"] is None else f"{row['relative_l2']:.1e}"),
)
COST: Sequence[Column] = (
    SPEED[0],
    ("runs", lambda row: str(row["runs"])),
    ("spread", lambda row: "-" if row["spread"] is None else f"{row['spread']:.1%}"),
    ("first s", _seconds),
    ("GPU memory", lambda row: _bytes(row, "gpu_bytes")),
    ("host memory", lambda row: _bytes(row, "host_bytes")),
    ("mJ", lambda row: short(row["energy_mj"])),
)


def text(found: Mapping[str, Any]) -> str:
    """Per size, the fastest first: speed beside accuracy, then what it costs; what did not run; what to doubt."""
    machine, versions = found["machine"], found["versions"]
    on = f"{machine['gpu']}, driver {machine['driver']}" if machine["gpu"] else machine["cpu"]
    shown = ", ".join(f"{name} {version}" for name, version in versions.items())
    parts = [_filled(f"on {on}, {machine['threads']} CPU threads"), _filled(shown)]
    rows: Sequence[Row] = found["rows"]
    labels = {row["name"]: row["label"] for row in rows if row["label"]}
    parts += ["", table([(_name(name), label[: WIDTH - NAME - 4]) for name, label in labels.items()])]
    for at in dict.fromkeys(sizes(row["sizes"]) for row in rows):
        here = [row for row in rows if sizes(row["sizes"]) == at]
        timed = sorted((row for row in here if row["p50_ms"] is not None), key=lambda row: float(row["p50_ms"]))
        parts.append(f"\n{at}")
        if timed:
            parts += [_table(SPEED, timed), "", _table(COST, timed)]
        parts += _reasons(here)
    if found["warnings"]:
        parts += ["\nto be read with care", *(_filled(one, "  ") for one in found["warnings"])]
    return "\n".join(parts)


def _table(columns: Sequence[Column], rows: Sequence[Row]) -> str:
    """Columns that no row has anything in are left out."""
    cells = [(title, [get(row) for row in rows]) for title, get in columns]
    kept = [(title, values) for title, values in cells if any(value != "-" for value in values)]
    lines = [[title for title, _ in kept], *zip(*(values for _, values in kept), strict=True)]
    return table(lines)


def _reasons(rows: Sequence[Row]) -> list[str]:
    """What is None, and why; the same reason once."""
    groups: dict[tuple[bool, str], list[str]] = {}
    for row in rows:
        if row["reason"]:
            groups.setdefault((row["p50_ms"] is None, row["reason"]), []).append(row["name"])
    lines = []
    for missing, title in ((False, "\nnot measured"), (True, "\nnot run")):
        found = [f"{', '.join(names)}: {why}" for (out, why), names in groups.items() if out is missing]
        lines += [title, *(_filled(one, "  ") for one in found)] if found else []
    return lines


def _filled(line: str, indent: str = "") -> str:
    return textwrap.fill(line, WIDTH, initial_indent=indent, subsequent_indent=f"{indent}  ", break_on_hyphens=False)
