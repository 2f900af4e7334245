"""Running a TensorRT engine through Polygraphy, to compare it with the reference."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from aot import profile as shapes_of
from aot.backend import LayerTime, Session
from aot.backends import _engine_layers
from aot.declaration import ModelSpec
from aot.errors import EngineError
from aot.profile import Profile
from aot.runtime import plugin_v3
from aot.runtime.fits import gpu_fits, meant_for, version_fits
from aot.runtime.kernels import LAUNCHED, read_kernels
from aot.runtime.log import last_lines
from aot.runtime.refit import refit
from aot.store import FACTS
from aot.toolchain import Machine
from aot.torchless import torchless

if TYPE_CHECKING:
    import numpy as np

    from aot.arrays import Arrays
    from aot.backends._nvinfer import Nvinfer


def open_engine(
    backend: Nvinfer,
    plan: Path,
    spec: ModelSpec,
    profiles: Sequence[Profile],
    machine: Machine,
    weights: Path | None = None,
) -> EngineSession:
    """Deserialize and load, and put the weights into a stripped one.

    Raises EngineError where the engine is for another GPU or version, naming both.
    """
    facts = facts_beside(plan)
    foreign = mismatch(backend, facts, machine)
    if foreign:
        raise EngineError(foreign, where=str(plan), fix="build it again on this machine: aot build")
    trt, log = backend.start()
    beside = plan.with_suffix(LAUNCHED)
    if beside.is_file():
        plugin_v3.learn(read_kernels(beside))
    runtime = trt.Runtime(log)
    if facts.get("version_compatible") == "with":
        runtime.engine_host_code_allowed = True  # the lean runtime inside
    engine = runtime.deserialize_cuda_engine(plan.read_bytes())
    if engine is None:
        plugin_v3.raise_kept()
        raise EngineError(
            f"{backend.title} {backend.version()} on {_here(machine)} cannot load the engine, "
            f"built by {facts.get('version', 'an unknown version')} for {facts.get('target', 'an unknown GPU')}: "
            f"{last_lines(log.errors) or 'it gives no reason'}",
            where=str(plan),
            fix="build it again on this machine: aot build",
        )
    if weights is not None:
        refit(trt, engine, log, weights)
    return EngineSession(trt, engine, spec, profiles)


def facts_beside(plan: Path) -> Mapping[str, Any]:
    """What is recorded of an engine: `TARGET.json` in an artifact, the entry's facts in the store; else nothing."""
    for path in (plan.with_suffix(".json"), plan.with_name(FACTS)):
        try:
            found = json.loads(path.read_text())
        except (OSError, ValueError):
            continue
        if isinstance(found, dict):
            inner = found.get("facts", found)
            if isinstance(inner, dict):
                return inner
    return {}


def mismatch(backend: Nvinfer, facts: Mapping[str, Any], machine: Machine) -> str | None:
    """Why this machine cannot load the engine, both sides named; None where nothing speaks against it."""
    if machine.gpu is None:
        return f"no GPU on this machine to run the engine for {facts.get('target', 'a GPU')}"
    target, version, here = facts.get("target"), facts.get("version"), backend.version()
    hardware, compatible = facts.get("hardware_compatible"), facts.get("version_compatible")
    if target is not None and not gpu_fits(target, machine.gpu.target, hardware):
        return f"the engine is for {meant_for(target, hardware)}, and this machine has {_here(machine)}"
    if version is not None and (here is None or not version_fits(version, here, compatible)):
        return f"the engine was built by {backend.title} {version}, and {here or 'none'} is installed"
    return None


def _here(machine: Machine) -> str:
    return f"{machine.gpu.name} ({machine.gpu.target})" if machine.gpu else "no GPU"


