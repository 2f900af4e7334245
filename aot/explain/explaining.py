"""`explain`, read from top to bottom: the first stages of a build, then a look at what they made."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from aot import artifact, content, routes
from aot import backend as backends
from aot.backend import Backend, Unsupported
from aot.breaks import Break
from aot.config import Request
from aot.declaration import Dim, ModelSpec
from aot.errors import ExportError, GraphError, UsageError
from aot.explain.attention import attention
from aot.explain.breaks import breaks
from aot.explain.findings import Called, Explanation, Memory, Ops, Precision, Ranges, Refusal, Remark, Target
from aot.explain.memory import estimate
from aot.explain.ops import called, counted, remarks, replacements
from aot.explain.precision import rehearse
from aot.explain.targets import Wanted, settled, wanted
from aot.plan import Plan, decide, settings
from aot.plugins.replacing import decided
from aot.profile import Profile, shapes
from aot.progress import Progress
from aot.records import MODEL, Exported, Graph
from aot.run import Run
from aot.source import open_source, project_of
from aot.stages.export import export
from aot.stages.surgery import surgery
from aot.store import Store


def explain(request: Request, store: Store, progress: Progress) -> Explanation:
    """Say what a build of this request would break on, without building.

    The export and the rewrites are those of a build, under its keys; where every target is refused whatever the graph,
    there are none. Raises AotError for what no build begins with: a model that does not load, an option or a profile
    that cannot be, an artifact.
    """
    started = time.perf_counter()
    if artifact.is_artifact(request.model):
        raise UsageError(
            f"'{request.model}' is an artifact, of which nothing is exported any more",
            fix=f"aot inspect {request.model}",
        )
    run = Run(store, progress, fresh=request.fresh)
    read = settings(request, project_of(request.model))
    asked = wanted(request, read)
    source = open_source(request, run)
    plan = decide(request, settled(read, asked, request), source.spec)

    found = _Found()
    try:
        if any(one.refused is None for one in asked):
            exported = export(run, source, decided(request.patterns, plan))
            found.nodes["exported"] = exported.nodes
            graph = surgery(run, exported, plan)
            _look(found, request, source.spec, plan, exported, graph, asked)
    except ExportError as error:
        found.breaks = tuple(breaks(source, error))
    except GraphError as error:
        found.refusals = (Refusal(error.what, error.where, error.fix),)
    return Explanation(
        model=request.model,
        breaks=found.breaks,
        refusals=found.refusals,
        targets=tuple(found.targets) or tuple(_target(one, (), None) for one in asked),
        precision=found.precision,
        memory=found.memory,
        profiles=tuple(_ranges(source.spec, profile) for profile in plan.profiles),
        remarks=found.remarks,
        routes=_routes(found.breaks, plan),
        nodes=found.nodes,
        seconds=round(time.perf_counter() - started, 3),
    )


def _routes(breaks: Sequence[Break], plan: Plan) -> dict[str, str]:
    help_ = routes.helps(breaks, plan.precision) if plan.route == routes.ONNX else None
    return {} if help_ is None else {routes.TORCH_TENSORRT: help_}


@dataclass
class _Found:
    """What is known so far: an export or a graph that breaks leaves the rest as it is here."""

    breaks: tuple[Break, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    targets: list[Target] = field(default_factory=list)
    precision: Precision | None = None
    memory: Memory | None = None
    remarks: tuple[Remark, ...] = ()
    nodes: dict[str, int] = field(default_factory=dict)


def _look(
    found: _Found,
    request: Request,
    spec: ModelSpec,
    plan: Plan,
    exported: Exported,
    graph: Graph,
    asked: Sequence[Wanted],
) -> None:
    """Fill in everything that a graph shows. Raises GraphError where it cannot take the precision."""
    import onnx_ir as ir

    model = ir.load(graph.model)
    known = (*replacements(exported.replaced), *remarks(model))
    found.precision = rehearse(model, plan.recipe)
    found.remarks = (*known, *attention(model, plan, asked))
    found.nodes["final"] = len(model.graph)
    given = Path(request.model) if request.model.endswith(".onnx") else exported.model
    with TemporaryDirectory(prefix="aot-") as folder:
        final = Path(folder) / MODEL
        ir.save(model, final, external_data=f"{MODEL}.data")
        refused: dict[str, tuple[list[Unsupported], list[Unsupported]]] = {}
        for one in asked:
            if one.refused is not None:
                found.targets.append(_target(one, (), None))
                continue
            backend = backends.get(one.backend)
            if one.backend not in refused:
                refused[one.backend] = backend.unsupported(final), _before(backend, given)
            now, before = refused[one.backend]
            plugins = called(model, backend, one.target, content.names("plugins", plan.project))
            found.targets.append(_target(one, now, counted(model, one.backend, now, before, plugins), plugins))
    found.memory = estimate(model, spec, plan.profiles)


def _before(backend: Backend, given: Path) -> list[Unsupported]:
    """What the backend would not take of the graph as it was given."""
    try:
        return backend.unsupported(given)
    except GraphError:
        return []


def _target(one: Wanted, refused: Sequence[Unsupported], ops: Ops | None, plugins: tuple[Called, ...] = ()) -> Target:
    backend = backends.get(one.backend)
    return Target(
        target=one.target,
        backend=one.backend,
        version=backend.version(),
        asked=backend.judge() if ops is not None else None,
        refused=one.refused,
        ops=ops,
        unsupported=tuple(refused) if one.refused is None else (),
        notes=one.notes,
        plugins=plugins,
    )


def _ranges(spec: ModelSpec, profile: Profile) -> Ranges:
    inputs = {}
    for name, tensor in spec.inputs.items():
        network = [-1 if isinstance(size, Dim) else size for size in tensor.shape]
        inputs[name] = shapes(tensor, profile, network)
    return Ranges(dict(profile), inputs)
