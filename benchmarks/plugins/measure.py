"""One plugin in a process of its own: compiled in every way first, then timed while nothing else uses the GPU."""

from __future__ import annotations

import gc
import signal
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch._inductor import config as inductor

from aot import toolchain
from aot.errors import AotError, PluginError
from aot.plugins import _launching
from aot.plugins import cases as aot_cases
from aot.plugins._launching import Launcher, Stopped
from aot.plugins._timing import in_turns
from aot.plugins._trying import compared, referred, sampled, sizes_that_vary
from aot.plugins._tuner import Tuner
from aot.plugins._workers import Compilers
from aot.plugins.growing import grown, usual
from aot.plugins.loading import Plugin, load
from aot.plugins.tuned import Entry
from plugins.cases import CASES, Op, Sizes
from plugins.engine import Running

MODES = {"compile": "default", "compile-max-autotune": "max-autotune-no-cudagraphs"}
"""torch.compile's; all things are timed as CUDA graphs of our own."""
DERIVED = (1 << 16, 1 << 20, 1 << 24)
"""Elements of the largest tensor, for a plugin that is not in CASES."""
FOREIGN = (RuntimeError, TypeError, ValueError, AttributeError, AssertionError, LookupError, NotImplementedError)
"""What functions of libraries and the compiler raise, which costs one row."""
LATE = "not compiled in the time that there was"
_bench: list[Bench] = []


class Bench:
    """A plugin at its sizes, compiled; `measured` times it."""

    def __init__(self, file: Path) -> None:
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
        self.plugin = load(file)
        self.op = CASES.get(self.plugin.name)
        # Of a product max-autotune compiles dozens of kernels; nothing else is worth processes of its own.
        inductor.compile_threads = 4 if self.op is not None and self.op.flops is not None else 1
        self.vary, _ = sizes_that_vary(self.plugin)
        gpu = toolchain.machine().gpu
        if gpu is None:
            raise RuntimeError("there is no GPU")
        self._launcher = Launcher(Compilers(2), gpu.target)
        own = self.op or Op(derived(self.plugin, self.vary))
        self.cases = [Case(self.plugin, own, sizes) for sizes in own.sizes]
        for case in self.cases:
            for config in self.plugin.configs:
                self._launcher.begin(self.plugin, case.trial, self.vary, config)

    def compile(self, until: float) -> None:
        """Everything that torch.compile makes, as far as the time goes, and all of CONFIGS."""
        for mode in MODES:
            for case in self.cases:
                case.compile(mode, until)
        for case in self.cases:
            for config in self.plugin.configs:
                # One that does not compile is none of those that are timed.
                with suppress(PluginError):
                    self._launcher.compiled(self.plugin, case.trial, self.vary, config)

    def measured(self, folder: Path, seconds: float) -> dict[str, Any]:
        """{rows, entries}: one row for each size and tool; what tuning found. folder: with engines, if there are.

        seconds: for all of it. Tuning takes half of what is left for a size, at most; a size that begins too late to
        be timed is a row that says so.
        """
        until = time.monotonic() + 0.9 * seconds
        rows: list[dict[str, Any]] = []
        entries: list[dict[str, Any]] = []
        for place, case in enumerate(self.cases):
            about = {"plugin": self.plugin.name, **case.about(), "derived": self.op is None}
            left = until - time.monotonic()
            if left <= 0:
                rows.append({**about, "tool": "aot", "reason": "no time was left"})
                continue
            try:
                named, share = case.named(), left / (len(self.cases) - place) / 2
                tuner = Tuner(self._launcher, self.plugin, case.trial, self.vary, list(named.values()), share)
                entry = tuner.entry()
                own = {"config": entry.config, "tried": entry.tried}
                launch, plan = tuner.launch_of(entry.config), _plan(folder, self.plugin, place)
                found = case.measured(named, launch, tuner.outputs, own, plan)
                rows += [about | row for row in found]
                entries.append(asdict(_with_engine(entry, found)))
            except (AotError, *FOREIGN) as error:
                rows.append({**about, "tool": "aot", "reason": said(error)})
            gc.collect()
            torch.cuda.empty_cache()
        return {"rows": rows, "entries": entries}


