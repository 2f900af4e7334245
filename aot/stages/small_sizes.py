"""A branch on a size of 0 or 1: torch.export takes no size for 0 or 1 when it comes to one, and says nothing of it.

The graph then holds the branch of larger sizes only, and differs from the model at the small one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from aot.breaks import at_small_sizes
from aot.errors import ExportError

if TYPE_CHECKING:
    from aot.declaration import ModelSpec
    from aot.records import References
    from aot.source import Source


def refusal(cases: Sequence[Mapping[str, Any]], references: References, source: Source) -> ExportError | None:
    """What to say of compared cases (`name`, `sizes`, `accepted`) that differ at sizes 0 and 1 only; else None."""
    spec = source.spec
    failed = [case for case in cases if not case["accepted"]]
    good = [case for case in cases if case["accepted"]]
    held = set().union(*(_small(case, spec) for case in good))
    blamed = sorted(set().union(*(_small(case, spec) for case in failed)) - held)
    if not good or not blamed or not all(_small(case, spec) & set(blamed) for case in failed):
        return None
    what, fix = at_small_sizes(blamed, spec.dims)
    line = _line(failed[0]["name"], good[0]["name"], references, source)
    return ExportError(what, where=line or f"model '{spec.name}'", fix=fix)


def _small(case: Mapping[str, Any], spec: ModelSpec) -> set[tuple[str, int]]:
    return {(name, size) for name, size in case["sizes"].items() if size < 2 <= spec.dims[name].bounds[2]}


def _line(bad: str, good: str, references: References, source: Source) -> str | None:
    """Where forward goes another way for the one case than for the other, where the source can tell."""
    batches = {case.name: case.inputs for case in references.cases() if case.name in (bad, good)}
    parting = getattr(source.eager(), "parting", None)
    return parting(batches[bad], batches[good]) if parting is not None else None
