"""The parts that pages are made of: sections, tables, folds, lists. Every string of a user's is escaped here."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from aot.text import number

_NUMBER = re.compile(r"[-<]?\d")
_SHORT = 44


def document(title: str, body: str, style: str) -> str:
    """A whole page."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f"<title>{escape(title)}</title><style>{style}</style></head><body>{body}</body></html>\n"
    )


def section(title: str, *parts: str) -> str:
    """A section under its title; nothing where no part says anything."""
    body = "".join(parts)
    return f'<section id="{anchor(title)}"><h2>{escape(title)}</h2>{body}</section>' if body else ""


def anchor(title: str) -> str:
    """The name by which a section is linked to."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


def paragraph(text: str, kind: str = "") -> str:
    """A paragraph; nothing for an empty text."""
    style = f' class="{kind}"' if kind else ""
    return f"<p{style}>{escape(text)}</p>" if text else ""


def listing(items: Iterable[str]) -> str:
    """A list; nothing where it has no item."""
    found = "".join(f"<li>{escape(item)}</li>" for item in items)
    return f"<ul>{found}</ul>" if found else ""


def fold(summary: str, body: str) -> str:
    """What is shown when it is asked for; nothing for an empty body."""
    return f"<details><summary>{escape(summary)}</summary>{body}</details>" if body else ""


def facts(rows: Iterable[tuple[str, object]]) -> str:
    """Names and values, those without a value left out."""
    found = [(name, value) for name, value in rows if _said(value)]
    items = "".join(f"<dt>{escape(name)}</dt><dd>{escape(_said(value))}</dd>" for name, value in found)
    return f"<dl>{items}</dl>" if items else ""


def code(lines: Iterable[str]) -> str:
    """Commands to be copied; nothing where there are none."""
    found = [line for line in lines if line]
    return f'<pre tabindex="0"><code>{escape(chr(10).join(found))}</code></pre>' if found else ""


def table_of(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table that scrolls by itself where it is wider than the page; nothing where it has no row.

    Numbers come as preformatted text; a column of cells that start like numbers is set to the right. Columns in which
    no row says anything are left out.
    """
    cells = [[_said(value) for value in row] for row in rows]
    shown = [place for place in range(len(head)) if any(row[place] for row in cells)]
    if not shown:
        return ""
    right = {place for place in shown if all(not row[place] or _NUMBER.match(row[place]) for row in cells)}
    top = "".join(f"<th{_style(place in right)}>{escape(head[place])}</th>" for place in shown)
    body = "".join(
        "<tr>"
        + "".join(f"<td{_style(place in right, row[place])}>{escape(row[place])}</td>" for place in shown)
        + "</tr>"
        for row in cells
    )
    return f'<div class="scroll" tabindex="0"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def _style(right: bool, text: str = "") -> str:
    """Numbers stand to the right; long texts may be broken, short ones are not."""
    return ' class="n"' if right else ' class="long"' if len(text) > _SHORT else ""


def legend(entries: Iterable[tuple[str, str]]) -> str:
    """What the colours and forms of a plot mean: (class of the swatch, words)."""
    found = "".join(
        f'<li><span class="key {kind}" aria-hidden="true"></span>{escape(said)}</li>' for kind, said in entries
    )
    return f'<ul class="legend">{found}</ul>' if found else ""


def _said(value: object) -> str:
    """A cell's text; empty for what is not known."""
    return "" if value is None or (isinstance(value, float) and math.isnan(value)) else str(value)


def digits(value: Any) -> str:
    """A number as tables have it; empty for none and for NaN."""
    return "" if value is None or math.isnan(value) else number(value)


def ms(value: float | None) -> str:
    """Milliseconds to three digits, empty for none."""
    if value is None or math.isnan(value):
        return ""
    return f"{value:.0f} ms" if value >= 100 else f"{value:.3g} ms"


def known(mapping: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The mapping under a key, empty where there is none."""
    return dict(mapping.get(key) or {})
