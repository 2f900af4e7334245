"""The passes over any ONNX model: fewer nodes, the same inputs and outputs, the same numbers."""

from __future__ import annotations

import gc
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aot.errors import unknown

if TYPE_CHECKING:
    import onnx_ir as ir

    from aot.graph import Applied, Pass
    from aot.graph.check import Check


@dataclass(frozen=True)
class Optimized:
    """What was done to a model. before, after: nodes of the main graph and its bodies.

    seconds: of the rewriting alone. passes: what each did. check: what was compared, None where nothing was.
    """

    before: int
    after: int
    seconds: float
    passes: tuple[Applied, ...]
    check: Check | None

    def to_json(self) -> dict[str, Any]:
        """Plain data.

        compared: `sites` (a sample of what each pass changed), `graph` (each pass, and the result with what was given)
        or `nothing`, also where no site could be run; sites_compared: how many; relative (to the output's magnitude),
        max_abs and relative_l2 are the largest difference found; noise is the largest, relative to the magnitude, where
        rounding alone moves the output as much.
        """
        check = self.check if self.check is not None and self.check.compared else None
        largest = check.largest() if check is not None else None
        return {
            "nodes": {"before": self.before, "after": self.after},
            "seconds": round(self.seconds, 4),
            "check_seconds": round(self.check.seconds, 4) if self.check is not None else 0.0,
            "compared": "nothing" if check is None else "graph" if check.whole else "sites",
            "sites_compared": sum(one.sites for one in check.passes.values()) if check is not None else 0,
            "relative": largest.relative if largest is not None else None,
            "max_abs": largest.absolute if largest is not None else None,
            "relative_l2": largest.l2 if largest is not None else None,
            "noise": check.noise().relative if check is not None else None,
            "passes": [self._pass(one) for one in self.passes],
        }

    def _pass(self, one: Applied) -> dict[str, Any]:
        checked = self.check.passes.get(one.name) if self.check is not None else None
        return {
            "name": one.name,
            "sites": one.sites,
            "seconds": round(one.seconds, 4),
            "skipped": [{"node": node, "reason": reason} for node, reason in one.skipped.items()],
            **({} if checked is None else checked.to_json()),
        }


def chosen(
    *, narrow: bool, quantized: bool = False, operator: bool = False, without: Collection[str] = ()
) -> list[Pass]:
    """The passes to run. narrow: the model is to compute in a type narrower than FP32. quantized: in INT8 or FP8.
    operator: attention and group normalization become one node each, for a builder that has both (`aot.form`). without:
    names of passes to leave out. Raises UsageError for a name that no pass has."""
    from aot.passes import PASSES
    from aot.passes.attention_operator import attention_operator
    from aot.passes.group_norm import group_norm

    operators = (attention_operator, group_norm)
    passes = (*PASSES, *operators)
    names = {one.name for one in passes}
    for name in without:
        if name not in names:
            raise unknown("pass", name, names)
    return [
        one
        for one in passes
        if (narrow or not one.narrow_only)
        and not (quantized and one.float_only)
        and (operator or one not in operators)
        and one.name not in without
    ]


def optimize(
    model: ir.Model,
    *,
    narrow: bool = False,
    quantized: bool = False,
    operator: bool = False,
    without: Collection[str] = (),
    check: Check | None = None,
    fold_limit: int | None = None,
) -> Optimized:
    """Rewrite `model` in place; its inputs and outputs keep names, dtypes, shapes and order.

    check: compares before and after (`aot.graph.check`). fold_limit: bytes by which folded constants may make the
    model larger. For the others see `chosen`. Raises UsageError for a pass that does not exist, and GraphError where
    `check` finds a pass that changes what the graph computes.
    """
    from aot.graph import run_passes
    from aot.graph.order import name_apart, sort
    from aot.passes.fold_constants import LIMIT

    passes = chosen(narrow=narrow, quantized=quantized, operator=operator, without=without)
    if fold_limit is not None:
        model.meta[LIMIT] = fold_limit
    before = _count(model)
    outputs = [(value.shape, value.type) for value in model.graph.outputs]
    start, checked = time.perf_counter(), check.seconds if check is not None else 0.0
    with _uncollected():
        name_apart(model)  # first, since what is skipped is reported by name
        done = run_passes(passes, model, check)
        name_apart(model)
        sort(model)
    for value, (shape, kind) in zip(model.graph.outputs, outputs, strict=True):
        value.shape, value.type = shape or value.shape, kind or value.type
    seconds = time.perf_counter() - start
    spent = check.seconds - checked if check is not None else 0.0
    return Optimized(before, _count(model), seconds - spent, tuple(done), check)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Garbage in cycles is left for later: it is little, the nodes that are gone, and the search for it goes through
    all that are there. What came to be here counts as old afterwards, else the search would begin at once."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            if not gc.get_freeze_count():
                gc.freeze()
                gc.unfreeze()
            gc.enable()


def _count(model: ir.Model) -> int:
    from aot.graph.state import walk

    return sum(1 for _ in walk(model.graph, everywhere=True))
