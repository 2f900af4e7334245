"""Where an export breaks, and the code around it."""

from __future__ import annotations

import linecache
import re
from collections.abc import Sequence

from aot.breaks import Break
from aot.errors import ExportError
from aot.source import Source

AROUND = 2
"""Lines of code shown before and after the one that breaks."""

_LINE = re.compile(r"(?P<file>\S[^:]*):(?P<line>\d+)(?: in (?P<function>[^:]+))?(?:: (?P<code>.*))?", re.DOTALL)


def breaks(source: Source, error: ExportError) -> Sequence[Break]:
    """Every reason why the export of `source` fails, at least the one that `error` gives."""
    return source.breaks(error) or error.breaks or (_read(error),)


def _read(error: ExportError) -> Break:
    """The error as a break; its line where it names one."""
    place = _LINE.fullmatch(error.where or "")
    if place is None:
        told = error.where is None or error.where in error.what
        return Break("export", error.what if told else f"{error.what} ({error.where})", fix=error.fix)
    file, line, function, code = place.group("file", "line", "function", "code")
    return Break("export", error.what, file, int(line), function, code, error.fix)


def excerpt(one: Break) -> list[tuple[int, str]]:
    """(number, text) of the line that breaks and those around it; empty where the file cannot be read."""
    if one.file is None or one.line is None:
        return []
    lines = linecache.getlines(one.file)
    first = max(one.line - AROUND, 1)
    return [(first + at, text.rstrip("\n")) for at, text in enumerate(lines[first - 1 : one.line + AROUND])]
