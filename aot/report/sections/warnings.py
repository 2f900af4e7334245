"""What a reader should know before the figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aot.report.html import listing
from aot.report.html import section as titled
from aot.report.search import sentences


def section(data: Mapping[str, Any]) -> str:
    """The warnings of the build; what is kept wide for the budget has a section of its own."""
    search = data.get("search")
    shown = set(sentences(search)) if search else set()
    notes = listing(one for one in data.get("warnings") or () if one not in shown)
    return titled("Worth knowing", f'<div class="note">{notes}</div>' if notes else "")
