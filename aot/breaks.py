"""Why a model cannot be exported, by line of its code. No torch, so that every command can show it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aot.declaration import Dim


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


def at_small_sizes(blamed: Sequence[tuple[str, int]], dims: Mapping[str, Dim]) -> tuple[str, str]:
    """(what, fix) for a branch on sizes of 0 or 1, which `blamed` lists by Dim."""
    at = ", ".join(f"{name}={size}" for name, size in blamed)
    ranges = " and ".join(f"{name} = {_above(dims[name], size)}" for name, size in blamed)
    return (
        f"forward does something else at {at} than at all other sizes, and torch.export follows it for the others only",
        f"write forward without a branch on that size (torch.cat, sums and attention take empty tensors), or "
        f"declare {ranges} and leave the small size to a model of its own",
    )


def _above(dim: Dim, size: int) -> str:
    low, opt, high = size + dim.multiple_of, dim.bounds[1], dim.bounds[2]
    step = f", multiple_of={dim.multiple_of}" if dim.multiple_of > 1 else ""
    return f"aot.Dim('{dim.name}', min={low}, opt={max(opt, low)}, max={high}{step})"
