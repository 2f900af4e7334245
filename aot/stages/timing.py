"""Stage: how long a run of each engine takes, on the machine that they were built for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from aot import backend as backends
from aot import toolchain
from aot.profile import as_json
from aot.records import Engine, Timings
from aot.run import Run

if TYPE_CHECKING:
    from aot.declaration import ModelSpec
    from aot.plan import Plan

# Seconds that one sample takes at least, so that a clock's step is nothing in it.
SAMPLE = 0.005
# Samples of each engine for a profile: as many as fit into so many seconds, within bounds.
SECONDS = 5.0
FEWEST, MOST = 7, 60

Stopwatch = Callable[[int], float]


def time_engines(run: Run, engines: Mapping[str, Engine], spec: ModelSpec, plan: Plan) -> Timings:
    """Run engines of one model in turns, at the optimum of every profile, on generated inputs that stay where the
    engine reads them.

    engines: by a name. facts: ms (name -> the median milliseconds of a run, one for each profile), sizes (of every
    profile the Dims at their optimum), on (the GPU, or the CPU for engines that run there). Times hold for one
    machine and driver, and so does the record.
    """
    first = next(iter(engines.values()))
    backend = backends.get(str(first.facts["backend"]))
    machine = toolchain.machine()
    on = machine.cpu if backend.name == "onnxruntime" or machine.gpu is None else machine.gpu.name
    sizes = [{dim: opt for dim, (_, opt, _) in profile.items()} for profile in plan.profiles]

    def make(folder: Path) -> Mapping[str, Any]:
        from aot.batches import generated

        ms: dict[str, list[float]] = {name: [] for name in engines}
        with ExitStack() as stack:
            sessions = {
                name: stack.enter_context(backend.open(engine.plan, spec, plan.profiles, engine.weights))
                for name, engine in engines.items()
            }
            for index, at in enumerate(sizes):
                run.progress.step(index, len(sizes), "profiles")
                inputs = generated(spec, at, seed=0)
                for name, found in in_turns({name: s.stopwatch(inputs) for name, s in sessions.items()}).items():
                    ms[name].append(found)
            run.progress.step(len(sizes), len(sizes), "profiles")
        return {"ms": ms, "sizes": sizes, "on": on}

    return run.stage(
        Timings,
        "time",
        make,
        config={
            "engines": list(engines),
            "profiles": as_json(plan.profiles),
            "on": on,
            "driver": machine.driver,
        },
        inputs=list(engines.values()),
        tools=("numpy", "onnxruntime", "polygraphy"),
        detail=", ".join(engines),
    )


def in_turns(stopwatches: Mapping[str, Stopwatch]) -> dict[str, float]:
    """The median milliseconds of one run of each. A stopwatch does so many runs and gives their seconds.

    In turns, so that what slows the machine for a while slows all of them.
    """
    runs: dict[str, int] = {}
    whole = 0.0
    for name, stopwatch in stopwatches.items():
        stopwatch(1)  # the first run chooses, allocates, loads
        once = stopwatch(1)
        runs[name] = max(1, round(SAMPLE / max(once, 1e-6)))
        whole += once * runs[name]
    samples = min(MOST, max(FEWEST, int(SECONDS / max(whole, 1e-6))))
    taken: dict[str, list[float]] = {name: [] for name in stopwatches}
    for _ in range(samples):
        for name, stopwatch in stopwatches.items():
            taken[name].append(stopwatch(runs[name]) / runs[name])
    return {name: round(median(seconds) * 1e3, 5) for name, seconds in taken.items()}
