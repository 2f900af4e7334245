"""What the runtime adds to an engine: time a call over the bare launch, the first call after loading, many threads.

    python benchmarks/runtime.py ARTIFACT... [--size batch=1] [--calls 10000] [--threads 8]

On a GPU the bare contenders are `cuGraphLaunch` of a captured run and `execute_async_v3`, with inputs and outputs in
place; on onnxruntime they are `InferenceSession.run`. All take turns, and each call is waited for. Writes
`benchmarks/results/runtime.json`, a row a contender and size:

    tool        bare-graph, bare-enqueue, bare-session, bound, session-gpu (CuPy or torch), session-numpy, threads
    p50_ms, p99_ms, overhead_us     of one call; its median over that of the bare graph (or session)
    load_seconds, first_ms, warm_first_ms   loading with digests; the first call of a fresh session, and after warm_up
    calls, threads, throughput, device_growth_bytes, host_growth_bytes, wrong       of a load of threads
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import numpy as np
from _result import write

import aot
from aot.bench import memory
from aot.runtime import Session

RUNS, ROUNDS, BARE = 50, 20, ("bare-graph", "bare-session")
Run = Callable[[], Any]


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description="What the runtime adds to an engine.")
    parser.add_argument("artifacts", nargs="+", metavar="ARTIFACT")
    parser.add_argument("--size", action="append", default=[], metavar="NAME=N,...", help="default: every optimum")
    parser.add_argument("--calls", type=int, default=10_000, help="of the load of threads; 0: none")
    parser.add_argument("--threads", type=int, default=8)
    arguments = parser.parse_args()
    sizes = [dict((name, int(n)) for name, n in (p.split("=") for p in one.split(","))) for one in arguments.size]
    rows: list[dict[str, Any]] = []
    for artifact in arguments.artifacts:
        rows += measured(artifact, sizes)
        if arguments.calls:
            rows.append({"model": Path(artifact).stem, **loaded(artifact, arguments.calls, arguments.threads)})
    print(f"written to {write('runtime', rows)}")


def measured(artifact: str, sizes: list[dict[str, int]]) -> list[dict[str, Any]]:
    """The rows of one artifact without threads."""
    with aot.load(artifact) as session:
        profiles = session._manifest.profiles
    wanted = sizes or [{dim: opt for dim, (_, opt, _) in profile.items()} for profile in profiles]
    return [row for size in wanted for row in measured_at(artifact, size)]


def measured_at(artifact: str, size: Mapping[str, int]) -> list[dict[str, Any]]:
    """A row for each contender at one size."""
    started = time.perf_counter()
    cold = aot.load(artifact)
    loading = time.perf_counter() - started
    feed = cold._inputs_of(cold._reader.signature.complete(size))
    first = timed(lambda: cold(feed))
    cold.close()
    with aot.load(artifact) as session:
        session.warm_up(size)
        warm = timed(lambda: session(feed))
        times = in_turns({**bare(session, feed), "session-numpy": lambda: session(feed), **on_gpu(session, feed)})
    base = next(median(times[name]) for name in BARE if name in times)
    rows = [
        {
            "model": Path(artifact).stem, "label": session.label, "tool": name, "sizes": dict(size),
            "p50_ms": round(median(found) * 1e3, 5), "p99_ms": round(quantiles(found, n=100)[98] * 1e3, 5),
            "overhead_us": round((median(found) - base) * 1e6, 2), "load_seconds": round(loading, 3),
            "first_ms": round(first * 1e3, 4), "warm_first_ms": round(warm * 1e3, 4),
        }
        for name, found in times.items()
    ]  # fmt: skip
    for row in rows:
        print(f"{row['model']:<16} {row['tool']:<14} {row['p50_ms']:>9} ms {row['overhead_us']:>8} us  {row['sizes']}")
    return rows


def timed(run: Run) -> float:
    """Seconds of one call."""
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def in_turns(contenders: Mapping[str, Run]) -> dict[str, list[float]]:
    """Seconds of every call, the contenders one after the other, round after round."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for run in contenders.values():
        for _ in range(5):
            run()
    for _ in range(ROUNDS):
        for name, run in contenders.items():
            times[name] += [timed(run) for _ in range(RUNS)]
    return times


