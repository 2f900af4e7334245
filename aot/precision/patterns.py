"""The nodes that a recipe names, by their own name, the path of a module or their op type."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

import onnx_ir as ir

from aot.errors import UsageError, unknown
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


def check_op_types(names: Iterable[str], model: ir.Model) -> None:
    """Raise UsageError, with the nearest name, for one that is the op type of nothing in ONNX nor in the model. One
    that the model happens not to have is none: recipes are written for many."""
    asked = list(names)
    if not asked:
        return
    import onnx

    known = {schema.name for schema in onnx.defs.get_all_schemas()} | {n.op_type for n in model.graph.all_nodes()}
    for name in asked:
        if name not in known:
            near = (unknown("op type", name, known).fix or "").partition("there are:")[0].strip()
            raise UsageError(
                f"unknown op type '{name}'", where="keep_fp32 of the recipe", fix=near or "names are those of ONNX"
            )
