"""Why a model cannot be exported, by line of its code. No torch, so that every command can show it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Break:
    """One reason.

    kind: what sort of reason it is, the same word for the same fix (`branch on values`, `size split`, ...).
    what: the reason, one sentence. fix: what to write instead.
    file, line, function, code: the model's line, as far as it is known.
    """

    kind: str
    what: str
    file: str | None = None
    line: int | None = None
    function: str | None = None
    code: str | None = None
    fix: str | None = None

    @property
    def where(self) -> str | None:
        """`file:line in function: code`; None where the line is unknown."""
        if self.file is None:
            return None
        inside = f" in {self.function}" if self.function and self.function != "<module>" else ""
        return f"{self.file}:{self.line}{inside}" + (f": {self.code}" if self.code else "")

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)
