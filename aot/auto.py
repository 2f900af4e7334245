"""`--precision auto`: the same model in every precision that its target can run, and the fastest of those that keep
their budget.

What each may lose is what a build of that precision may: the user's budget, else its recipe's. A precision is out where
the target lacks it, where its graph or its engine misses the budget, or where no engine comes of it. Of the others one
engine each is built on the GPU that it is for, and timed there (`stages/timing.py`); the rule is in `choice.py`. Where
that GPU is not, the artifact carries all of them, and `aot build` on it makes the choice where the GPU is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from aot import backend as backends
from aot import toolchain
from aot.artifact import Prepared
from aot.choice import CANDIDATES, Candidate, Choice, pick
from aot.config import AUTO_PRECISION, QUANTIZED, Precision, Request
from aot.errors import AotError, EngineError, GraphError, TargetError, UsageError
from aot.pipeline import finish as finish_one
from aot.pipeline import prepare
from aot.plan import Choices, Plan, choose, decide_finish
from aot.records import Engine, Report
from aot.run import Run
from aot.source import Source, open_source, project_of
from aot.stages.build import build_engine
from aot.stages.kernels import carrying
from aot.stages.package import Result, package
from aot.stages.timing import time_engines
from aot.stages.verify import rejudge, verify_engine

# Precision -> why it cannot be taken.
Out = Mapping[Precision, str]


@dataclass(frozen=True)
class Ready:
    """The model in one precision, and the plan that its engine is built by."""

    prepared: Prepared
    plan: Plan

    @property
    def precision(self) -> Precision:
        """What it is prepared in."""
        return self.plan.precision


@dataclass(frozen=True)
class Built(Ready):
    """The same with its engine, which was compared."""

    engine: Engine
    report: Report


def build(request: Request, run: Run) -> Result:
    """Build the model in the precision that is chosen; where no engine can be built here, prepare it in all of them.

    Raises UsageError for what contradicts a choice (a recipe, a route without one), TargetError where this machine
    cannot time engines for the target, and what a build of one precision raises where none can be prepared.
    """
    _check(request)
    run = replace(run, done=set())
    wanted: dict[Precision, Choices] = {}
    out: dict[Precision, str] = {}
    for precision in CANDIDATES:
        try:
            wanted[precision] = choose(_in(request, precision), project_of(request.model))
        except TargetError as error:
            if precision == CANDIDATES[0]:
                raise  # it is not the precision that the target lacks
            out[precision] = error.what
    _check_target(wanted[CANDIDATES[0]].backend, wanted[CANDIDATES[0]].targets)
    source = open_source(request, run)
    ready: list[Ready] = []
    refused: list[GraphError] = []
    for precision, choices in wanted.items():
        try:
            prepared = prepare(_in(request, precision), choices, source, run, precision)
        except GraphError as error:
            refused.append(error)
            out[precision] = error.what
        else:
            ready.append(Ready(prepared, prepared.plan))
    if not ready:
        raise refused[0]
    return _finish(request, ready, out, run, source)


def finish(request: Request, prepared: Prepared, run: Run) -> Result:
    """The second half, from an artifact that carries several precisions; one that the request names is taken as it is.

    Raises UsageError for one that the artifact does not hold, and what the second half of any build raises.
    """
    held = (prepared, *prepared.candidates)
    if request.precision not in (None, AUTO_PRECISION):
        for one in held:
            if one.plan.precision == request.precision:
                alone = replace(one, choice=None, candidates=())
                return finish_one(request, alone, decide_finish(request, alone), run)
        raise UsageError(
            f"the artifact was prepared in {', '.join(one.plan.precision for one in held)}, not {request.precision}",
            where=request.model,
            fix=f"leave --precision away, or build from the model with --precision {request.precision}",
        )
    assert prepared.choice is not None
    out = {one.precision: one.out for one in prepared.choice.candidates if one.out is not None}
    request = request.model_copy(update={"precision": None})
    ready: list[Ready] = []
    for one in held:
        try:
            ready.append(Ready(one, decide_finish(request, one)))
        except TargetError as error:
            if one is prepared:
                raise
            out[one.plan.precision] = error.what
    _check_target(ready[0].plan.backend, ready[0].plan.targets)
    return _finish(request, ready, out, run)


def _in(request: Request, precision: Precision) -> Request:
    return request.model_copy(update={"precision": precision})


def _check(request: Request) -> None:
    """Raise UsageError for what would settle the precision, or leaves nothing to choose from."""
    if request.calibration is not None:
        raise UsageError(
            f"a recipe is for one precision, and --precision auto compares {', '.join(CANDIDATES)}",
            where=f"--calibration {request.calibration}",
            fix="leave one of the two away; files calib/int8.yaml and calib/fp8.yaml beside the model change what auto "
            "builds in each",
        )
    if request.route not in (None, "onnx"):
        raise UsageError(
            f"the route {request.route} has neither int8 nor fp8, so there is nothing to choose",
            where=f"--route {request.route}",
            fix="--precision fp16, or leave --route away",
        )


def _check_target(backend: str | None, targets: Sequence[str]) -> None:
    """Raise TargetError where engines for the targets could not be timed here. No target: nothing will be."""
    if backend is None or not targets:
        return
    here = "--until graph here, and aot build on the prepared artifact where the GPU is; or name a precision"
    if len(targets) > 1:
        raise TargetError(
            "--precision auto takes the precision that is fastest on one GPU, and these are several",
            where="--target " + " --target ".join(targets),
            fix="build for one at a time; what they share is done once",
        )
    reason = backends.get(backend).can_run(targets[0], toolchain.machine())
    if reason is not None:
        raise TargetError(
            f"--precision auto times engines on the GPU that they are for: {reason}",
            where=f"--backend {backend} --target {targets[0]}",
            fix=here,
        )


def _finish(request: Request, ready: Sequence[Ready], out: Out, run: Run, source: Source | None = None) -> Result:
    """Build, compare and time what can be taken; package what is chosen."""
    known = {precision: Candidate(precision, why) for precision, why in out.items()}
    known |= {one.precision: _judged(one) for one in ready}
    able = [one for one in ready if known[one.precision].out is None]
    if not able:
        return _alone(request, ready[0], known, run, source)
    if not able[0].plan.targets:
        return _carried(request, able, known, run)

    built: list[Built] = []
    refused: list[AotError] = []
    for one in able:
        try:
            done = _built(one, replace(run, of=one.precision), source)
        except (EngineError, GraphError) as error:
            refused.append(error)
            known[one.precision] = replace(known[one.precision], out=f"no engine comes of it: {error.what}")
        else:
            built.append(done)
            known[one.precision] = _judged(done, done.report)
    if not built:
        raise refused[0]
    good = [one for one in built if known[one.precision].out is None]
    if not good:
        return _packed(request, built[0], _none(built[0], known), run)
    choice = _chosen(good, known, run)
    chosen = next(one for one in good if one.precision == choice.precision)
    return _packed(request, chosen, choice, run)


def _built(one: Ready, run: Run, source: Source | None) -> Built:
    (target,) = one.plan.targets
    prepared = carrying(run, one.prepared, one.plan)
    kernels = next((found for found in prepared.kernels if found.target == target), None)
    engine = build_engine(run, prepared.final, prepared.spec, one.plan, target, kernels)
    report = verify_engine(run, engine, prepared, one.plan, source)
    return Built(prepared, one.plan, engine, report)


def _judged(one: Ready, engine: Report | None = None) -> Candidate:
    """What is known of a precision before it is timed; out where it quantizes nothing, or misses the budget."""
    checked = one.prepared.checked.facts
    reasons = []
    if one.precision in QUANTIZED and not one.prepared.final.facts["ops"]:
        reasons.append(f"nothing in the graph is quantized to {one.precision}")
    reasons += [f"the graph misses the budget: {reason}" for reason in rejudge(checked, one.plan.budget)]
    facts = checked
    if engine is not None and engine.facts["ran"]:
        facts = engine.facts
        reasons += [f"the engine misses the budget: {reason}" for reason in rejudge(facts, one.plan.budget)]
    return Candidate(one.precision, reasons[0] if reasons else None, facts["cosine"], facts["relative_l2"])


def _chosen(good: Sequence[Built], known: Mapping[Precision, Candidate], run: Run) -> Choice:
    """Time what can be taken, where that is more than one, and pick."""
    if len(good) == 1:
        return pick(_ordered(known))
    engines: dict[str, Engine] = {one.precision: one.engine for one in good}
    timings = time_engines(run, engines, good[0].prepared.spec, good[0].plan).facts
    timed = {name: tuple(timings["ms"][name]) for name in engines}
    found = [replace(one, ms=timed.get(one.precision, ())) for one in _ordered(known)]
    return pick(found, timings["on"], timings["sizes"])


def _ordered(known: Mapping[Precision, Candidate]) -> tuple[Candidate, ...]:
    return tuple(known[precision] for precision in CANDIDATES if precision in known)


def _none(one: Ready, known: Mapping[Precision, Candidate]) -> Choice:
    """The choice where nothing can be taken: the widest, which is then not accepted."""
    return Choice(one.precision, "nothing keeps the budget, and this is the widest", _ordered(known))


def _alone(
    request: Request, one: Ready, known: Mapping[Precision, Candidate], run: Run, source: Source | None
) -> Result:
    prepared = replace(one.prepared, choice=_none(one, known), candidates=())
    return finish_one(request, prepared, one.plan, run, source)


def _packed(request: Request, chosen: Built, choice: Choice, run: Run) -> Result:
    prepared = replace(chosen.prepared, choice=choice, candidates=())
    return package(run, prepared, chosen.plan, [chosen.engine], [chosen.report], request.output)


def _carried(request: Request, able: Sequence[Ready], known: Mapping[Precision, Candidate], run: Run) -> Result:
    """A prepared artifact that carries everything that may still be taken."""
    first, *others = (carrying(run, one.prepared, one.plan) for one in able)
    pending = Choice(None, "not made yet: it takes the GPU that the engine is for", _ordered(known))
    choice = pending if others else pick(_ordered(known))
    prepared = replace(first, choice=choice, candidates=tuple(others))
    return package(run, prepared, able[0].plan, [], [], request.output)