class Case:
    """One size of a plugin."""

    def __init__(self, plugin: Plugin, op: Op, sizes: Sizes) -> None:
        plain = aot_cases.defaults(plugin)
        attributes = {name: sizes.get(name, value) for name, value in plain.items()}
        types = {name: op.types.get(name, plugin.schema.types[name][0]) for name in plugin.schema.types}
        chosen = next(one for one in plugin.schema.combinations() if one.items() <= types.items())
        shapes = aot_cases.shapes(plugin, sizes)
        plugin.bind(shapes)
        self.plugin = plugin
        self.op = op
        self.sizes = sizes
        self.trial = aot_cases.Trial(shapes, chosen, attributes)
        self._functions: dict[str, Callable[..., Any]] = {}
        self._reasons: dict[str, str] = {}

    def about(self) -> dict[str, Any]:
        """What a row says of itself."""
        return {"sizes": dict(self.sizes), "dtypes": " ".join(dict.fromkeys(self.trial.chosen.values()))}

    def named(self) -> dict[str, torch.Tensor]:
        """The inputs, on the GPU, made anew."""
        return sampled(self.plugin, self.trial, _launching.DEVICE, self.op.sample)

    def written(self) -> Callable[..., Any]:
        """What one would write with torch, as a function of the inputs."""
        function, attributes = self.op.eager or self.plugin.reference, tuple(self.trial.attributes.values())
        return lambda *inputs: function(*inputs, *attributes)

    def compile(self, tool: str, until: float) -> None:
        """Have torch.compile make its kernels, for just this size."""
        if not self.op.compiles:
            return
        made = torch.compile(self.written(), mode=MODES[tool], dynamic=False)
        try:
            with _until(until), torch.no_grad():
                made(*self.named().values())
        except torch.OutOfMemoryError:
            pass  # others hold the memory now; it runs once more when it is timed
        except (TimeoutError, *FOREIGN) as error:
            self._reasons[tool] = said(error)
            return
        finally:
            torch.cuda.empty_cache()
        self._functions[tool] = made

    def measured(
        self,
        named: Mapping[str, torch.Tensor],
        launch: Callable[[], None],
        outputs: Sequence[torch.Tensor],
        own: Mapping[str, Any],
        plan: Path,
    ) -> list[dict[str, Any]]:
        """A row for each tool, all timed in turns. launch: from the inputs `named` to the outputs."""
        inputs = list(named.values())
        wanted = referred(self.plugin, named, self.trial.attributes)
        launch()
        errors = {"aot": _error(outputs, wanted)}
        runs: dict[str, tuple[Callable[[], Any], str]] = {"aot": replayed(launch)}
        moved = sum(one.nbytes for one in (*inputs, *outputs))
        source = torch.empty(max(moved // 2, 1), dtype=torch.int8, device=_launching.DEVICE)
        target = torch.empty_like(source)
        runs["copy"] = replayed(lambda: target.copy_(source))
        attributes = tuple(self.trial.attributes.values())
        peers = {name: lambda *given, f=one: f(*given, *attributes) for name, one in self.op.peers.items()}
        functions = {"eager": self.written(), **self._functions, **peers}
        for tool, function in functions.items():
            try:
                with torch.no_grad():
                    made = function(*inputs)
                    errors[tool] = _error(made if isinstance(made, tuple) else (made,), wanted)
                    del made
                    runs[tool] = replayed(lambda f=function: f(*inputs))
            except FOREIGN as error:
                self._reasons[tool] = said(error)
        if plan.is_file():
            try:
                running = Running(plan, named, outputs)
                running.run()
                errors["tensorrt"] = _error(running.made, wanted)
                runs["tensorrt"] = replayed(running.run)
            except FOREIGN as error:
                self._reasons["tensorrt"] = said(error)
        taken = dict(zip(runs, in_turns([run for run, _ in runs.values()], 0.3), strict=True))
        rows = []
        for tool, (_, how) in runs.items():
            row = {"tool": tool, **_spread(taken[tool]), "timed": how, "bytes": moved, "error": errors.get(tool)}
            row["gb_per_s"] = round(moved / row["ms"] / 1e6, 1)
            if self.op.flops is not None and tool != "copy":
                row["tflops"] = round(self.op.flops({**self.trial.attributes, **self.sizes}) / row["ms"] / 1e9, 2)
            rows.append(row | (dict(own) if tool == "aot" else {}))
        return rows + [{"tool": tool, "reason": reason} for tool, reason in self._reasons.items()]


def _with_engine(entry: Entry, rows: Sequence[Mapping[str, Any]]) -> Entry:
    """The entry with what the engine without the plugin takes, both timed in the same turns."""
    ms = {row["tool"]: row["ms"] for row in rows if "ms" in row}
    return replace(entry, ms=ms["aot"], expanded_ms=ms["tensorrt"]) if "tensorrt" in ms else entry


def derived(plugin: Plugin, vary: Sequence[str]) -> list[Sizes]:
    """Three sizes that follow from SHAPES and SIZES."""
    fixed = {name: size for name, size in usual(plugin).items() if name not in vary}
    found = [grown(plugin, vary, elements, fixed) for elements in DERIVED]
    return [{**one[0], **one[1]} for one in found if one is not None] or [{**aot_cases.base(plugin)[0]}]


def replayed(run: Callable[[], Any]) -> tuple[Callable[[], Any], str]:
    """(the run as a CUDA graph, "graph"), or the run itself, "launches", where it cannot be captured."""
    cuda: Any = torch.cuda
    side = cuda.Stream()
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side), torch.no_grad():
        run()
        run()
    cuda.current_stream().wait_stream(side)
    cuda.synchronize()
    graph = cuda.CUDAGraph()
    try:
        with cuda.graph(graph), torch.no_grad():
            run()
    except RuntimeError:
        cuda.synchronize()
        return run, "launches"
    return graph.replay, "graph"


def _error(made: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor]) -> float | None:
    """The largest error of an output, of its largest magnitude; None where they cannot be compared."""
    if [one.shape for one in made] != [one.shape for one in wanted]:
        return None
    with torch.no_grad():
        pairs = [(a.to(b.dtype), b) for a, b in zip(made, wanted, strict=True) if b.is_floating_point()]
        return max((compared(a, b)[0] for a, b in pairs), default=0.0)


