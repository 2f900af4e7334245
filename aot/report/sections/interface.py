"""What the model takes and gives, and the sizes that it was built for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aot.report.html import section as titled
from aot.report.html import table_of


def section(data: Mapping[str, Any]) -> str:
    """Inputs and outputs, then the ranges of every optimization profile."""
    values = [
        (side[:-1], value["name"], value["dtype"], f"[{', '.join(map(str, value['shape']))}]")
        for side, found in (data.get("io") or {}).items()
        for value in found
    ]
    ranges = [
        (f"profile {index}", name, *map(str, triple))
        for index, profile in enumerate(data.get("profiles") or ())
        for name, triple in profile.items()
    ]
    return titled(
        "Inputs and outputs",
        table_of(("", "name", "dtype", "shape"), values),
        table_of(("", "dim", "min", "opt", "max"), ranges),
    )