def bare(session: Session, feed: Mapping[str, Any]) -> dict[str, Run]:
    """The engine without the runtime around it, and `Bound`."""
    executor: Any = session._executor
    bound = session.bound(feed)
    found: dict[str, Run] = {"bound": lambda: (bound.run(), bound.synchronize())}
    if not hasattr(executor, "_plan"):
        run, names = executor._session.run, list(session.outputs)
        return {"bare-session": lambda: run(names, feed), **found}
    gpu, lane = executor._gpu, bound._binding._lane
    driver = gpu._driver
    gpu.__enter__()  # for as long as this process lives: nothing of it belongs to a bare launch
    graphs = [one.graph for one in lane._graphs._captured.values()]
    if graphs:
        found["bare-graph"] = lambda: (
            driver.cuGraphLaunch(graphs[0], lane._own),
            driver.cuStreamSynchronize(lane._own),
        )
    # The lane's plain context has no addresses yet where its run was captured: give it those of the capture.
    contexts = [one.context for one in lane._graphs._captured.values()] or list(lane._contexts.values())
    execute, stream = contexts[0]._context.execute_async_v3, int(lane._own)
    found["bare-enqueue"] = lambda: (execute(stream), driver.cuStreamSynchronize(lane._own))
    return found


def on_gpu(session: Session, feed: Mapping[str, Any]) -> dict[str, Run]:
    """The session on arrays of the GPU, each call waited for on the caller's stream; none on a CPU."""
    if not hasattr(session._executor, "_plan"):
        return {}
    try:
        import cupy
    except ImportError:
        import torch

        tensors = {name: torch.from_numpy(array).cuda() for name, array in feed.items()}
        stream = torch.cuda.Stream()

        def with_torch() -> None:
            with torch.cuda.stream(stream):
                session(tensors)
            stream.synchronize()

        return {"session-gpu": with_torch}
    arrays = {name: cupy.asarray(array) for name, array in feed.items()}
    own = cupy.cuda.Stream(non_blocking=True)
    own.use()

    def with_cupy() -> None:
        session(arrays)
        own.synchronize()

    return {"session-gpu": with_cupy}


def loaded(artifact: str, calls: int, threads: int) -> dict[str, Any]:
    """A load of threads at random sizes: wrong answers, throughput, and what memory grew by after the first tenth."""
    with aot.load(artifact) as session:
        bounds = session._manifest.profiles[0]
        random = np.random.default_rng(0)
        cases = []
        for _ in range(16):
            size = {dim: int(random.integers(low, opt + 1)) for dim, (low, opt, _) in bounds.items()}
            feed = session._inputs_of(session._reader.signature.complete(size))
            cases.append((feed, session(feed)))
        wrong = [0] * threads

        def work(number: int, count: int) -> None:
            order = np.random.default_rng(number)
            for _ in range(count):
                feed, expected = cases[int(order.integers(len(cases)))]
                got = session(feed)
                wrong[number] += any(not np.allclose(got[name], expected[name], rtol=1e-2, atol=1e-3) for name in got)

        def all_at_once(count: int) -> float:
            workers = [threading.Thread(target=work, args=(number, count)) for number in range(threads)]
            started = time.perf_counter()
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
            return time.perf_counter() - started

        all_at_once(max(calls // threads // 10, 1))
        before, resident = session.memory(), memory.resident() or 0
        seconds = all_at_once(calls // threads)
        return {
            "tool": "threads", "label": session.label, "calls": calls, "threads": threads,
            "throughput": round(calls / seconds, 1), "wrong": sum(wrong),
            "device_growth_bytes": session.memory()["device_bytes"] - before["device_bytes"],
            "host_growth_bytes": (memory.resident() or 0) - resident,
        }  # fmt: skip


if __name__ == "__main__":
    main()
