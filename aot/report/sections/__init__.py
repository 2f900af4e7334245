"""The sections of the page, one a file: each a function from the data of a report to HTML, empty where it says nothing.

The headline stands apart, above the links to the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from aot.report.sections import (
    accuracy,
    choice,
    contenders,
    error,
    graph,
    interface,
    kernels,
    latency,
    precision,
    repair,
    reproduce,
    stages,
    warnings,
)

SECTIONS: tuple[Callable[[Mapping[str, Any]], str], ...] = (
    warnings.section,
    contenders.section,
    latency.section,
    choice.section,
    accuracy.section,
    error.section,
    repair.section,
    precision.section,
    graph.section,
    kernels.section,
    stages.section,
    interface.section,
    reproduce.section,
)
