"""Trying a recipe: the final graph it makes, compared with the references until a case misses the budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aot import backend, folders
from aot.compare import worst
from aot.config import Recipe
from aot.progress import Silent
from aot.records import Graph, Ranges, References, Report
from aot.run import Run
from aot.stages import quantize
from aot.stages.verify import TOOLS, compare_case, judge_metric, score_of

if TYPE_CHECKING:
    from aot.plan import Plan
    from aot.source import Source


@dataclass(frozen=True)
class Trial:
    """What came of a recipe. met: every case and the metric keep the budget. case: the one that missed, else the worst.
    cosine, relative_l2: of that case. reasons: why it missed. decisions: node and precision, one a node."""

    met: bool
    case: str
    cosine: float | None
    relative_l2: float | None
    reasons: tuple[str, ...]
    decisions: tuple[Mapping[str, Any], ...]

    def numbers(self) -> dict[str, Any]:
        """Plain data. missed: the first reason, None where the budget holds."""
        missed = next(iter(self.reasons), None)
        return {"case": self.case, "cosine": self.cosine, "relative_l2": self.relative_l2, "missed": missed}


class Bench:
    """Tries recipes for one graph. `first` names the cases to run first: those most likely to miss.

    Each result is kept in the store, so that a search that was interrupted goes on where it was.
    """

    def __init__(
        self,
        run: Run,
        source: Source,
        graph: Graph,
        ranges: Ranges,
        references: References,
        plan: Plan,
        first: Sequence[str],
        eager_score: float | None,
    ) -> None:
        self.run = Run(run.store, Silent(), fresh=run.fresh)
        self.progress = run.progress
        self.source = source
        self.graph = graph
        self.ranges = ranges
        self.references = references
        self.plan = plan
        self.first = list(first)
        self.eager_score = eager_score

    def __call__(self, recipe: Recipe) -> Trial:
        """Raises GraphError where the graph cannot take the recipe."""
        plan, scored = self.plan, self.plan.budget.metric is not None
        observed = self.ranges.observed
        record = self.run.stage(
            Report,
            "trial",
            lambda folder: self._tried(recipe, folder),
            config={
                "recipe": recipe.model_dump(mode="json", exclude={"budget"}),
                "budget": plan.budget.model_dump(),
                "padding": self.source.spec.padding,
                "first": self.first,
                "score": [self.source.key, self.source.score_key()] if scored else None,
            },
            inputs=[self.graph, self.ranges, self.references, *([observed] if observed is not None else [])],
            tools=(*quantize.TOOLS, *TOOLS),
        )
        facts = record.facts
        return Trial(
            met=facts["met"],
            case=facts["case"],
            cosine=facts["cosine"],
            relative_l2=facts["relative_l2"],
            reasons=tuple(facts["reasons"]),
            decisions=tuple(facts["decisions"]),
        )

    def _tried(self, recipe: Recipe, folder: Path) -> Mapping[str, Any]:
        scratch = folder / "graph"
        scratch.mkdir()
        made = quantize.write(self.graph, self.ranges, recipe, scratch)
        spec, budget = self.source.spec, self.plan.budget
        rows: list[dict[str, Any]] = []
        reasons: list[str] = []
        with backend.get("onnxruntime").open(scratch / "model.onnx", spec, self.plan.profiles) as session:
            for case in self.references.cases(self.first):
                rows.append(compare_case(session, case, self.references, spec.padding, budget, "graph"))
                if not rows[-1]["accepted"]:
                    reasons = [f"case '{case.name}', {reason}" for reason in rows[-1]["reasons"]]
                    break
            if not reasons and self.eager_score is not None:
                drop = self.eager_score - score_of(self.source, session, self.progress, "graph")
                reasons = judge_metric({"eager": self.eager_score, "drop": drop}, budget)
        folders.remove(scratch)
        missed = [row for row in rows if not row["accepted"]] or rows
        shown = min(missed, key=lambda row: row["cosine"] if row["cosine"] is not None else 1.0)
        return {
            "met": not reasons,
            "case": shown["name"],
            "cosine": worst([shown])["cosine"],
            "relative_l2": worst([shown])["relative_l2"],
            "reasons": reasons,
            "decisions": [{key: one[key] for key in ("node", "op", "precision")} for one in made["decisions"]],
        }
