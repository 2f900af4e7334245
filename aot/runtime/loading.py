"""Loading an artifact: which of its engines runs here, whether it is whole, and what runs where none does."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from aot.errors import AotError, TargetError, UsageError, unknown
from aot.runtime import manifest, onnxruntime, sessions, vendors
from aot.runtime.cuda import Gpu
from aot.runtime.executor import Executor
from aot.runtime.fits import gpu_fits, meant_for, version_fits
from aot.runtime.kernels import LAUNCHED
from aot.runtime.manifest import Engine, Manifest
from aot.runtime.session import Session

CPU = "cpu"


def load(
    path: str | Path,
    *,
    engine: str | None = None,
    device: int = 0,
    contexts: int = 8,
    verify: bool = True,
    spin: bool = True,
) -> Session:
    """Load an artifact, a folder or a `.tar`, to be called.

    An engine for the GPU `device` (as CUDA numbers them) and the TensorRT that is installed is taken first; without
    one, the final graph on onnxruntime, and the session's label says so. engine: `sm90`, ..., or `cpu` for onnxruntime,
    and nothing else. contexts: how many calls may run at once on a GPU; more wait. verify: hold the files that are
    loaded against their digests, which takes a second for every one to two gigabytes. spin: onnxruntime's threads wait
    for work without sleep, which shortens a call, and takes the CPU from whatever else the process does.

    Raises UsageError for a path or engine that is not there and for contexts below 1, ArtifactError for a file that is
    missing or damaged, TargetError where nothing runs here, EngineError where what should run does not load.
    """
    if not isinstance(contexts, int) or contexts < 1:
        raise UsageError(f"contexts={contexts!r}: no call could run", fix="give 1 or more")
    found = manifest.read(str(path))
    held = dict.fromkeys(one.target for one in found.engines)
    if engine is not None and engine not in [*held, CPU]:
        raise unknown("engine", str(engine), [*held, *([] if CPU in held else [CPU])])
    here = _Here(device)
    reasons: dict[str, str] = {}
    for one in found.engines:
        if engine in (None, one.target):
            reason = here.misfit(one)
            if reason is None:
                return _with_engine(found, one, here, contexts, verify, spin)
            reasons[one.target] = reason
    here.leave()
    if engine not in (None, CPU):
        raise TargetError(
            f"the engine for {engine} does not run here: {reasons[str(engine)]}",
            where=found.shown,
            fix=f"the artifact holds {' and '.join(held)}; engine='{CPU}' runs its final graph on onnxruntime",
        )
    return _with_graph(found, reasons, verify, spin)


def _with_engine(found: Manifest, engine: Engine, here: _Here, contexts: int, verify: bool, spin: bool) -> Session:
    beside = str(Path(engine.file).with_suffix(LAUNCHED))
    if verify:
        found.check([engine.file, *([beside] if beside in found.files else []), *filter(None, [engine.weights])])
    executor: Executor
    if engine.backend == sessions.NAME:
        executor = onnxruntime.OnnxRuntime(found.path(engine.file), found, spin=spin)
    else:
        from aot.runtime.tensorrt import TensorRt

        gpu = here.gpu
        assert isinstance(gpu, Gpu)
        try:
            executor = TensorRt(gpu, found, engine, contexts)
        except BaseException:  # whatever ends it, Ctrl-C too: the GPU's context is given back
            gpu.close()
            raise
    return Session(found, executor, f"engine {engine.target} ({engine.backend} {engine.version})")


def _with_graph(found: Manifest, reasons: dict[str, str], verify: bool, spin: bool) -> Session:
    """The final graph on onnxruntime. Raises TargetError, with why no engine runs, where that does not run either."""
    if found.graph is None or sessions.version() is None:
        why = "it holds no ONNX graph" if found.graph is None else "onnxruntime is not installed"
        said = "; ".join(f"{target}: {reason}" for target, reason in {**reasons, CPU: why}.items())
        raise TargetError(
            "nothing in the artifact runs here",
            where=f"{found.shown}: {said}",
            fix="run it on a GPU that it has an engine for, or build one here: aot build"
            if found.graph is None
            else "pip install onnxruntime",
        )
    if verify:
        found.check(name for name in found.files if name.startswith("graph/"))
    executor = onnxruntime.OnnxRuntime(found.path(found.graph), found, spin=spin)
    return Session(found, executor, f"final graph, {found.precision} ({executor.tells})")


class _Here:
    """This machine, as far as an engine asks for it."""

    def __init__(self, device: int) -> None:
        self._device = device

    @cached_property
    def gpu(self) -> Gpu | str:
        """The GPU, or why there is none."""
        try:
            return Gpu(self._device)
        except AotError as error:
            return error.what

    def leave(self) -> None:
        """Let the GPU go that no engine fits."""
        found = self.__dict__.get("gpu")
        if isinstance(found, Gpu):
            found.close()

    def misfit(self, engine: Engine) -> str | None:
        """Why an engine does not run here, both sides named; None where nothing speaks against it."""
        if engine.backend == sessions.NAME:
            return None if sessions.version() else "onnxruntime is not installed"
        if engine.backend not in vendors.TITLES:
            return f"it is an engine of {engine.backend}, which this aot does not know"
        title = vendors.TITLES[engine.backend]
        _, installed = vendors.runtime(engine.backend, lean=engine.compatible is not None)
        if isinstance(self.gpu, str):
            return self.gpu
        if not gpu_fits(engine.target, self.gpu.target, engine.hardware):
            return f"it is for {meant_for(engine.target, engine.hardware)}, and GPU {self._device} is a {self.gpu}"
        if installed is None:
            return f"{title} is not installed"
        if not version_fits(engine.version, installed, engine.compatible):
            return f"it was built by {title} {engine.version}, and {installed} is installed"
        return None
