"""How numbers are written for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def number(value: float | None) -> str:
    """Five digits, `-` for none; a cosine near 1 keeps what sets it apart from 1."""
    if value is None:
        return "-"
    if 0.999 < value < 1:
        return f"{value:.7f}"
    return f"{value:.5g}"


def took(seconds: float, cached: bool) -> str:
    """`12.3 s`, or `cached`."""
    return "cached" if cached else f"{seconds:.1f} s"


def size_of(count: float) -> str:
    """Bytes in the unit that fits: `87 B`, `1.2 MiB`."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.2f} GiB"


def sizes(dims: Mapping[str, int]) -> str:
    """`batch=3, seq=11`; `fixed` where nothing varies."""
    return ", ".join(f"{name}={size}" for name, size in dims.items()) or "fixed"


def visible(text: str) -> str:
    """The text with escapes for all but what prints, tabs and newlines: no name in a file may move the cursor."""
    return "".join(one if one.isprintable() or one in "\t\n" else ascii(one)[1:-1] for one in text)


def table(rows: Sequence[Sequence[str]], indent: str = "  ") -> str:
    """Columns padded with spaces to the widest cell."""
    rows = [[visible(cell).replace("\n", "\\n") for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))] if rows else []
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)
    return "\n".join(indent + line for line in lines)
