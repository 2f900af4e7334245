"""Stage: compare the final graph, and then every engine, with what eager PyTorch made of the same inputs."""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aot import backend, profile, toolchain
from aot.allowance import allowed
from aot.compare import compare, judge, worst
from aot.config import Budget
from aot.errors import DeclarationError, EngineError, ExportError
from aot.noise import SHARE, moves, share
from aot.progress import Progress
from aot.records import Case, Engine, GraphRecord, Program, References, Report
from aot.run import Run
from aot.stages import small_sizes

if TYPE_CHECKING:
    from aot.artifact import Prepared
    from aot.declaration import ModelSpec
    from aot.plan import Plan
    from aot.source import Runner, Source

TOOLS = ("numpy", "ml_dtypes", "polygraphy", "onnxruntime")
NO_SOURCE = "not run: the model's source did not travel"


# What an FP32 graph that says the same as eager keeps on any machine; more is a difference, not rounding.
FAITHFUL = Budget(cosine=0.9999, relative_l2=1e-3)


def verify_export(
    run: Run, source: Source, graph: GraphRecord, references: References, plan: Plan, *, requantized: bool
) -> Report:
    """Compare the FP32 graph with eager over all reference cases, before any precision is given up.

    facts: as of `verify_graph`, and moved: how far the outputs move with the last digit of the inputs, measured again
    at the cases that missed, since a model may be steadier at one case than at another. requantized: the source rounds
    its activations to 8 bits. Raises ExportError where they differ: a lower precision must not hide a graph that says
    something else.
    """
    spec = source.spec

    def make(folder: Path) -> Mapping[str, Any]:
        moved = references.moved
        with backend.get("onnxruntime").open(graph.model, spec, plan.profiles) as session:

            def compared() -> tuple[Budget, list[dict[str, Any]]]:
                budget = allowed(FAITHFUL, moved=moved, requantized=requantized)
                return budget, _compare_cases(session, references, spec.padding, budget, run.progress, "graph")

            faithful, cases = compared()
            missed = {case["name"] for case in cases if not case["accepted"]}
            if missed:
                again = [case for case in references.cases() if case.name in missed]
                with _unsteady(graph.model, folder, spec, plan) as unsteady:
                    moved = max(moved, _moved(source.eager(), again), _shaken(session, unsteady, again))
                faithful, cases = compared()
        facts = _write(folder, cases, None, faithful)
        if not facts["accepted"]:
            raise small_sizes.refusal(cases, references, source) or ExportError(
                f"the exported graph does not do what the model does: {facts['reasons'][0]}",
                where=f"model '{spec.name}', before any change of precision",
                fix=source.suspects,
            )
        return {**facts, "moved": moved}

    return run.stage(
        Report,
        "verify-export",
        make,
        config={"padding": spec.padding, "budget": FAITHFUL.model_dump(), "requantized": requantized},
        inputs=[graph, references],
        tools=TOOLS,
        label="verify export",
    )


def _moved(eager: Runner, cases: Sequence[Case]) -> float:
    """How far the least steady output moves with the last digit of the inputs; outputs that are noise apart."""
    shares = [share for case in cases for share in moves(eager, case.inputs, case.outputs).values()]
    return max((share for share in shares if share <= SHARE), default=0.0)


def _shaken(session: Runner, unsteady: Runner, cases: Sequence[Case]) -> float:
    """The same where every result in between moves in its last digit: integers, which inputs may all be, cannot."""
    pairs = [(session(case.inputs), unsteady(case.inputs)) for case in cases]
    shares = [share(before[name], after[name]) for before, after in pairs for name in before]
    return max((one for one in shares if one <= SHARE), default=0.0)


@contextmanager
def _unsteady(graph: Path, folder: Path, spec: ModelSpec, plan: Plan) -> Iterator[Runner]:
    """The graph with every result moved in its last digit (see `aot.graph.run.shaken`)."""
    import onnx
    import onnx_ir as ir

    from aot.graph.run import shaken

    model = onnx.load(graph, load_external_data=False)
    known = {value.name: value.type.tensor_type.elem_type for value in (*model.graph.value_info, *model.graph.output)}
    with tempfile.TemporaryDirectory(dir=folder, ignore_cleanup_errors=True) as name:
        scratch = Path(name)
        for beside in graph.parent.iterdir():
            if beside.name != graph.name:
                os.link(beside, scratch / beside.name)  # onnxruntime follows no symbolic link out of the folder
        onnx.save(shaken(model, lambda key: ir.DataType(known[key]) if key in known else None), scratch / graph.name)
        with backend.get("onnxruntime").open(scratch / graph.name, spec, plan.profiles) as session:
            yield session


