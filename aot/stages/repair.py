"""Stage: where the final graph misses its budget, find the nodes to keep wide so that it holds."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aot.config import Recipe
from aot.records import Graph, QuantizedGraph, Ranges, References, Repair, Report
from aot.report.search import sentences
from aot.run import Run

if TYPE_CHECKING:
    from aot.layers.errors import LayerError
    from aot.plan import Plan
    from aot.search.trials import Bench, Trial
    from aot.search.units import Unit
    from aot.source import Source

# Graphs that one search makes and compares, at most. Bisection takes 10 for a thousand nodes; leaving out what is not
# needed takes a few for each node that is.
TRIALS = 64


def searchable(recipe: Recipe) -> bool:
    """Whether anything can be kept wider than the recipe has it: FP32 is the widest, and a strict recipe forbids it."""
    return recipe.precision != "fp32" and not recipe.strict


def repair(
    run: Run,
    source: Source,
    graph: Graph,
    ranges: Ranges,
    references: References,
    final: QuantizedGraph,
    checked: Report,
    plan: Plan,
) -> Repair:
    """Find a set of nodes that is enough to keep the budget and from which none can be left out.

    One run of `graph` and `final` side by side says at which layers the error of the outputs enters
    (`aot/layers/shares.py`). Nodes are sorted by that gain per cost in operations, and sets of them are tried: the
    graph is made with the set kept wide and compared with the references. First layers are kept in the compute dtype;
    where that cannot be enough, any node in FP32. See `Repair` for the facts; `layers.json` holds the errors by layer.
    """

    def make(folder: Path) -> Mapping[str, Any]:
        return _Search(run, source, graph, ranges, references, final, checked, plan).facts(folder)

    record = run.stage(
        Repair,
        "search",
        make,
        config={
            "budget": plan.budget.model_dump(),
            "padding": source.spec.padding,
            "score": source.score_key() if plan.budget.metric is not None else None,
        },
        inputs=[final, graph, ranges, references, checked],
        tools=("onnx", "onnx-ir", "onnxruntime", "numpy", "ml_dtypes", "polygraphy"),
        detail=f"what to keep wide: {checked.facts['reasons'][0]}",
    )
    for sentence in sentences(record.facts):
        run.progress.warn(sentence)
    return record


class _Search:
    def __init__(
        self,
        run: Run,
        source: Source,
        graph: Graph,
        ranges: Ranges,
        references: References,
        final: QuantizedGraph,
        checked: Report,
        plan: Plan,
    ) -> None:
        from aot.search.trials import Bench, Trial

        self.progress = run.progress
        self.graph = graph
        self.references = references
        self.final = final
        self.recipe = plan.recipe
        self.checked = checked.facts
        self.worst_first = [case["name"] for case in sorted(self.checked["cases"], key=_badness)]
        metric = self.checked["metric"] if plan.budget.metric is not None else None
        self.bench: Bench = Bench(
            run, source, graph, ranges, references, plan, self.worst_first, metric["eager"] if metric else None
        )
        asked = Trial(
            met=False,
            case=self.worst_first[0],
            cosine=self.checked["cosine"],
            relative_l2=self.checked["relative_l2"],
            reasons=tuple(self.checked["reasons"]),
            decisions=tuple(final.facts["decisions"]),
        )
        self.known: dict[Recipe, Trial] = {plan.recipe: asked}
        self.spent = False

    def facts(self, folder: Path) -> Mapping[str, Any]:
        from aot.search.costs import operations, shapes_at
        from aot.search.minimal import enough, minimal
        from aot.search.units import levels, units

        errors = self._errors(folder)
        graph = self._ir()
        given = {name: array.shape for name, array in self.case.inputs.items()}
        measured = {error.value: error.shape for error in errors}
        costs = operations(graph, shapes_at(graph, given) | given | measured)
        tried: list[tuple[str, Trial]] = []
        for level in levels(self.recipe):
            candidates = units(level, self.recipe, self.final.facts["decisions"], errors, costs)
            if not candidates:
                continue
            self.progress.step(0, 0, f"everything in {level}")
            tried.append((level, self._try(candidates)))
            if tried[-1][1].met:
                begin = enough(candidates, lambda kept: self._try(kept).met)
                kept = minimal(begin, lambda kept: self._try(kept).met)
                return self._found(kept, candidates, costs, tried)
        return self._not_found(tried)

    def _errors(self, folder: Path) -> Sequence[LayerError]:
        from aot.layers.errors import layer_errors

        self.progress.step(0, 0, f"layer by layer, case {self.worst_first[0]}")
        self.case = next(self.references.cases(self.worst_first))
        found = layer_errors(self.graph.model, self.final.model, [self.case.inputs], self.progress)
        rows = [row.to_json() for row in found.rows]
        (folder / "layers.json").write_text(json.dumps({"case": self.case.name, "rows": rows}, indent=1))
        return found.rows

    def _ir(self) -> Any:
        import onnx_ir as ir

        return ir.load(self.graph.model).graph

    def _try(self, kept: Sequence[Unit]) -> Trial:
        """What the recipe that keeps these comes to; each is tried once. Raises Spent where no more are allowed."""
        from aot.search.minimal import Spent
        from aot.search.units import keeping

        recipe = keeping(self.recipe, kept)
        if recipe not in self.known:
            if self._trials() == TRIALS:
                self.spent = True
                raise Spent
            trial = self.known[recipe] = self.bench(recipe)
            answer = "kept" if trial.met else "missed"
            said = "" if trial.cosine is None else f", cosine {trial.cosine:.5f}"
            self.progress.step(self._trials(), 0, f"{len(kept)} kept wide: budget {answer}{said}")
        return self.known[recipe]

    def _trials(self) -> int:
        return len(self.known) - 1  # but for the recipe as it was asked for, which the build has compared

    def _without(self, kept: Sequence[Unit], left: Unit) -> dict[str, Any] | None:
        """The numbers when one of the kept nodes is not; None where no trial is left for that."""
        from aot.search.minimal import Spent

        try:
            return self._try([unit for unit in kept if unit is not left]).numbers()
        except Spent:
            return None

    def _found(
        self,
        kept: Sequence[Unit],
        candidates: Sequence[Unit],
        costs: Mapping[str, int],
        tried: Sequence[tuple[str, Trial]],
    ) -> Mapping[str, Any]:
        from aot.search.units import keeping, share_in

        trial, exhausted = self._try(kept), self.spent
        recipe = keeping(self.recipe, kept)
        low = self.recipe.precision
        rows = [
            {
                "node": unit.node,
                "op": unit.op,
                "module": unit.module,
                "source": unit.source,
                "was": unit.was,
                "kept": unit.wide,
                "operations": unit.cost,
                "share": min(unit.gain, 1.0),
                "without": self._without(kept, unit),
            }
            for unit in kept
        ]
        return {
            "met": True,
            "why": "",
            "kept": rows,
            "keep": {"layers": list(recipe.placement.keep), "fp32": list(recipe.keep)},
            "before": self.known[self.recipe].numbers(),
            "after": trial.numbers(),
            "wide": {"precision": tried[-1][0], **tried[-1][1].numbers()},
            "low": {
                "precision": low,
                "before": share_in(low, self.final.facts["decisions"], costs),
                "after": share_in(low, trial.decisions, costs),
            },
            "candidates": len(candidates),
            "trials": self._trials(),
            "exhausted": exhausted,
        }

    def _not_found(self, tried: Sequence[tuple[str, Trial]]) -> Mapping[str, Any]:
        if tried:
            level, trial = tried[-1]
            why = f"even with every node in {level}, {trial.reasons[0]}"
        else:
            level, trial = self.recipe.precision, None
            why = f"no node is in {self.recipe.precision}, so none can be kept wider"
        return {
            "met": False,
            "why": why,
            "kept": [],
            "keep": {"layers": list(self.recipe.placement.keep), "fp32": list(self.recipe.keep)},
            "before": self.known[self.recipe].numbers(),
            "after": None,
            "wide": None if trial is None else {"precision": level, **trial.numbers()},
            "low": None,
            "candidates": 0,
            "trials": self._trials(),
            "exhausted": False,
        }


def _badness(case: Mapping[str, Any]) -> tuple[bool, float]:
    """Cases that missed first, the least cosine first."""
    cosine = case["cosine"]
    return bool(case["accepted"]), cosine if cosine is not None and math.isfinite(cosine) else 1.0
