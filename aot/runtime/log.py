"""What TensorRT logs, kept for messages."""

from __future__ import annotations

import re
from collections.abc import Sequence
from types import ModuleType
from typing import Any

STAMP = re.compile(r"\S+\.(?:cpp|h):\d+:?\s*")
"""A position in the vendor's source."""


def make_log(trt: ModuleType) -> Any:
    """A logger of the module's own ILogger type; the type exists only once the module is imported."""

    class Collector(trt.ILogger):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.errors: list[str] = []
            self.warnings: list[str] = []

        def log(self, severity: Any, message: str) -> None:
            # The builder calls this from C++, through which no exception may travel: only keep the text.
            if severity in (trt.ILogger.Severity.ERROR, trt.ILogger.Severity.INTERNAL_ERROR):
                self.errors.append(str(message))
            elif severity == trt.ILogger.Severity.WARNING:
                self.warnings.append(str(message))

    return Collector()


def last_lines(errors: Sequence[str], count: int = 1) -> str:
    """The last lines that the vendor logged, without source positions, each once."""
    lines = [" ".join(STAMP.sub("", line).split()) for line in errors]
    return "; ".join(list(dict.fromkeys(line for line in lines if line))[-count:])