def verify_graph(run: Run, source: Source, final: GraphRecord, references: References, plan: Plan) -> Report:
    """Run the final graph on onnxruntime (a program: on torch) over all reference cases, and the model's own metric
    where it has one.

    facts: ran, accepted, reasons, notices, failures, the worst cosine, relative_l2, max_abs, max_rel and
    flips over cases and outputs, metric ({eager, graph, drop} or None), cases (one line each);
    `report.json` holds every case and output.
    """
    spec = source.spec

    def make(folder: Path) -> Mapping[str, Any]:
        with _opened(final, spec, plan) as session:
            cases = _compare_cases(session, references, spec.padding, plan.budget, run.progress, "graph")
            metric = _score(source, session, run.progress, "graph") if spec.has_metric else None
        return _write(folder, cases, metric, plan.budget)

    return run.stage(
        Report,
        "verify",
        make,
        config={
            "budget": plan.budget.model_dump(),
            "padding": spec.padding,
            "score": source.score_key() if spec.has_metric else None,
        },
        inputs=[final, references, *([source.key] if spec.has_metric else [])],
        tools=TOOLS,
    )


def _opened(final: GraphRecord, spec: ModelSpec, plan: Plan) -> AbstractContextManager[Runner]:
    if isinstance(final, Program):
        from aot.frontend.program import Running

        return Running(final.model)
    return backend.get("onnxruntime").open(final.model, spec, plan.profiles)


def verify_engine(run: Run, engine: Engine, prepared: Prepared, plan: Plan, source: Source | None = None) -> Report:
    """Run an engine over the cases that its profiles hold, where this machine can; else say «built, not run» and why.

    The model's own metric needs `source`; a prepared artifact travels without it.
    """
    vendor = backend.get(str(engine.facts["backend"]))
    machine = toolchain.machine()
    reason = vendor.can_run(engine.target, machine)
    spec = prepared.spec

    def promised(case: Case) -> bool:
        shapes = {name: array.shape for name, array in case.inputs.items()}
        return profile.choose(spec, plan.profiles, shapes) is not None

    def make(folder: Path) -> Mapping[str, Any]:
        if reason is not None:
            return _unrun(folder, f"built, not run: {reason}")
        with vendor.open(engine.plan, spec, plan.profiles, engine.weights) as session:
            cases = _compare_cases(
                session, prepared.references, spec.padding, plan.budget, run.progress, "engine", promised
            )
            metric: Mapping[str, Any] | None = None
            if spec.has_metric:
                unscored = {"ran": False, "reason": NO_SOURCE}
                metric = _score(source, session, run.progress, "engine") if source is not None else unscored
        return _write(folder, cases, metric, plan.budget)

    return run.stage(
        Report,
        "verify-engine",
        make,
        config={
            "budget": plan.budget.model_dump(),
            "padding": spec.padding,
            "reason": reason,
            "profiles": profile.as_json(plan.profiles),
            "gpu": machine.gpu.name if machine.gpu else None,
            "driver": machine.driver,
            "score": source.score_key() if source is not None and spec.has_metric and reason is None else None,
        },
        # Models with equal graphs share a stripped plan, and each has weights of its own.
        inputs=[engine, prepared.references, *([prepared.final] if engine.weighed is not None else [])],
        tools=TOOLS,
        label=f"verify {engine.target}",
        detail="" if reason is None else f"built, not run: {reason}",
    )


def rejudge(facts: Mapping[str, Any], budget: Budget) -> list[str]:
    """What a budget says of a report made earlier, perhaps under another budget; empty where it is kept."""
    if not facts["ran"]:
        return []
    return [*facts["failures"], *judge(facts, budget), *judge_metric(facts["metric"], budget)]


