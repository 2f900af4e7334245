"""One build, read from top to bottom."""

from __future__ import annotations

from aot import artifact
from aot.artifact import Prepared
from aot.config import Request
from aot.plan import decide, decide_finish
from aot.progress import Progress
from aot.run import Run
from aot.source import open_source
from aot.stages.build import build_engine
from aot.stages.calibrate import calibrate
from aot.stages.collect import collect
from aot.stages.export import export
from aot.stages.package import Result, package
from aot.stages.quantize import quantize
from aot.stages.reference import reference
from aot.stages.surgery import surgery
from aot.stages.verify import verify_engine, verify_graph
from aot.store import Store


def build(request: Request, store: Store, progress: Progress) -> Result:
    """Build what the request asks for, doing only what the store does not already hold.

    Raises a subclass of AotError for whatever the user can put right.
    """
    run = Run(store, progress, fresh=request.fresh)
    prepared = artifact.load(request.model) if artifact.is_artifact(request.model) else prepare(request, run)
    return finish(request, prepared, run)


def prepare(request: Request, run: Run) -> Prepared:
    """Everything that needs no GPU: from the model to the final graph, compared with eager."""
    source = open_source(request, run)
    plan = decide(request, source.spec, source.project)

    exported = export(run, source)
    data = collect(run, source, plan)
    graph = surgery(run, exported, plan)
    ranges = calibrate(run, graph, data, plan)
    final = quantize(run, graph, ranges, plan)
    references = reference(run, source, data, plan)
    checked = verify_graph(run, source, final, references, plan)

    return Prepared(source.spec, plan, exported.nodes, final, ranges, references, checked)


def finish(request: Request, prepared: Prepared, run: Run) -> Result:
    """From the final graph to the artifact: an engine a target, each compared with the reference where it can run."""
    plan = decide_finish(request, prepared)

    engines = [build_engine(run, prepared.final, prepared.spec, plan, target) for target in plan.targets]
    reports = [verify_engine(run, engine, prepared, plan) for engine in engines]

    return package(run, prepared, plan, engines, reports, request.output)