def _spread(taken: Sequence[float]) -> dict[str, float]:
    tenths = statistics.quantiles(taken, n=10)
    return {"ms": round(statistics.median(taken), 5), "ms_p10": round(tenths[0], 5), "ms_p90": round(tenths[-1], 5)}


def said(error: BaseException) -> str:
    """What a row says of an error. The compiler wraps TimeoutError, too, in one of its own."""
    if LATE in str(error):
        return LATE
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]


@contextmanager
def _until(moment: float) -> Iterator[None]:
    """Raise TimeoutError when the moment has come."""

    def over(*_: object) -> None:
        raise TimeoutError(LATE)

    left = moment - time.monotonic()
    if left <= 0:
        over()
    signal.signal(signal.SIGALRM, over)
    # Again and again: what compiles takes many errors for those of one candidate.
    signal.setitimer(signal.ITIMER_REAL, left, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def engines(file: Path, folder: Path) -> dict[int, str | None]:
    """Build an engine without the plugin for each size, as `folder/PLUGIN-N.plan`: why there is none, by N."""
    from plugins import engine

    plugin = load(file)
    op = CASES.get(plugin.name) or Op(derived(plugin, sizes_that_vary(plugin)[0]))
    reasons: dict[int, str | None] = {}
    for place, sizes in enumerate(op.sizes):
        case = Case(plugin, op, sizes)
        try:
            engine.build(case.written(), case.named(), _plan(folder, plugin, place))
            reasons[place] = None
        except (AotError, *FOREIGN) as error:
            reasons[place] = said(error)
        torch.cuda.empty_cache()
    return reasons


def _plan(folder: Path, plugin: Plugin, place: int) -> Path:
    return folder / f"{plugin.name}-{place}.plan"


def prepare(file: Path, seconds: float) -> list[dict[str, Any]]:
    """Compile. Returns the sizes. Raises RuntimeError with the reason where the plugin cannot be measured."""
    until = time.monotonic() + seconds
    try:
        _bench.append(Bench(file))
    except AotError as error:
        raise RuntimeError(" ".join(str(error).split())) from error
    _bench[0].compile(until)
    torch.cuda.empty_cache()
    return [case.about() for case in _bench[0].cases]


def measure(folder: Path, seconds: float) -> dict[str, Any]:
    """Time what was compiled, and the engines in the folder, in so many seconds.

    Raises RuntimeError where a kernel fails on the GPU.
    """
    try:
        return _bench[0].measured(folder, seconds)
    except Stopped as stopped:
        raise RuntimeError(f"the kernel fails on the GPU: {stopped}") from stopped


def roofline() -> list[dict[str, Any]]:
    """What the GPU does at most, as rows: a copy of 4 GiB, and products of 8192 x 8192 matrices."""
    source = torch.empty(1 << 31, dtype=torch.int8, device="cuda")
    target = torch.empty_like(source)
    runs: dict[str, Callable[[], Any]] = {"copy": lambda: target.copy_(source)}
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        a = torch.randn(8192, 8192, device="cuda", dtype=dtype)
        runs[str(dtype).removeprefix("torch.")] = lambda a=a: a @ a
    taken = in_turns(list(runs.values()), 0.5)
    rows: list[dict[str, Any]] = []
    for name, times in zip(runs, taken, strict=True):
        row = {"plugin": "roofline", "tool": name, **_spread(times)}
        rate = {"gb_per_s": round(2 * source.nbytes / row["ms"] / 1e6, 1)}
        rows.append(row | (rate if name == "copy" else {"tflops": round(2 * 8192**3 / row["ms"] / 1e9, 1)}))
    return rows
