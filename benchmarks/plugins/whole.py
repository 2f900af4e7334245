"""A whole model on this machine's GPU: its engine with kernels of plugins, the same without, and torch.

Run in a process of its own, for an engine that crashes. Errors are against the module in FP32, which runs the plugins'
references.
"""

from __future__ import annotations

import gc
import importlib.util
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from aot import artifact, ops, toolchain
from aot.config import Request
from aot.errors import AotError
from aot.pipeline import build
from aot.plan import decide_finish
from aot.plugins import loading
from aot.plugins._timing import in_turns
from aot.progress import Silent
from aot.run import Run
from aot.runtime.kernels import LAUNCHED, read_kernels
from aot.stages.build import build_engine
from aot.store import Store
from plugins.measure import FOREIGN, replayed, said

MODELS = Path(__file__).parent / "models"
Row = dict[str, Any]


def names() -> list[str]:
    """The models there are."""
    return sorted(file.stem for file in MODELS.glob("[a-z]*.py"))


def described(name: str) -> Any:
    """A model's file, run: what `models/__init__.py` says that it holds, and its declaration under its own name."""
    spec = importlib.util.spec_from_file_location(f"benchmark_{name}", MODELS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def launching(name: str, folder: Path, output: Path) -> Row:
    """Finish the prepared artifact, its engine as `output/NAME.plan`: what is launched, and how far the engine was from
    the references that it was prepared with."""
    request = _request(name, folder, output)
    try:
        built = build(request, Store(output / "store"), Silent())
    except AotError as error:
        raise RuntimeError(said(error)) from error
    (engine,) = built.summary["engines"]
    _keep(next((built.artifact / "engines").glob("*.plan")), output / f"{name}.plan")
    found = artifact.load(str(built.artifact)).engines[0][0].facts
    launched = [{"plugin": one["plugin"], "nodes": len(one["nodes"])} for one in found["kernels"]]
    return {"launched": launched, "seconds": engine["seconds"], **engine["verification"]}


def expanded(name: str, folder: Path, output: Path) -> Row:
    """The same engine with functions in the place of every plugin's node, as `output/NAME-expanded.plan`."""
    prepared = artifact.load(str(folder / f"{name}.aot"))
    plan = replace(decide_finish(_request(name, folder, output), prepared), attention="never")
    run = Run(Store(output / "store"), Silent())
    try:
        plain = build_engine(run, prepared.final, prepared.spec, plan, plan.targets[0])
    except AotError as error:
        raise RuntimeError(said(error)) from error
    _keep(plain.plan, output / f"{name}-expanded.plan")
    return {"expanded": plain.facts["expanded"], "seconds": plain.entry.seconds}


def _request(name: str, folder: Path, output: Path) -> Request:
    artifact_, profile = folder / f"{name}.aot", described(name).PROFILE
    return Request(model=str(artifact_), backend="tensorrt", dims=profile, output=output / f"{name}.aot")


def _keep(plan: Path, target: Path) -> None:
    target.write_bytes(plan.read_bytes())
    if plan.with_suffix(LAUNCHED).exists():
        target.with_suffix(LAUNCHED).write_bytes(plan.with_suffix(LAUNCHED).read_bytes())


class Running:
    """An engine on tensors of ours; `run` enqueues it on torch's current stream."""

    def __init__(self, plan: Path, inputs: Mapping[str, torch.Tensor]) -> None:
        import tensorrt as trt
        from _engine import load

        from aot.runtime import plugin_v3

        if plan.with_suffix(LAUNCHED).exists():
            plugin_v3.register(trt)
            plugin_v3.learn(read_kernels(plan.with_suffix(LAUNCHED)))
        self._engine = load(plan.read_bytes())
        self._context = self._engine.create_execution_context()
        self._inputs = dict(inputs)
        for name, tensor in inputs.items():
            self._context.set_input_shape(name, tuple(tensor.shape))
            self._context.set_tensor_address(name, tensor.data_ptr())
        outputs = [self._engine.get_tensor_name(i) for i in range(self._engine.num_io_tensors)]
        self.made: dict[str, torch.Tensor] = {}
        for name in outputs:
            if name not in inputs:
                shape = tuple(self._context.get_tensor_shape(name))
                self.made[name] = torch.zeros(shape, device="cuda")  # every output here is FP32
                self._context.set_tensor_address(name, self.made[name].data_ptr())

    def run(self) -> None:
        """One run. Raises RuntimeError where TensorRT refuses."""
        cuda: Any = torch.cuda
        if not self._context.execute_async_v3(cuda.current_stream().cuda_stream):
            raise RuntimeError("the engine does not run")


class Written:
    """In the place of `aot.ops`: the references themselves, which torch.compile sees through."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        plugin = loading.find(name, None)
        defaults = [one.default for one in plugin.schema.attributes]
        count = len(plugin.schema.inputs)

        def reference(*given: Any) -> Any:
            attributes = [*given[count:], *defaults[len(given) - count :]]
            return plugin.reference(*given[:count], *attributes)

        return reference


@contextmanager
def written() -> Iterator[None]:
    """Within, models call the references of plugins as plain torch."""
    import aot

    aot.ops = Written()  # type: ignore[assignment]
    try:
        yield
    finally:
        aot.ops = ops


def measured(name: str, output: Path, modes: Mapping[str, str | None]) -> list[Row]:
    """Time the engines of `output` and torch at every size of the model, in turns: a row for each. modes: tool -> the
    mode of torch.compile, None for eager."""
    gpu = toolchain.machine().gpu
    model, rows = described(name), []
    exact, narrow = getattr(model, name)().cuda(), getattr(model, name)().half().cuda()
    plain = getattr(narrow, "plain", narrow)  # how one would write it for torch, where that is something else
    for sizes in model.SIZES:
        torch.manual_seed(1)
        inputs = {key: value.cuda() for key, value in model.inputs(sizes).items()}
        with torch.no_grad():
            wanted = _outputs(exact(**inputs))
        halves = {key: value.half() if value.is_floating_point() else value for key, value in inputs.items()}
        runs: dict[str, tuple[Callable[[], Any], str]] = {}
        found: dict[str, Row] = {}
        keep: list[Any] = []
        for tool, plan in (("aot", output / f"{name}.plan"), ("aot-expanded", output / f"{name}-expanded.plan")):
            if not plan.exists():
                continue
            try:
                running = Running(plan, inputs)
                running.run()
                torch.cuda.synchronize()
                found[tool] = _errors(list(running.made.values()), wanted)
                runs[tool] = replayed(running.run)
                # What the graph gives when it is replayed is what is compared.
                for tensor in running.made.values():
                    tensor.zero_()
                runs[tool][0]()
                torch.cuda.synchronize()
                found[tool] |= {"replayed": _errors(list(running.made.values()), wanted)["relative_l2"]}
                keep.append(running)
            except FOREIGN as error:
                found[tool] = {"reason": said(error)}
        with written(), torch.no_grad():
            for tool, mode in modes.items():
                try:
                    torch.compiler.reset()
                    call = partial(plain if mode is None else torch.compile(plain, mode=mode, dynamic=False), **halves)
                    found[tool] = _errors(_outputs(call()), wanted)
                    runs[tool] = replayed(call)
                except FOREIGN as error:
                    found[tool] = {"reason": said(error)}
        for (tool, (_, how)), taken in zip(runs.items(), in_turns([run for run, _ in runs.values()], 0.5), strict=True):
            found[tool] |= {**_spread(taken), "timed": how}
        about = {"model": name, "sizes": dict(sizes), "gpu": gpu.name if gpu is not None else None}
        rows += [{**about, "tool": tool, **row} for tool, row in found.items()]
        del runs, keep, inputs, halves, wanted
        gc.collect()
        torch.cuda.empty_cache()
    return rows


def _outputs(made: Any) -> list[torch.Tensor]:
    return [one.float() for one in (made if isinstance(made, tuple | list) else (made,))]


def _errors(made: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor]) -> Row:
    """The least cosine and the largest relative L2 of the outputs."""
    pairs = [(a.double().flatten(), b.double().flatten()) for a, b in zip(made, wanted, strict=True)]
    return {
        "cosine": min(float(torch.nn.functional.cosine_similarity(a, b, 0)) for a, b in pairs),
        "relative_l2": max(float((a - b).norm() / b.norm()) for a, b in pairs),
    }


def _spread(taken: Sequence[float]) -> Row:
    tenths = statistics.quantiles(taken, n=10)
    return {"ms": round(statistics.median(taken), 5), "ms_p10": round(tenths[0], 5), "ms_p90": round(tenths[-1], 5)}
