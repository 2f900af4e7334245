"""A benchmark, read from top to bottom."""

from __future__ import annotations

import datetime
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from aot import __version__, toolchain
from aot.bench import noise, tools
from aot.bench.contender import Job
from aot.bench.lane import Lane
from aot.bench.measuring import Effort, Question, Surroundings, measure
from aot.bench.meters import Meters
from aot.bench.opening import Given, Sizes, full, open_all
from aot.bench.worker import Failed, Worker
from aot.errors import UsageError
from aot.text import sizes as sizes_text

if TYPE_CHECKING:
    from aot.arrays import Arrays
    from aot.profile import Triple
    from aot.run import Run

PACKAGES = ("torch", "torch-tensorrt", "triton", "onnxruntime", "onnxruntime-gpu", "tensorrt", "cuda-bindings", "numpy")
SECONDS = 10.0
"""For each contender at each size, where nothing else is asked for."""


@dataclass(frozen=True)
class Options:
    """One call of `aot bench`. against None: whatever can run. precision: what torch computes in; None: what the
    engine's layers do that are not quantized, on a GPU, and what the model declares on a CPU."""

    things: Sequence[str]
    model: str | None = None
    against: Sequence[str] | None = None
    sizes: Sequence[Sizes] = ()
    dims: Mapping[str, Triple] | None = None
    precision: str | None = None
    effort: Effort = field(default_factory=partial(Effort, None, SECONDS))


def bench(options: Options, run: Run) -> dict[str, Any]:
    """Measure; return what `--json` prints: {artifact, date, machine, versions, clocks, rows, warnings, interrupted}.

    Raises a subclass of AotError for whatever the user can put right, before anything is measured.
    """
    wanted = list(tools.AGAINST) if options.against is None else tools.checked(list(options.against))
    given = open_all(options.things, options.model, options.dims or {}, run)
    if not given.artifacts and not wanted:
        raise UsageError("nothing to run: --against names no contender", fix="leave it out for all that can run here")
    every = full(given.spec, options.sizes or given.sizes())
    machine, threads = toolchain.machine(), len(toolchain.cpus())
    jobs = _jobs(given, wanted, options, run, machine.gpu is not None, threads)
    meters = Meters.open()
    rows: list[dict[str, Any]] = []
    seen: list[Surroundings] = []
    warnings: list[str] = []
    try:
        for sizes in every:
            started = time.monotonic()
            run.progress.stage("bench", sizes_text(sizes))
            inputs = given.inputs(sizes, options.effort.seed)
            lanes = [Lane(name, tool, job, failed=reason) for name, tool, job, reason in jobs]
            around = measure(lanes, _question(given, inputs, options, threads), options.effort, meters, run.progress)
            seen.append(around)
            rows += [lane.row(sizes, _items(given, sizes)) for lane in lanes]
            warnings += noise.warnings(sizes_text(sizes), lanes, around)
            run.progress.finished("bench", time.monotonic() - started, False, sizes_text(sizes))
            if around.interrupted:
                break
    except KeyboardInterrupt:  # between two sizes
        seen.append(Surroundings(interrupted=True))
    finally:
        meters.close()
    gpu = machine.gpu
    return {
        "artifact": next(iter(given.artifacts), None),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": {
            "cpu": machine.cpu,
            "threads": threads,
            "gpu": gpu.name if gpu else None,
            "gpu_bytes": gpu.memory if gpu else None,
            "driver": machine.driver,
        },
        "versions": {
            "aot": __version__,
            "python": platform.python_version(),
            **{name: found for name in PACKAGES if (found := toolchain.version(name)) is not None},
        },
        "clocks": noise.clocks(seen),
        "rows": rows,
        "warnings": warnings,
        "interrupted": any(around.interrupted for around in seen),
    }


def _jobs(
    given: Given, wanted: Sequence[str], options: Options, run: Run, gpu: bool, threads: int
) -> list[tuple[str, str, Job | None, str | None]]:
    """(name, tool, job, None), or (name, tool, None, why it cannot run), the artifacts first."""
    dims = dict(options.dims or {})
    names = _names(list(given.artifacts))
    found: list[tuple[str, str, Job | None, str | None]] = []
    for name, prepared in given.artifacts.items():
        job = Job(tools.AOT, name, prepared.plan.precision, gpu, threads, dims)
        found.append((names[name], tools.AOT, job, None))
    facts = tools.Facts(given.model is not None, given.onnx is not None, gpu, toolchain.version)
    precision = options.precision or _precision(given, gpu)
    onnx = given.onnx
    for tool in wanted:
        reason = tools.why_not(tool, facts)
        if reason is not None:
            found.append((tool, tool, None, reason))
            continue
        if tool in tools.PROVIDERS and onnx is None:
            onnx = _exported(given, run)
        source = onnx if tool in tools.PROVIDERS else given.model
        assert source is not None
        found.append((tool, tool, Job(tool, source, precision, gpu, threads, dims), None))
    return found


def _precision(given: Given, gpu: bool) -> str:
    """fp16 or bf16 where the first artifact's engine has it, for a peer should be given the same."""
    recipe = next((prepared.plan.recipe for prepared in given.artifacts.values()), None)
    return recipe.compute if recipe is not None and gpu else "fp32"


def _exported(given: Given, run: Run) -> str:
    """The model as ONNX, kept in the store."""
    from aot.stages.export import export

    assert given.source is not None
    return str(export(run, given.source).model)


def _question(given: Given, inputs: Arrays, options: Options, threads: int) -> Question:
    """With the answers of eager in FP32, of the ONNX file without a model, or what travels in the first artifact."""
    padding = given.spec.padding
    reference = given.model or given.onnx
    if reference is None:
        prepared = next(iter(given.artifacts.values()))
        return Question(inputs, padding, cases=[(case.inputs, case.outputs) for case in prepared.references.cases()])
    tool = tools.REFERENCE if given.model else "onnxruntime-cpu"
    gpu = toolchain.machine().gpu is not None
    worker = Worker(Job(tool, reference, "fp32", gpu, threads, dict(options.dims or {})))
    try:
        worker.ask("start")
        answers = worker.ask("first", dict(inputs))["outputs"]
    except Failed as error:
        return Question(inputs, padding, unanswered=f"the reference, {reference} in FP32, gives none: {error}")
    finally:
        worker.close()
    return Question(inputs, padding, answers)


def _items(given: Given, sizes: Sizes) -> int:
    """How many a call has: the size of the first input's first axis where that is a Dim, else one."""
    shape = next(iter(given.spec.inputs.values())).shape
    return sizes.get(getattr(shape[0], "name", ""), 1) if shape else 1


def _names(artifacts: Sequence[str]) -> dict[str, str]:
    """What each artifact's row is called: unlike every other's, and no longer than it takes."""
    if len(artifacts) == 1:
        return {artifacts[0]: tools.AOT}
    stems = [_stem(name) for name in artifacts]
    return {
        name: f"aot {stem if stems.count(stem) == 1 else name}" for name, stem in zip(artifacts, stems, strict=True)
    }


def _stem(name: str) -> str:
    return name.rstrip("/").rpartition("/")[2].removesuffix(".aot").removesuffix(".tar")
