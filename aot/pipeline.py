"""One build, read from top to bottom."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from aot import artifact, routes
from aot.allowance import allowed
from aot.artifact import Prepared
from aot.config import AUTO_PRECISION, Request, merged
from aot.errors import UsageError
from aot.lock import ledger
from aot.plan import Choices, Plan, choose, decide, decide_finish
from aot.plugins.replacing import decided
from aot.progress import Progress
from aot.report.command import command_of
from aot.run import Run
from aot.source import Source, open_source, project_of
from aot.stages.build import build_engine
from aot.stages.calibrate import calibrate, uncalibrated
from aot.stages.collect import collect
from aot.stages.export import export
from aot.stages.kernels import carrying
from aot.stages.package import Result, package
from aot.stages.program import capture
from aot.stages.quantize import quantize
from aot.stages.reference import reference
from aot.stages.repair import repair, searchable
from aot.stages.surgery import surgery
from aot.stages.verify import verify_engine, verify_export, verify_graph
from aot.store import Store


def build(request: Request, store: Store, progress: Progress) -> Result:
    """Build what the request asks for, doing only what the store does not already hold.

    Raises a subclass of AotError for whatever the user can put right.
    """
    run = Run(store, progress, fresh=request.fresh, command=command_of(request))
    if request.locked and request.precision == AUTO_PRECISION:
        raise UsageError(
            "a lock is of one precision, and auto may come to another",
            where="--precision auto --locked",
            fix="name the precision that was taken: aot inspect says which",
        )
    outputs = [request.output] if request.output is not None else []
    if artifact.is_artifact(request.model):
        run.ledger = ledger(request, [*outputs, Path(request.model)])
        prepared = artifact.load(request.model)
        if prepared.candidates:
            from aot import auto

            return auto.finish(request, prepared, run)
        return finish(request, prepared, decide_finish(request, prepared), run)
    if request.precision == AUTO_PRECISION:
        from aot import auto

        run.ledger = ledger(request, outputs)
        return auto.build(request, run)
    choices = choose(request, project_of(request.model))
    source = open_source(request, run)
    run.ledger = ledger(request, outputs or [Path(f"{source.spec.name}.aot")])
    prepared = prepare(request, choices, source, run)
    return finish(request, prepared, prepared.plan, run, source)


def prepare(request: Request, choices: Choices, source: Source, run: Run, of: str = "") -> Prepared:
    """Everything that needs no GPU: from the model to the final graph, compared with eager before and after.

    of: the precision, where it is one of several; what is not the same for all of them is told with it.
    """
    plan = decide(request, choices, source.spec)
    run.ledger.begin(request, plan, source)
    if plan.route == routes.TORCH_TENSORRT:
        return prepare_program(source, plan, run)

    exported = export(run, source, decided(request.patterns, plan))
    data = collect(run, source, plan)
    graph = surgery(run, exported, plan)
    references = reference(run, source, data, plan)
    faithful = verify_export(run, source, graph, references, plan, requantized=exported.requantized)
    held = allowed(plan.budget, moved=faithful.facts["moved"], requantized=exported.requantized)
    plan = replace(plan, budget=merged(held, request.budget))

    ranges = calibrate(run, graph, data, plan, request.workers)
    run = replace(run, of=of)
    final = quantize(run, graph, ranges, plan)
    checked = verify_graph(run, source, final, references, plan)
    search = None
    if request.search and not checked.facts["accepted"] and searchable(plan.recipe):
        search = repair(run, source, graph, ranges, references, final, checked, plan)
        if search.facts["met"]:
            plan = replace(plan, recipe=search.applied(plan.recipe))
            final = quantize(run, graph, ranges, plan)
            checked = verify_graph(run, source, final, references, plan)

    return Prepared(
        source.spec, plan, exported.nodes, final, ranges, references, checked, search, replaced=exported.replaced
    )


def prepare_program(source: Source, plan: Plan, run: Run) -> Prepared:
    """The same for the second route: an exported program, compared with eager, in place of a graph."""
    data = collect(run, source, plan)
    program = capture(run, source, plan)
    references = reference(run, source, data, plan)
    checked = verify_graph(run, source, program, references, plan)
    return Prepared(source.spec, plan, program.nodes, program, uncalibrated(run, program), references, checked)


def finish(request: Request, prepared: Prepared, plan: Plan, run: Run, source: Source | None = None) -> Result:
    """From the final graph to the artifact: an engine a target, each compared with the reference where it can run.

    `source` scores the engines with the model's own metric; a prepared artifact has travelled without it.
    """
    if source is None:
        run.ledger.begin(request, plan, None)
    run.ledger.graph(prepared.final)
    prepared = carrying(run, prepared, plan)
    held = {one.target: one for one in prepared.kernels}
    engines = [
        build_engine(run, prepared.final, prepared.spec, plan, target, held.get(target)) for target in plan.targets
    ]
    reports = [verify_engine(run, engine, prepared, plan, source) for engine in engines]

    return package(run, prepared, plan, engines, reports, request.output)
