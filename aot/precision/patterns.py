"""The nodes that a recipe names, by their own name or the path of a module."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

import onnx_ir as ir

from aot.precision.layers import places


class Patterns:
    """Patterns with `*` and `?`; remembers which of them found a node."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self.patterns = patterns
        self._used: set[str] = set()

    def match(self, node: ir.Node) -> str | None:
        """The first pattern that names the node or a module around it, None where none does."""
        found = [p for p in self.patterns if any(fnmatchcase(place, p) for place in places(node))]
        self._used.update(found)
        return found[0] if found else None

    @property
    def unused(self) -> list[str]:
        """Those that named nothing."""
        return [pattern for pattern in self.patterns if pattern not in self._used]
