"""What was done to weights, for the record."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Work:
    """One step over the layers of a graph. done: names of the layers it changed. left: those it could not, and why."""

    step: str
    done: list[str] = field(default_factory=list)
    left: dict[str, str] = field(default_factory=dict)

    def facts(self) -> dict[str, Any]:
        """As plain data."""
        return {"step": self.step, "done": self.done, "left": self.left}