class EngineSession(Session):
    """An engine on the GPU; each call takes the optimization profile that holds its shapes."""

    def __init__(self, trt: ModuleType, engine: Any, spec: ModelSpec, profiles: Sequence[Profile]) -> None:
        from polygraphy import config

        # Polygraphy decides once, at its import, which of the two modules it speaks to.
        config.USE_TENSORRT_RTX = trt.__name__ == "tensorrt_rtx"
        from polygraphy.backend.trt import TrtRunner

        self._trt, self._engine, self._spec, self._profiles = trt, engine, spec, profiles
        self._profile = 0
        with torchless():
            self._runner = TrtRunner(engine)
            self._runner.activate()
        names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
        self._inputs = [n for n in names if engine.get_tensor_mode(n) == trt.TensorIOMode.INPUT]

    def __exit__(self, *_: object) -> None:
        self._runner.deactivate()

    def __call__(self, inputs: Mapping[str, Any]) -> Arrays:
        """Run once. Raises EngineError for a missing input, a wrong dtype, or shapes no profile holds."""
        import numpy as np
        from polygraphy.exception import PolygraphyException

        feed = {name: self._checked(name, inputs) for name in self._inputs}
        self._choose({name: array.shape for name, array in feed.items()})
        # Polygraphy does not know ml_dtypes; the bytes are what counts.
        raw = {name: a.view(np.uint16) if a.dtype.name == "bfloat16" else a for name, a in feed.items()}
        try:
            with torchless():
                got = self._runner.infer(raw, check_inputs=False, return_raw_buffers=True)
        except PolygraphyException as error:
            plugin_v3.raise_kept()
            raise EngineError(f"the engine does not run: {' '.join(str(error).split())}") from error
        return {name: self._array(name, found) for name, found in got.items()}

    def stopwatch(self, inputs: Mapping[str, Any]) -> Callable[[int], float]:
        """See Session.stopwatch. Runs are enqueued one behind the other, without a CUDA graph."""
        self(inputs)  # chooses the profile, puts the inputs on the GPU, makes room for the outputs
        context, stream = self._runner.context, self._runner.stream

        def run(times: int) -> float:
            started = time.perf_counter()
            for _ in range(times):
                if not context.execute_async_v3(stream.ptr):
                    plugin_v3.raise_kept()
                    raise EngineError("the engine does not run")
            stream.synchronize()
            return time.perf_counter() - started

        return run

    def layer_times(self, inputs: Mapping[str, Any], runs: int) -> list[LayerTime]:
        """See Session.layer_times."""
        run = self.stopwatch(inputs)
        return _engine_layers.layer_times(self._trt, self._engine, self._runner.context, run, runs)

    def _dtype(self, name: str) -> np.dtype[Any]:
        import ml_dtypes
        import numpy as np

        dtype = self._engine.get_tensor_dtype(name)
        wide = dtype != getattr(self._trt, "bfloat16", None)
        found: np.dtype[Any] = np.dtype(self._trt.nptype(dtype) if wide else ml_dtypes.bfloat16)
        return found

    def _checked(self, name: str, inputs: Mapping[str, Any]) -> np.ndarray[Any, Any]:
        import numpy as np

        if name not in inputs:
            raise EngineError(f"input '{name}' is missing", fix=f"the engine takes: {', '.join(self._inputs)}")
        array = np.ascontiguousarray(inputs[name]).reshape(np.shape(inputs[name]))
        if array.dtype != self._dtype(name):
            raise EngineError(f"input '{name}' is {array.dtype}, the engine takes {self._dtype(name)}")
        return array

    def _choose(self, sizes: Mapping[str, tuple[int, ...]]) -> None:
        index = shapes_of.choose(self._spec, self._profiles, sizes)
        if index is None:
            raise EngineError(
                "no optimization profile holds these shapes: " + ", ".join(f"{n} {list(s)}" for n, s in sizes.items()),
                where="; ".join(str(dict(profile)) for profile in self._profiles),
                fix="stay inside a profile, or add one in a file of profiles/",
            )
        if index != self._profile:
            self._runner.set_profile(index)
            self._profile = index

    def _array(self, name: str, found: Any) -> np.ndarray[Any, Any]:
        """A copy of an output: the runner reuses its buffers."""
        import numpy as np

        dtype, shape = self._dtype(name), tuple(found.shape)
        size = int(np.prod(shape)) * dtype.itemsize
        raw = np.asarray(found.array).reshape(-1).view(np.uint8)[:size]
        return raw.copy().view(dtype).reshape(shape)