def _compare_cases(
    session: Runner,
    references: References,
    padding: str | None,
    budget: Budget,
    progress: Progress,
    what: str,
    promised: Callable[[Case], bool] = lambda case: True,
) -> list[dict[str, Any]]:
    """Run the cases that were promised and compare each. Raises EngineError where that leaves none."""
    total = len(json.loads((references.path / "cases.json").read_text()))
    rows: list[dict[str, Any]] = []
    for done, case in enumerate(references.cases()):
        progress.step(done, total, case.name)
        if not promised(case):
            continue
        rows.append(compare_case(session, case, references, padding, budget, what))
    progress.step(total, total)
    if not rows:
        raise EngineError(
            "no reference case fits any optimization profile, so the engine cannot be compared",
            fix="prepare the model with this profile, so that references are made at its sizes",
        )
    return rows


def compare_case(
    session: Runner, case: Case, references: References, padding: str | None, budget: Budget, what: str
) -> dict[str, Any]:
    """Run one case and compare it with what eager made of it; one row of `report.json`."""
    got = session(case.inputs)
    wanted = {name: array for name, array in case.outputs.items() if name not in references.noise}
    verdict = compare(wanted, got, budget, inputs=case.inputs, padding=padding, names=("eager", what))
    structural = [
        f"case '{case.name}', output '{name}': {reason}"
        for name, metrics in verdict.outputs.items()
        for reason in judge(metrics.to_json(), Budget())
    ]
    return {
        "name": case.name,
        "kind": case.kind,
        "sizes": dict(case.sizes),
        **verdict.worst(),
        "accepted": verdict.accepted,
        "reasons": list(verdict.reasons),
        "failures": structural,
        "notices": list(verdict.notices),
        "outputs": {name: metrics.to_json() for name, metrics in verdict.outputs.items()},
    }


def _score(source: Source, session: Runner, progress: Progress, what: str) -> dict[str, float]:
    eager = score_of(source, source.eager(), progress, "eager")
    found = score_of(source, session, progress, what)
    return {"eager": eager, what: found, "drop": eager - found}


def score_of(source: Source, runner: Runner, progress: Progress, side: str) -> float:
    """The model's own metric of a runner. Raises DeclarationError where that is no finite number."""
    progress.step(0, 0, f"metric, {side}")
    value = source.score(runner)
    if value is None or not math.isfinite(value):
        raise DeclarationError(
            f"the metric of {side} is {value}, not a number to compare",
            where=f"the metric of model '{source.spec.name}'",
            fix="return one finite number, higher is better",
        )
    return float(value)


def judge_metric(metric: Mapping[str, Any] | None, budget: Budget) -> list[str]:
    """Why the metric misses its budget; empty where it keeps it, or where there is no limit or it was not run."""
    if budget.metric is None or (metric is not None and metric.get("ran") is False):
        return []
    if metric is None:
        return ["the budget limits the model's metric, and the model declares none"]
    if metric["drop"] > budget.metric:
        fallen = metric["eager"] - metric["drop"]
        return [f"the metric fell from {metric['eager']:.6g} to {fallen:.6g}, by more than {budget.metric:g}"]
    return []


def _write(
    folder: Path, cases: Sequence[Mapping[str, Any]], metric: Mapping[str, Any] | None, budget: Budget
) -> Mapping[str, Any]:
    by_case = [f"case '{case['name']}', {reason}" for case in cases for reason in case["reasons"]]
    reasons = [*by_case, *judge_metric(metric, budget)]
    report: dict[str, Any] = {
        "ran": True,
        "reason": None,
        "accepted": not reasons,
        **worst(cases),
        "metric": metric,
        "reasons": reasons,
        "failures": [reason for case in cases for reason in case["failures"]],
        "notices": sorted({notice for case in cases for notice in case["notices"]}),
        "budget": budget.model_dump(exclude_none=True),
    }
    (folder / "report.json").write_text(json.dumps(report | {"cases": list(cases)}, indent=1, allow_nan=False))
    brief = ("name", "kind", "sizes", "cosine", "relative_l2", "max_abs", "accepted")
    return report | {"cases": [{key: case[key] for key in brief} for case in cases]}


def _unrun(folder: Path, reason: str) -> Mapping[str, Any]:
    report: dict[str, Any] = {"ran": False, "reason": reason, "accepted": True, **worst([]), "metric": None}
    report |= {"reasons": [], "failures": [], "notices": [], "budget": {}, "cases": []}
    (folder / "report.json").write_text(json.dumps(report, indent=1))
    return report
